"""Builds the Service of a pool."""

from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS
from gpu_runtime.contract.crd.well_known import Label, pool_child_name, pool_labels
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.workload.drift import child_manifest
from gpu_runtime.controller_manager.workload.pod_template import service_ports
from gpu_runtime.kube.meta import Manifest


def service(observed: ObservedPool) -> Manifest | None:
    """Return the Service. Return None if the template of the pool declares no ports, or if the pool is adoptable: no
    client may change the state of a program before it belongs to a unit."""
    metadata, spec = observed.pool.metadata, observed.pool.spec
    if not spec.template.ports or observed.is_adoptable:
        return None
    labels = pool_labels(metadata.name, spec.spec_name)
    child_spec: Manifest = {
        "type": "ClusterIP",
        "selector": {Label.POOL: metadata.name},
        "ports": service_ports(spec.template),
    }
    return child_manifest(observed.pool, STOCK_POOLS, pool_child_name(metadata.name), labels, child_spec)
