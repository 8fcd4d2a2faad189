"""The inventory: what there is of every flavor, counted from the caches. It may be a moment behind."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.quantity import Quantity
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Route, Scope, View
from gpu_runtime.runtime_api.stock.requests import InventoryQuery
from gpu_runtime.runtime_api.stock.view import phase_of


class ReservedResources(View, frozen=True, kw_only=True):
    """What is held back for somebody. What is stopped holds nothing."""

    gpus: int
    """GPUs."""

    memory: str
    """Memory, as a quantity. What reserves none is not in it."""


class StockCount(View, frozen=True, kw_only=True):
    """Stock units by state; each is in one state."""

    ready: int
    """Can be taken."""

    progressing: int
    """Do not hold their GPUs yet."""

    failed: int
    """Do not start; the stock unit says why."""

    stopped: int
    """Were stopped by hand."""

    claimed: int
    """Are being turned into units."""

    reserved: ReservedResources
    """What all of them hold."""


class ActiveCount(View, frozen=True, kw_only=True):
    """Active units by phase."""

    ready: int
    """Serve."""

    progressing: int
    """Are starting."""

    failed: int
    """Do not start; the unit says why."""

    stopped: int
    """Are stopped, and hold no GPUs."""

    reserved: ReservedResources
    """What all of them hold."""


class PoolCount(View, frozen=True, kw_only=True):
    """Pools and their replicas."""

    pools: int
    """How many pools there are."""

    desired: int
    """Replicas that are wanted."""

    available: int
    """Replicas that are available."""

    reserved: ReservedResources
    """What the wanted replicas hold."""


class InventoryCounts(View, frozen=True, kw_only=True):
    """What there is, of one flavor or of all."""

    stock: StockCount
    """Stock units."""

    active: ActiveCount
    """Active units."""

    pools: PoolCount
    """Pools."""


class FlavorInventory(InventoryCounts, frozen=True, kw_only=True):
    """What there is of one flavor."""

    spec_name: str
    """The flavor."""


class InventoryView(View, frozen=True, kw_only=True):
    """What there is."""

    total: InventoryCounts
    """Of all flavors that were asked for."""

    flavors: tuple[FlavorInventory, ...]
    """Of each flavor, in the order of their names."""


@dataclass(frozen=True)
class InventorySnapshot:
    """What is counted together."""

    stock: list[GPUUnit] = field(default_factory=list)
    active: list[GPUUnit] = field(default_factory=list)
    pools: list[StockPool] = field(default_factory=list)

    def by_flavor(self) -> dict[str, "InventorySnapshot"]:
        found: defaultdict[str, InventorySnapshot] = defaultdict(InventorySnapshot)
        for unit in self.stock:
            found[unit.spec.spec_name].stock.append(unit)
        for unit in self.active:
            found[unit.spec.spec_name].active.append(unit)
        for pool in self.pools:
            found[pool.spec.spec_name].pools.append(pool)
        return found


@dataclass(frozen=True)
class InventoryService:
    informers: APIInformers
    stock_namespace: str

    def get(self, spec_name: str = "") -> InventoryView:
        seen = self._snapshot()
        return count_inventory(seen.by_flavor().get(spec_name, InventorySnapshot()) if spec_name else seen)

    def _snapshot(self) -> InventorySnapshot:
        seen = InventorySnapshot(pools=self.informers.pools.store.all())
        for unit in self.informers.units.store.all():
            (seen.stock if unit.metadata.namespace == self.stock_namespace else seen.active).append(unit)
        return seen


def count_inventory(seen: InventorySnapshot) -> InventoryView:
    flavors = tuple(FlavorInventory(spec_name=name, **_counts(of)) for name, of in sorted(seen.by_flavor().items()))
    return InventoryView(total=InventoryCounts(**_counts(seen)), flavors=flavors)


def _counts(seen: InventorySnapshot) -> dict[str, Any]:
    return {"stock": _count_stock(seen.stock), "active": _count_active(seen.active), "pools": _count_pools(seen.pools)}


def _count_stock(units: Sequence[GPUUnit]) -> StockCount:
    free = [unit for unit in units if Annotation.CLAIMED_BY not in unit.metadata.annotations]
    return StockCount(**_by_phase(free), claimed=len(units) - len(free), reserved=_reserved_by_units(units))


def _count_active(units: Sequence[GPUUnit]) -> ActiveCount:
    return ActiveCount(**_by_phase(units), reserved=_reserved_by_units(units))


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


def _sum_reserved(envelopes: Iterable[tuple[int, str, int]]) -> ReservedResources:
    """The sum of GPUs and memory, each so many times."""
    gpus, memory = 0, Fraction(0)
    for gpu, amount, times in envelopes:
        gpus += gpu * times
        memory += _memory_bytes(amount) * times
    return ReservedResources(gpus=gpus, memory=str(Quantity.from_value(memory, binary=True)))


def _memory_bytes(amount: str) -> Fraction:
    """What is no quantity reserves nothing: the object itself is Failed for it."""
    try:
        return Quantity(amount).value
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


def routes(inventory: InventoryService) -> Sequence[Route]:
    async def get_inventory(call: APIRequest[None, InventoryQuery]) -> APIResponse:
        return APIResponse(200, inventory.get(call.query.spec_name))

    return (
        Route(
            "GET",
            "/api/v1/operator/inventory",
            "getInventory",
            "Count stock, units and pools of every flavor",
            get_inventory,
            responses={200: InventoryView},
            scope=Scope.OPERATOR,
            query=InventoryQuery,
            tag="Stock",
        ),
    )
