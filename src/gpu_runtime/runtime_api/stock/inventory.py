"""Counts stock units, active units and pools by flavor, from the informer caches.

The counts may lag behind the API server by the delay of the watches.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.operation_rules import is_claimed
from gpu_runtime.kube.quantity import Quantity
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, RouteGroup, Scope, View
from gpu_runtime.runtime_api.stock.requests import InventoryQuery
from gpu_runtime.runtime_api.stock.view import phase_of


class ReservedResources(View, frozen=True, kw_only=True):
    """Reserved GPUs and memory. Stopped units reserve nothing."""

    gpus: int
    """The number of GPUs."""

    memory: str
    """The memory as a Kubernetes quantity. Units without a memory reservation do not count."""


class StockCount(View, frozen=True, kw_only=True):
    """Numbers of stock units. Each stock unit counts once, either by its phase or as claimed."""

    ready: int
    """Stock units that an operation can claim."""

    progressing: int
    """Stock units whose pod does not run yet."""

    failed: int
    """Stock units that do not start. The view of the stock unit shows the reason."""

    stopped: int
    """Stock units that an administrator stopped."""

    claimed: int
    """Stock units that an operation has claimed."""

    reserved: ReservedResources
    """The resources that all stock units reserve."""


class ActiveCount(View, frozen=True, kw_only=True):
    """Numbers of active units by phase."""

    ready: int
    """Units that are ready to serve requests."""

    progressing: int
    """Units that are starting."""

    failed: int
    """Units that do not start. The view of the unit shows the reason."""

    stopped: int
    """Stopped units. They reserve no GPUs."""

    reserved: ReservedResources
    """The resources that all active units reserve."""


class PoolCount(View, frozen=True, kw_only=True):
    """Numbers of pools and of their replicas."""

    pools: int
    """The number of pools."""

    desired: int
    """The number of desired replicas."""

    available: int
    """The number of available replicas."""

    reserved: ReservedResources
    """The resources that the desired replicas reserve."""


class InventoryCounts(View, frozen=True, kw_only=True):
    """The counts of one flavor or of all flavors."""

    stock: StockCount
    """The counts of stock units."""

    active: ActiveCount
    """The counts of active units."""

    pools: PoolCount
    """The counts of pools."""


class FlavorInventory(InventoryCounts, frozen=True, kw_only=True):
    """The counts of one flavor."""

    spec_name: str
    """The flavor, for example g1.1."""


class InventoryView(View, frozen=True, kw_only=True):
    """The inventory of all flavors, or of the requested flavor."""

    total: InventoryCounts
    """The sum over all listed flavors."""

    flavors: tuple[FlavorInventory, ...]
    """The counts of each flavor, sorted by name."""


@dataclass(frozen=True)
class InventorySnapshot:
    """The cached objects to count."""

    stock: list[GPUUnit] = field(default_factory=list)
    active: list[GPUUnit] = field(default_factory=list)
    pools: list[StockPool] = field(default_factory=list)

    def by_flavor(self) -> dict[str, "InventorySnapshot"]:
        snapshots: defaultdict[str, InventorySnapshot] = defaultdict(InventorySnapshot)
        for unit in self.stock:
            snapshots[unit.spec.spec_name].stock.append(unit)
        for unit in self.active:
            snapshots[unit.spec.spec_name].active.append(unit)
        for pool in self.pools:
            snapshots[pool.spec.spec_name].pools.append(pool)
        return snapshots


@dataclass(frozen=True)
class InventoryService:
    informers: APIInformers
    stock_namespace: str

    def get(self, spec_name: str = "") -> InventoryView:
        snapshot = self._snapshot()
        return count_inventory(snapshot.by_flavor().get(spec_name, InventorySnapshot()) if spec_name else snapshot)

    def _snapshot(self) -> InventorySnapshot:
        snapshot = InventorySnapshot(pools=self.informers.pools.store.all())
        for unit in self.informers.units.store.all():
            (snapshot.stock if unit.metadata.namespace == self.stock_namespace else snapshot.active).append(unit)
        return snapshot


def count_inventory(snapshot: InventorySnapshot) -> InventoryView:
    flavors = tuple(
        FlavorInventory(spec_name=name, **_counts(part)) for name, part in sorted(snapshot.by_flavor().items())
    )
    return InventoryView(total=InventoryCounts(**_counts(snapshot)), flavors=flavors)


def _counts(snapshot: InventorySnapshot) -> dict[str, Any]:
    return {
        "stock": _count_stock(snapshot.stock),
        "active": ActiveCount(**_by_phase(snapshot.active), reserved=_reserved_by_units(snapshot.active)),
        "pools": _count_pools(snapshot.pools),
    }


def _count_stock(units: Sequence[GPUUnit]) -> StockCount:
    free = [unit for unit in units if not is_claimed(unit)]
    return StockCount(**_by_phase(free), claimed=len(units) - len(free), reserved=_reserved_by_units(units))


def _count_pools(pools: Sequence[StockPool]) -> PoolCount:
    return PoolCount(
        pools=len(pools),
        desired=sum(pool.spec.replicas for pool in pools),
        available=sum(pool.status.available for pool in pools),
        reserved=_sum_reserved((pool.spec.gpu, pool.spec.memory, pool.spec.replicas) for pool in pools),
    )


def _by_phase(units: Iterable[GPUUnit]) -> dict[str, int]:
    phases = Counter(phase_of(unit) for unit in units)
    return {name: phases[phase] for name, phase in _PHASES.items()}


def _reserved_by_units(units: Iterable[GPUUnit]) -> ReservedResources:
    return _sum_reserved((unit.spec.gpu, unit.spec.memory, 1) for unit in units if unit.spec.running)


def _sum_reserved(reservations: Iterable[tuple[int, str, int]]) -> ReservedResources:
    """Sum up the reservations. Each one has the GPUs and the memory of one replica, and the number of replicas."""
    gpus, memory = 0, Fraction(0)
    for gpu, quantity, replicas in reservations:
        gpus += gpu * replicas
        memory += _memory_bytes(quantity) * replicas
    return ReservedResources(gpus=gpus, memory=str(Quantity.from_value(memory, binary=True)))


def _memory_bytes(quantity: str) -> Fraction:
    """Return the bytes of a quantity. An invalid quantity counts as 0, because its object is in phase Failed."""
    try:
        return Quantity(quantity).value
    except ValueError:
        return Fraction(0)


_PHASES = MappingProxyType(
    {
        "ready": UnitPhase.READY,
        "progressing": UnitPhase.PROGRESSING,
        "failed": UnitPhase.FAILED,
        "stopped": UnitPhase.EMPTY,
    }
)


INVENTORY = RouteGroup[InventoryService]("Stock", Scope.OPERATOR)


@INVENTORY.route("GET", "/api/v1/operator/inventory", {200: InventoryView})
async def get_inventory(inventory: InventoryService, request: APIRequest[None, InventoryQuery]) -> APIResponse:
    """Count stock, units and pools of every flavor."""
    return APIResponse(200, inventory.get(request.query.spec_name))
