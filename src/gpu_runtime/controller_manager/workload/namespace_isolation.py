"""Creates and corrects the NetworkPolicies that isolate all pods of units and pools in a namespace.

The policies have no owner, so they also apply to pods that still exist after their unit was deleted, for example while
a finalizer holds a pod. The policy of a unit or pool only allows its declared ports. Without it, no client can reach
the pods.
"""

from collections.abc import Mapping
from contextlib import suppress

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.well_known import MANAGED_BY_VALUE, Label
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.settings import EgressSettings
from gpu_runtime.controller_manager.unstructured import RAW_NETWORK_POLICIES, RawNetworkPolicy
from gpu_runtime.controller_manager.workload.drift import matches_desired, update_manifest
from gpu_runtime.controller_manager.workload.pod_template import policy_port
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeForbidden, KubeInvalid, KubeNotFound
from gpu_runtime.kube.meta import Manifest, ObjectKey

# The names of units and pools contain no dot, so no policy of a unit or pool has one of these names.
ISOLATION_POLICY, WORKER_EGRESS_POLICY = "platform.isolation", "platform.worker-egress"
DNS_PORT = 53


def isolation_policies(namespace: str, egress: EgressSettings) -> dict[str, Manifest | None]:
    """Return the policies of a namespace by name. If the value is None, the policy must not exist.

    The containers of a pod share one network. So restricted egress also applies to the user's container, and the user's
    container can reach the NATS port. Therefore only the sidecar container has the NATS credentials.
    """
    deny_ingress = {"policyTypes": ["Ingress"], "ingress": [], "egress": []}
    limit_egress = {"policyTypes": ["Egress"], "ingress": [], "egress": _nats_egress_rules(egress)}
    all_pods, workers = {Label.MANAGED_BY: MANAGED_BY_VALUE}, {Label.NATS_ACCESS: "true"}
    return {
        ISOLATION_POLICY: _policy(namespace, ISOLATION_POLICY, all_pods, deny_ingress),
        WORKER_EGRESS_POLICY: _policy(namespace, WORKER_EGRESS_POLICY, workers, limit_egress)
        if egress.restrict
        else None,
    }


def is_isolation_policy(policy: RawNetworkPolicy) -> bool:
    return policy.metadata.name in (ISOLATION_POLICY, WORKER_EGRESS_POLICY)


async def sync_isolation(
    client: KubeClient, informers: ControllerInformers, namespace: str, egress: EgressSettings
) -> Blocked | None:
    """Create or correct the policies of a namespace. If the cached policies are correct, send no request."""
    try:
        for name, desired in isolation_policies(namespace, egress).items():
            await _apply(client, informers, ObjectKey(namespace, name), desired)
    except (KubeForbidden, KubeInvalid) as error:
        text = f"the API server rejected the NetworkPolicy that isolates the namespace: {error}"
        return Blocked(ReadyReason.NETWORK_POLICY_SYNC_FAILED, text)
    return None


async def _apply(client: KubeClient, informers: ControllerInformers, key: ObjectKey, desired: Manifest | None) -> None:
    live = informers.network_policies.store.get(key)
    if desired is None:
        if live is not None:
            with suppress(KubeNotFound):
                await client.delete(RAW_NETWORK_POLICIES, key, uid=live.metadata.uid)
        return
    if live is not None and matches_desired(live, desired):
        return
    if live is None:
        with suppress(KubeAlreadyExists):
            created = await client.create(RAW_NETWORK_POLICIES, desired)
            informers.record_write(RAW_NETWORK_POLICIES, created)
            return
        # The cache is stale, or the label that the informer selects was removed.
        live = await client.get(RAW_NETWORK_POLICIES, key)
    updated = await client.replace(RAW_NETWORK_POLICIES, update_manifest(live, desired))
    informers.record_write(RAW_NETWORK_POLICIES, updated)


def _policy(namespace: str, name: str, pods: Mapping[str, str], rules: Manifest) -> Manifest:
    metadata = {
        "namespace": namespace,
        "name": name,
        "labels": {Label.MANAGED_BY: MANAGED_BY_VALUE},
        "annotations": {},
        "ownerReferences": [],
    }
    selector = {"podSelector": {"matchLabels": dict(pods), "matchExpressions": []}}
    return {"metadata": metadata, "spec": selector | rules}


def _nats_egress_rules(egress: EgressSettings) -> list[Manifest]:
    nats_servers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": egress.nats_namespace}}}
    return [
        {"ports": [policy_port(DNS_PORT, "UDP"), policy_port(DNS_PORT, "TCP")], "to": []},
        {"ports": [policy_port(egress.nats_port, "TCP")], "to": [nats_servers]},
    ]
