"""Builds the NetworkPolicy of an active unit. It allows ingress only to the declared ports of the unit.

By default, egress is not restricted, because users' programs download models and call external services. The setting
`serverless.egress.restrict` limits workers to DNS and NATS. All containers of a pod share one network. So the
restriction also applies to the user's container, and the user's container can reach the NATS port. Therefore only the
sidecar container has the NATS credentials.
"""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.well_known import UnitRole, unit_labels
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.settings import EgressSettings
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.kube.meta import Manifest

DNS_PORT = 53


def network_policy(observed: ObservedUnit) -> Manifest | None:
    """Return the policy. Return None for a stock unit, because its process does not listen on any port."""
    metadata, spec = observed.unit.metadata, observed.unit.spec
    if observed.role is UnitRole.STOCK:
        return None
    egress = observed.settings.serverless.egress
    restricted = spec.serves_function and egress.restrict
    labels = unit_labels(metadata.name, spec.spec_name, observed.role)
    ports = [_port(each.port, each.protocol) for each in spec.template.ports]
    child_spec: Manifest = {
        "podSelector": {"matchLabels": observed.pod_selector, "matchExpressions": []},
        "policyTypes": ["Ingress", "Egress"] if restricted else ["Ingress"],
        "ingress": [{"ports": ports, "from": []}] if ports else [],  # a rule without ports would allow all ports
        "egress": _nats_egress_rules(egress) if restricted else [],
    }
    return child_manifest(observed.unit, GPU_UNITS, metadata.name, labels, child_spec)


def _nats_egress_rules(egress: EgressSettings) -> list[Manifest]:
    nats_servers = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": egress.nats_namespace}}}
    return [
        {"ports": [_port(DNS_PORT, "UDP"), _port(DNS_PORT, "TCP")], "to": []},
        {"ports": [_port(egress.nats_port, "TCP")], "to": [nats_servers]},
    ]


def _port(port: int, protocol: str) -> Manifest:
    return {"port": port, "protocol": protocol, "endPort": None}
