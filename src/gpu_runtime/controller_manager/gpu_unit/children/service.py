"""Builds the Service of an active unit. The address of the Service does not change when the pod is replaced."""

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.well_known import UnitRole, unit_labels
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import service_ports
from gpu_runtime.kube.meta import Manifest


def service(observed: ObservedUnit) -> Manifest | None:
    """Return the Service. Return None for a stock unit, which accepts no requests, and for a unit without ports."""
    metadata, spec = observed.unit.metadata, observed.unit.spec
    if observed.role is UnitRole.STOCK or not spec.template.ports:
        return None
    labels = unit_labels(metadata.name, spec.spec_name, observed.role)
    child_spec: Manifest = {
        "type": "ClusterIP",
        "selector": observed.pod_selector,
        "ports": service_ports(spec.template),
        # The readiness probe concerns the primary port. Other ports, for example SSH, must answer before it succeeds.
        "publishNotReadyAddresses": True,
    }
    return child_manifest(observed.unit, GPU_UNITS, metadata.name, labels, child_spec)


def access_url(observed: ObservedUnit) -> str | None:
    """Return the URL of the unit's primary port inside the cluster. Return None if the unit has no such URL."""
    metadata, spec = observed.unit.metadata, observed.unit.spec
    port = spec.primary_port()
    if observed.role is UnitRole.STOCK or port is None:
        return None
    scheme = spec.access.scheme if spec.access else "http"
    return f"{scheme}://{metadata.name}.{metadata.namespace}.svc.{observed.settings.cluster_domain}:{port.port}"
