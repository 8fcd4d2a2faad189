"""What is left on the shelf is taken, however requests get in each other's way."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.store import Store
from gpu_runtime.runtime_api.api_informers import Caches
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.units.stock_selector import Shelf


@dataclass
class Stocked:
    """Caches that know of this stock and of no unfinished operation, and a ledger whose reads take a while."""

    stock: list[GPUUnit]
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)
    store: Store[Any] = field(default_factory=Store)

    @property
    def pending(self) -> "Stocked":
        return self

    def stock_of(self, _namespace: str, spec_name: str) -> list[GPUUnit]:
        return [unit for unit in self.stock if unit.spec.spec_name == spec_name]

    def key(self, operation_id: str) -> str:
        return operation_id

    async def find(self, operation_id: str) -> Operation:
        self.asked.set()
        await self.may_answer.wait()
        return running(operation_id)

    def shelf(self) -> Shelf:
        return Shelf(cast(Caches, self), cast(Ledger, self))


def ready(name: str, **annotations: str) -> GPUUnit:
    metadata = {"name": name, "namespace": "stock", "uid": f"uid-{name}", "annotations": annotations}
    return msgspec.convert({"metadata": metadata, "spec": {"specName": "g1"}, "status": {"phase": "Ready"}}, GPUUnit)


def being_seeded(name: str) -> GPUUnit:
    return ready(name, **{Annotation.OPERATION_ID: "seeding", Annotation.OPERATION_UID: "uid-seeding"})


def running(operation_id: str) -> Operation:
    target = {"kind": "GPUUnit", "namespace": "stock"}
    spec = {"operationID": operation_id, "type": "SeedStock", "requestHash": "", "target": target}
    document = {"metadata": {"uid": f"uid-{operation_id}"}, "spec": spec, "status": {"state": "Running"}}
    return msgspec.convert(document, Operation)


async def test_every_unit_is_reserved_once() -> None:
    shelf = Stocked([ready(f"unit-{number}") for number in range(20)]).shelf()
    taken = [await shelf.reserve("stock", "g1") for _ in range(20)]
    assert len({unit.metadata.uid for unit in taken if unit}) == 20


async def test_none_is_left_when_nobody_can_give_one_back() -> None:
    assert await Stocked([]).shelf().reserve("stock", "g1") is None


async def test_what_another_gives_back_while_a_candidate_is_looked_at_is_taken() -> None:
    stocked = Stocked([ready("free")])
    shelf = stocked.shelf()
    first = await shelf.reserve("stock", "g1")
    assert first
    stocked.stock.append(being_seeded("not-yet"))
    second = asyncio.create_task(shelf.reserve("stock", "g1"))
    await stocked.asked.wait()
    shelf.release(first.metadata.uid)
    stocked.may_answer.set()
    async with asyncio.timeout(60):
        taken = await second
    assert taken is not None
    assert taken.metadata.name == "free"


async def test_what_others_hold_is_waited_for() -> None:
    shelf = Stocked([ready("only")]).shelf()
    first = await shelf.reserve("stock", "g1")
    assert first
    second = asyncio.create_task(shelf.reserve("stock", "g1"))
    await asyncio.sleep(0)
    assert not second.done()
    shelf.release(first.metadata.uid)
    async with asyncio.timeout(60):
        assert await second
