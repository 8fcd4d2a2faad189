"""Builds the NetworkPolicy of a pool. It allows ingress to the declared ports of the pool.

An adoptable pool has none, so no client can reach its pods: no client may change the state of a program before the
program belongs to a unit. The kubelet can still probe the pods. The policies of the namespace deny all other ingress:
see `workload.namespace_isolation`. They also apply while a handoff takes a pod.
"""

from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS
from gpu_runtime.contract.crd.well_known import Label, pool_child_name, pool_labels
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import policy_ports
from gpu_runtime.kube.meta import Manifest


def network_policy(observed: ObservedPool) -> Manifest | None:
    """Return the policy, or None if the pool is adoptable or has no ports."""
    metadata, spec = observed.pool.metadata, observed.pool.spec
    if observed.is_adoptable or not spec.template.ports:
        return None
    child_spec: Manifest = {
        # If the pool was adoptable before, clients must not reach its prepared pods.
        "podSelector": {
            "matchLabels": {Label.POOL: metadata.name},
            "matchExpressions": [{"key": Label.PREPARED_BY, "operator": "DoesNotExist"}],
        },
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": policy_ports(spec.template), "from": []}],
        "egress": [],
    }
    labels = pool_labels(metadata.name, spec.spec_name)
    return child_manifest(observed.pool, STOCK_POOLS, pool_child_name(metadata.name), labels, child_spec)
