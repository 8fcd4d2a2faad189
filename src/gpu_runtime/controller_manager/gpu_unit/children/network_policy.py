"""Builds the NetworkPolicy of an active unit. It allows ingress to the declared ports of the unit.

The policies of the namespace deny all other ingress: see `workload.namespace_isolation`. They also apply to pods
that still exist after their unit was deleted.
"""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.well_known import UnitRole, unit_labels
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import policy_ports
from gpu_runtime.kube.meta import Manifest


def network_policy(observed: ObservedUnit) -> Manifest | None:
    """Return the policy. Return None for a stock unit, which listens on no port, and for a unit without ports."""
    metadata, spec = observed.unit.metadata, observed.unit.spec
    if observed.role is UnitRole.STOCK or not spec.template.ports:
        return None
    labels = unit_labels(metadata.name, spec.spec_name, observed.role)
    child_spec: Manifest = {
        "podSelector": {"matchLabels": observed.pod_selector, "matchExpressions": []},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": policy_ports(spec.template), "from": []}],
        "egress": [],
    }
    return child_manifest(observed.unit, GPU_UNITS, metadata.name, labels, child_spec)
