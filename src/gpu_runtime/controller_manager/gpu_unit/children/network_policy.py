"""The NetworkPolicy of an active unit: its declared ports are open, and nothing else of it is.

What a unit may reach is not limited by default: users' programs fetch models and talk to the world. Workers can be
limited to the queue by a setting. That would cut off the user's container, too, because a pod has one network; and that
container could reach the queue's port, which is why the credentials are the sidecar's alone.
"""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.well_known import Label, UnitRole, unit_labels
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.settings import EgressSettings
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.kube.meta import Manifest

DNS_PORT = 53


def network_policy(seen: ObservedUnit) -> Manifest | None:
    """None for stock, whose process listens nowhere."""
    metadata, spec = seen.unit.metadata, seen.unit.spec
    if seen.role is UnitRole.STOCK:
        return None
    egress = seen.settings.serverless.egress
    limited = spec.serves_function and egress.restrict
    return child_manifest(
        seen.unit,
        GPU_UNITS,
        metadata.name,
        unit_labels(metadata.name, spec.spec_name, seen.role),
        {
            "podSelector": {"matchLabels": {Label.UNIT: metadata.name}, "matchExpressions": []},
            "policyTypes": ["Ingress", "Egress"] if limited else ["Ingress"],
            "ingress": _ingress_rules(seen),
            "egress": _nats_egress_rules(egress) if limited else [],
        },
    )


def _ingress_rules(seen: ObservedUnit) -> list[Manifest]:
    ports = [_port(each.port, each.protocol) for each in seen.unit.spec.template.ports]
    return [{"ports": ports, "from": []}] if ports else []  # a rule without ports would open them all


def _nats_egress_rules(egress: EgressSettings) -> list[Manifest]:
    queue = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": egress.nats_namespace}}}
    return [
        {"ports": [_port(DNS_PORT, "UDP"), _port(DNS_PORT, "TCP")], "to": []},
        {"ports": [_port(egress.nats_port, "TCP")], "to": [queue]},
    ]


def _port(port: int, protocol: str) -> Manifest:
    return {"port": port, "protocol": protocol, "endPort": None}
