"""Gauge of GPUUnits by role, specName and phase. Each change in the informer store updates the gauge."""

from prometheus_client import CollectorRegistry, Gauge

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import UnitRole, role_of
from gpu_runtime.contract.operation_rules import is_claimed
from gpu_runtime.kube.store import ObjectChange

CLAIMED_PHASE = "Claimed"
"""Value of the label `phase` for claimed stock units. No unit has this phase in its status."""


class UnitMetrics:
    def __init__(self, registry: CollectorRegistry, stock_namespace: str = "") -> None:
        self._stock_namespace = stock_namespace
        self._units = Gauge(
            "gpu_runtime_units",
            "Number of GPUUnits by role (stock or active), specName and phase. For a claimed stock unit, the label"
            " `phase` is `Claimed`.",
            ["role", "spec_name", "phase"],
            registry=registry,
        )

    def observe_change(self, change: ObjectChange[GPUUnit]) -> None:
        if change.old is not None:
            self._units.labels(*self._label_values(change.old)).dec()
        if change.new is not None:
            self._units.labels(*self._label_values(change.new)).inc()

    def _label_values(self, unit: GPUUnit) -> tuple[str, str, str]:
        """Return role, specName and phase. A claimed stock unit counts as Claimed, because it is not available."""
        role = role_of(unit.metadata.namespace, self._stock_namespace)
        claimed = role is UnitRole.STOCK and is_claimed(unit)
        return role, unit.spec.spec_name, CLAIMED_PHASE if claimed else unit.status.phase or UnitPhase.EMPTY
