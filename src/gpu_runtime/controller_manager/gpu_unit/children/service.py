"""The Service of an active unit: a stable address, however its pod comes and goes."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.well_known import Label, UnitRole, unit_labels
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import service_ports
from gpu_runtime.kube.meta import Manifest


def service(seen: ObservedUnit) -> Manifest | None:
    """None for stock, which serves nobody, and for units without ports."""
    metadata, spec = seen.unit.metadata, seen.unit.spec
    if seen.role is UnitRole.STOCK or not spec.template.ports:
        return None
    return child_manifest(
        seen.unit,
        GPU_UNITS,
        metadata.name,
        unit_labels(metadata.name, spec.spec_name, seen.role),
        {
            "type": "ClusterIP",
            "selector": {Label.UNIT: metadata.name},
            "ports": service_ports(spec.template),
        },
    )


def access_url(seen: ObservedUnit) -> str | None:
    """Where the unit answers inside the cluster."""
    metadata, spec = seen.unit.metadata, seen.unit.spec
    port = spec.primary_port()
    if seen.role is UnitRole.STOCK or port is None:
        return None
    scheme = spec.access.scheme if spec.access else "http"
    return f"{scheme}://{metadata.name}.{metadata.namespace}.svc.{seen.settings.cluster_domain}:{port.port}"
