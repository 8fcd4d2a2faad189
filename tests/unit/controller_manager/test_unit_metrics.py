"""The gauge of units."""

import msgspec
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.metrics import UnitMetrics
from gpu_runtime.kube.store import ObjectChange
from tests.unit.controller_manager.controller_objects import unit


def in_phase(phase: str, namespace: str = "runtime-stock", **annotations: str) -> GPUUnit:
    new = unit(namespace, annotations)
    return msgspec.structs.replace(new, status=msgspec.structs.replace(new.status, phase=phase))


def test_units_gauge_follows_create_update_and_delete() -> None:
    registry = CollectorRegistry()
    metrics = UnitMetrics(registry, "runtime-stock")

    def count(role: str, phase: str) -> float | None:
        labels = {"role": role, "spec_name": "g1.1", "phase": phase}
        return registry.get_sample_value("gpu_runtime_units", labels)

    new, ready = in_phase("Progressing"), in_phase("Ready")
    claimed = in_phase("Ready", **{Annotation.CLAIMED_BY: "operation-1"})
    active = in_phase("Ready", "runtime-instance", **{Annotation.CLAIMED_BY: "copied from the stock unit"})
    for change in (
        ObjectChange(None, new),
        ObjectChange(new, ready),
        ObjectChange(None, active),
        ObjectChange(active, active),
    ):
        metrics.observe_change(change)
    assert (count("stock", "Progressing"), count("stock", "Ready"), count("active", "Ready")) == (0, 1, 1)
    metrics.observe_change(ObjectChange(ready, claimed))
    assert (count("stock", "Ready"), count("stock", "Claimed")) == (0, 1), (
        "without stock, the sample is 0 instead of missing"
    )
    metrics.observe_change(ObjectChange(claimed, None))
    assert count("stock", "Claimed") == 0
