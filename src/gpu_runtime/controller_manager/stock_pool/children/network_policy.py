"""Builds the NetworkPolicy of an adoptable pool.

It allows no ingress: no client may change the state of a program before the program belongs to a unit. The kubelet can
still probe the pods.

The policy also applies to a pod that a handoff has claimed, until the policy of the unit applies to the pod.
"""

from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS
from gpu_runtime.contract.crd.well_known import Label, pool_child_name, pool_labels
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.kube.meta import Manifest


def network_policy(observed: ObservedPool) -> Manifest | None:
    """Return the policy, or None if the pool is not adoptable and none of its pods was prepared."""
    if not observed.is_adoptable and not any(Label.PREPARED_BY in pod.metadata.labels for pod in observed.pods):
        return None
    metadata, spec = observed.pool.metadata, observed.pool.spec
    child_spec: Manifest = {
        "podSelector": {"matchLabels": {Label.PREPARED_BY: metadata.name}, "matchExpressions": []},
        "policyTypes": ["Ingress"],
        "ingress": [],
        "egress": [],
    }
    labels = pool_labels(metadata.name, spec.spec_name)
    return child_manifest(observed.pool, STOCK_POOLS, pool_child_name(metadata.name), labels, child_spec)
