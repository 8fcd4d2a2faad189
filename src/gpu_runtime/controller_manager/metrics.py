"""How much there is of what: the units in the cache, counted as they come, change and go."""

from prometheus_client import CollectorRegistry, Gauge

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation, Role, role_of
from gpu_runtime.kube.store import Change

CLAIMED = "Claimed"


class UnitMetrics:
    def __init__(self, registry: CollectorRegistry, stock_namespace: str = "") -> None:
        self._stock_namespace = stock_namespace
        self._units = Gauge(
            "controller_manager_units",
            "GPUUnits by what they are for, specName and phase",
            ["role", "spec", "phase"],
            registry=registry,
        )

    def note(self, change: Change[GPUUnit]) -> None:
        if change.before is not None:
            self._units.labels(*self._labels(change.before)).dec()
        if change.after is not None:
            self._units.labels(*self._labels(change.after)).inc()

    def _labels(self, unit: GPUUnit) -> tuple[str, str, str]:
        """Stock that somebody has claimed is stock no more, whatever its phase says."""
        role = role_of(unit.metadata.namespace, self._stock_namespace)
        claimed = role is Role.STOCK and Annotation.CLAIMED_BY in unit.metadata.annotations
        return role, unit.spec.spec_name, CLAIMED if claimed else unit.status.phase or UnitPhase.EMPTY
