"""Makes a prepared pod the pod of the unit whose handoff has claimed it. The pod keeps running.

The handoff claims the pod with an annotation. Then the controller manager executes these steps. It decides each step
from the objects, so a crash between two steps changes nothing:

    1. create the NetworkPolicy and the Service of the unit, whose selectors already match the pod
    2. take the pod from its pool, and label it as the unit's pod      (conditional write)
    3. create a ReplicaSet with the pod template of the unit, which adopts the pod
    4. when the ReplicaSet owns the pod: create the Deployment, which adopts the ReplicaSet

If the Deployment existed before step 3, it would create its own ReplicaSet, and a second pod. If a ReplicaSet without
replicas existed before step 2, it would adopt the pod and delete it.

A user who can write GPUUnits can forge the annotations of a unit, but not an Operation. So the controller manager takes
only a pod that the Operation of the unit has recorded as its stock. If the pod cannot be adopted, for example because
the unit was stopped or changed in the meantime, the controller manager deletes it, and the unit gets a new pod.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256

import msgspec

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.well_known import Annotation, Label, unit_labels
from gpu_runtime.contract.operation_rules import ClaimState, claim_state
from gpu_runtime.contract.prepared_pods import awaits_unit, unit_patch
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.gpu_unit.children import deployment, desired_children
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.gpu_unit.prepared_profile import fitting_profile
from gpu_runtime.controller_manager.gpu_unit.unit_operation import belongs_to, find_operation
from gpu_runtime.controller_manager.unstructured import RAW_NETWORK_POLICIES, RAW_SERVICES
from gpu_runtime.controller_manager.workload.drift import is_owned
from gpu_runtime.controller_manager.workload.sync_children import sync_children
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.builtin_kinds import PODS, REPLICA_SETS, Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeConflict, KubeForbidden, KubeInvalid, KubeNotFound
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.process.await_both import await_both

TEMPLATE_HASH_LABEL = "pod-template-hash"
"""The label by which the Deployment controller tells the ReplicaSets of one Deployment apart."""

REFILL_DELAY_SECONDS = 0.1
"""How long the pod stays in its pool after the Service of the unit was created. When the pod leaves the pool, the node
starts another one. That needs much CPU time, and the new Service would become reachable later."""

ADOPTING = Blocked(ReadyReason.UNIT_PROGRESSING, "the unit takes over a prepared pod", failed=False)


@dataclass(frozen=True)
class PodAdopter:
    client: KubeClient
    informers: ControllerInformers
    system_namespace: str

    async def adopt(self, observed: ObservedUnit) -> Blocked | None:
        """Execute the next steps. Return None if the Deployment can be created: the pod is adopted, or cannot be."""
        if not self._may_adopt(observed):
            return None
        try:
            # The NetworkPolicy and the Service are needed in any case, so create them while the objects are read.
            pod, blocked = await await_both(self._find_taken_pod(observed), self._sync_network(observed))
            if pod is None:
                return None
            observed = replace(observed, prepared_pod=pod)  # the cache may not show the pod yet
            if not fits_unit(observed, pod):
                await self._delete(pod)
                return None
            return blocked or await self._take(observed, pod)
        except (KubeForbidden, KubeInvalid) as error:
            text = f"the API server rejects the adoption of a prepared pod: {error}"
            return Blocked(ReadyReason.DEPLOYMENT_SYNC_FAILED, text)

    async def _sync_network(self, observed: ObservedUnit) -> Blocked | None:
        """Create the NetworkPolicy and the Service of the unit.

        A Service that cannot be created does not delay the adoption. The unit reports it when the Deployment exists.
        """
        policy, service = (
            [each for each in desired_children(observed) if each.resource is resource]
            for resource in (RAW_NETWORK_POLICIES, RAW_SERVICES)
        )
        sync = partial(sync_children, self.client, self.informers, observed.unit)
        blocked, _ = await await_both(sync(policy), sync(service))
        return blocked

    async def _take(self, observed: ObservedUnit, pod: Pod) -> Blocked:
        """Label the pod as the unit's pod, and create the ReplicaSet that adopts it."""
        replica_set = replica_set_manifest(observed)
        await self._label_pod(pod, replica_set)
        with suppress(KubeAlreadyExists):
            await self.client.create(REPLICA_SETS, replica_set)
        return ADOPTING

    async def _label_pod(self, pod: Pod, replica_set: Manifest) -> None:
        if Label.POOL_UID not in pod.metadata.labels and pod.metadata.controller_ref is None:
            return
        await asyncio.sleep(REFILL_DELAY_SECONDS)
        patch = unit_patch(replica_set["spec"]["template"]["metadata"]["labels"])
        version = pod.metadata.resource_version
        patched = await self.client.merge_patch(PODS, pod.metadata.key, patch, resource_version=version)
        self.informers.pods.record_write(patched)

    def _may_adopt(self, observed: ObservedUnit) -> bool:
        """Whether the unit is from a prepared pod, which no ReplicaSet of the unit owns yet."""
        stock, cached = observed.source_stock, observed.prepared_pod
        if stock is None or not stock.pool:
            return False
        if observed.deployment is not None and not is_owned(observed.deployment, observed.unit):
            return False  # the Deployment of an earlier unit with this name; the claimed pod waits until it is deleted
        if cached is not None and is_claimed_for(observed, cached):
            return True
        return observed.deployment is None and (cached is None or not is_unit_pod(observed, cached))

    async def _find_taken_pod(self, observed: ObservedUnit) -> Pod | None:
        """Return the pod if the handoff of the unit has claimed it, and the Operation has recorded it.

        The cache may not show the claim yet. So ask the API server before the unit gets another pod.
        """
        unit, pod = observed.unit, observed.prepared_pod
        if pod is None or not is_claimed_for(observed, pod):
            name = observed.source_stock.name if observed.source_stock else ""
            pod = await find_live(self.client, PODS, ObjectKey(unit.metadata.namespace, name))
        if pod is None or not is_claimed_for(observed, pod):
            return None
        operation = await find_operation(self.client, self.system_namespace, unit)
        return pod if takes_pod_for(operation, unit, pod) else None

    async def _delete(self, pod: Pod) -> None:
        """Delete the pod if it has not changed. The cache may not show yet that the unit already owns the pod."""
        metadata = pod.metadata
        with suppress(KubeNotFound, KubeConflict):
            await self.client.delete(PODS, metadata.key, uid=metadata.uid, resource_version=metadata.resource_version)


def is_claimed_for(observed: ObservedUnit, pod: Pod) -> bool:
    """Whether the handoff of the unit has claimed the pod, and no ReplicaSet owns it."""
    unit, metadata = observed.unit.metadata, pod.metadata
    return (
        metadata.uid == (observed.source_stock and observed.source_stock.uid)
        and metadata.deletion_timestamp is None
        and awaits_unit(pod)
        and metadata.labels.get(Label.PREPARED) == "true"
        and metadata.labels.get(Label.UNIT_UID) in (None, unit.uid)
        and metadata.annotations.get(Annotation.OPERATION_UID) == unit.annotations.get(Annotation.OPERATION_UID)
    )


def is_unit_pod(observed: ObservedUnit, pod: Pod) -> bool:
    """Whether a ReplicaSet has adopted the pod as the pod of the unit."""
    is_labeled = pod.metadata.labels.get(Label.UNIT_UID) == observed.unit.metadata.uid
    return is_labeled and pod.metadata.controller_ref is not None


def fits_unit(observed: ObservedUnit, pod: Pod) -> bool:
    """Whether the unit still needs a pod, and would get an equal one. The settings may have changed in the meantime."""
    unit = observed.unit.spec
    is_needed = observed.deployment is None and unit.running and unit.serverless is None
    # No ReplicaSet adopts a pod that has ended.
    return is_needed and not pod.has_ended and fitting_profile(observed, pod) is not None


def takes_pod_for(operation: Operation | None, unit: GPUUnit, pod: Pod) -> bool:
    if operation is None or not belongs_to(operation, unit):
        return False
    return claim_state(operation, pod.metadata.uid) is not ClaimState.STALE


def replica_set_manifest(observed: ObservedUnit) -> Manifest:
    """Return the ReplicaSet that adopts the pod. The Deployment adopts it, because their pod templates are equal."""
    metadata, spec = observed.unit.metadata, observed.unit.spec
    template = deployment(observed)["spec"]["template"]
    template_hash = sha256(msgspec.json.encode(template, order="sorted")).hexdigest()[:10]
    selector = {Label.UNIT: metadata.name, TEMPLATE_HASH_LABEL: template_hash}
    pod_metadata = template["metadata"] | {"labels": template["metadata"]["labels"] | selector}
    # Not the controller of the ReplicaSet: only then the Deployment adopts it. If the unit is deleted before that, the
    # garbage collector deletes the ReplicaSet and the pod.
    owner = {"apiVersion": GPU_UNITS.api_version, "kind": GPU_UNITS.kind, "name": metadata.name, "uid": metadata.uid}
    return {
        "metadata": {
            "namespace": metadata.namespace,
            "name": f"{metadata.name}-{template_hash}",
            "labels": unit_labels(metadata.name, spec.spec_name, observed.role) | selector,
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector},
            "template": {"metadata": pod_metadata, "spec": template["spec"]},
        },
    }
