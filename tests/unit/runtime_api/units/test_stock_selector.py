"""The stock selector finds every claimable stock unit, also if concurrent requests hold and release units."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.store import Store
from gpu_runtime.runtime_api.api_informers import OPERATION_UID_INDEX, APIInformers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.units.stock_selector import StockSelector


@dataclass
class FakeStock:
    """Informers with this stock and no unfinished operation, and an operation store whose reads block."""

    stock: list[GPUUnit]
    lookup_started: asyncio.Event = field(default_factory=asyncio.Event)
    lookup_may_finish: asyncio.Event = field(default_factory=asyncio.Event)
    store: Store[Any] = field(default_factory=Store)

    def __post_init__(self) -> None:
        self.store.add_index(OPERATION_UID_INDEX, lambda operation: (operation.metadata.uid,))

    @property
    def unfinished_operations(self) -> "FakeStock":
        return self

    def stock_of(self, _namespace: str, spec_name: str) -> list[GPUUnit]:
        return [unit for unit in self.stock if unit.spec.spec_name == spec_name]

    def node_of(self, _unit: GPUUnit) -> str:
        return "node-1"

    async def find(self, operation_id: str) -> Operation:
        self.lookup_started.set()
        await self.lookup_may_finish.wait()
        return running_operation(operation_id)

    def selector(self) -> StockSelector:
        return StockSelector(cast(APIInformers, self), cast(OperationStore, self))


def ready_stock(name: str, **annotations: str) -> GPUUnit:
    metadata = {"name": name, "namespace": "stock", "uid": f"uid-{name}", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": {"specName": "g1"}, "status": {"phase": "Ready"}}, GPUUnit)


def stock_being_seeded(name: str) -> GPUUnit:
    return ready_stock(name, **{Annotation.OPERATION_ID: "seeding", Annotation.OPERATION_UID: "uid-seeding"})


def running_operation(operation_id: str) -> Operation:
    target = {"kind": "GPUUnit", "namespace": "stock"}
    spec = {"operationID": operation_id, "type": "SeedStock", "requestHash": "", "target": target}
    document = {"metadata": {"uid": f"uid-{operation_id}"}, "spec": spec, "status": {"state": "Running"}}
    return msgspec.convert(document, Operation)


async def test_every_stock_unit_is_held_once() -> None:
    selector = FakeStock([ready_stock(f"unit-{number}") for number in range(20)]).selector()
    held = [await selector.hold("stock", "g1", Template()) for _ in range(20)]
    assert len({stock.uid for stock in held if stock}) == 20


async def test_empty_stock_without_holds_returns_none() -> None:
    assert await FakeStock([]).selector().hold("stock", "g1", Template()) is None


async def test_stock_released_during_a_candidate_check_is_selected() -> None:
    fake = FakeStock([ready_stock("free")])
    selector = fake.selector()
    first = await selector.hold("stock", "g1", Template())
    assert first
    fake.stock.append(stock_being_seeded("unfinished"))
    second = asyncio.create_task(selector.hold("stock", "g1", Template()))
    await fake.lookup_started.wait()
    selector.release_hold(first.uid)
    fake.lookup_may_finish.set()
    async with asyncio.timeout(60):
        held = await second
    assert held is not None
    assert held.name == "free"


async def test_selector_waits_for_held_stock() -> None:
    selector = FakeStock([ready_stock("only")]).selector()
    first = await selector.hold("stock", "g1", Template())
    assert first
    second = asyncio.create_task(selector.hold("stock", "g1", Template()))
    await asyncio.sleep(0)
    assert not second.done()
    selector.release_hold(first.uid)
    async with asyncio.timeout(60):
        assert await second
