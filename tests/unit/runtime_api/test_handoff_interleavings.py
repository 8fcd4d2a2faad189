"""Whoever comes first and whoever dies: stock is neither lost nor given out twice, and an operation means one thing.

Every seed is another order of events among three replicas: requests sent to several of them at once, caches that lag
behind, a controller that reports on stock, users who delete, processes that are killed between any two steps.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, StorageMount
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationType
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.contract.errors import Conflict, Gone, NoStock
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import open_caches
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.operations.recovery import Sweep
from gpu_runtime.runtime_api.settings import Namespaces, Operations
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStock
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.stock_selector import Shelf
from tests.unit.runtime_api.interleaving import Document, FakeClient, Server, Turns, alongside

SEEDS = 150
REPLICAS = 3
STORAGES = ("data-0", "data-1", "data-2")


class Hours:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.passed = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.passed


@dataclass
class Replica:
    """The parts of a runtime API that the handoff needs, on a client of its own."""

    server: Server
    turns: Turns
    who: str
    clock: Hours
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    client: FakeClient = field(init=False)
    deleting: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.client = FakeClient(self.server, self.turns, self.who)
        client = cast(Client, self.client)
        caches = open_caches(client, Namespaces(), KubeMetrics())
        ledger = Ledger(client, "runtime-system", self.clock)
        consumed, attachments = ConsumedStock(client, caches), Attachments(client, caches)
        self.handoff = Handoff(client, caches, ledger, Shelf(caches, ledger), attachments, consumed=consumed)
        drivers = {OperationType.CREATE_UNIT: self.handoff}
        self.sweep = Sweep(client, caches, ledger, drivers, settings=Operations(), clock=self.clock)
        self.tasks += [asyncio.create_task(cache.run()) for cache in caches.all]
        self.deleting = asyncio.create_task(consumed.run(asyncio.Event(), grace=0))
        self.tasks.append(self.deleting)

    def stop_deleting(self) -> None:
        """As one that dies right after its answer, for all that becomes of the stock."""
        self.deleting.cancel()

    def die(self) -> None:
        for task in self.tasks:
            task.cancel()


@dataclass
class World:
    seed: int
    stock: int
    requests: list[CreateUnit]
    server: Server = field(default_factory=Server)
    clock: Hours = field(default_factory=Hours)
    answers: list[tuple[str, object]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    """Units that a user has deleted."""

    def __post_init__(self) -> None:
        self.turns = Turns(self.seed)
        for index in range(self.stock):
            self._add_stock(f"stock-{index}")
        for name in STORAGES:
            metadata = {"name": name, "namespace": "runtime-instance"}
            self.server.create(GPU_STORAGES, {"metadata": metadata, "spec": {"size": "1Gi"}})
        self.replicas = [self._replica(f"replica-{index}") for index in range(REPLICAS)]

    def _add_stock(self, name: str) -> None:
        manifest: Document = {"metadata": {"name": name, "namespace": "runtime-stock"}, "spec": {"specName": "g1.1"}}
        self.server.create(GPU_UNITS, manifest)
        self.server.patch(GPU_UNITS, Key("runtime-stock", name), {"status": {"phase": "Ready"}}, "status")

    def _replica(self, who: str) -> Replica:
        return Replica(self.server, self.turns, who, self.clock)

    async def ask(self, replica: Replica, request: CreateUnit) -> None:
        try:
            _, first = await replica.handoff.create(request)
            self.answers.append((request.operation_id, first))
        except (NoStock, Gone, Conflict) as fault:
            self.answers.append((request.operation_id, type(fault)))

    def report_on_stock(self, phases: Sequence[str] = ("Ready",)) -> None:
        """As the controller does: a status changes, and with it the version on which claims are conditional."""
        names = [found["metadata"]["name"] for found in self.of("runtime-stock")]
        if names:
            self._report(self.turns.chance.choice(names), self.turns.chance.choice(phases))

    def _report(self, name: str, phase: str) -> None:
        status = {"status": {"phase": phase, "lastSyncTime": str(self.server.version)}}
        self.server.patch(GPU_UNITS, Key("runtime-stock", name), status, "status")

    def delete_a_unit(self) -> None:
        """As a user does, who may well be faster than the answer to the create."""
        units = self.of("runtime-instance")
        if units:
            metadata = self.turns.chance.choice(units)["metadata"]
            self.server.delete(GPU_UNITS, Key("runtime-instance", metadata["name"]), metadata["uid"])
            self.deleted.add(metadata["uid"])

    def of(self, namespace: str) -> list[Document]:
        return [each for each in self.server.all(GPU_UNITS) if each["metadata"]["namespace"] == namespace]

    async def run(self, *, kills: int, deletions: int, phases: Sequence[str] = ("Ready",)) -> None:
        """Every request goes to several replicas at once, and anything may happen in between."""
        for request in self.requests:
            for replica in self.turns.chance.sample(self.replicas, self.turns.chance.randint(1, REPLICAS)):
                replica.tasks.append(asyncio.create_task(self.ask(replica, request)))
        for _ in range(4000):
            chance = self.turns.chance.random()
            if kills and chance < 0.01:
                kills -= 1
                self._kill_one()
            elif deletions and chance > 0.985:
                deletions -= 1
                self.delete_a_unit()
            elif chance > 0.9:
                self.report_on_stock(phases)
            if await self.turns.next() is None:
                break

    def _kill_one(self) -> None:
        index = self.turns.chance.randrange(REPLICAS)
        self.replicas[index].die()
        self.replicas[index] = self._replica(f"replica-{index}-{self.server.version}")

    async def settle(self) -> None:
        """Stock is Ready again, time passes, and those who are left sweep."""
        for found in self.of("runtime-stock"):
            self._report(found["metadata"]["name"], "Ready")
        for _ in range(4):
            self.clock.passed += 10
            for replica in self.replicas:
                await alongside(replica.sweep.once(), self.turns)
        await self.quiet()

    async def quiet(self) -> None:
        """Until every cache has heard of everything, and consumed stock is deleted."""
        while await self.turns.next():
            pass

    async def replay(self) -> None:
        await self.quiet()
        for request in self.requests:
            await alongside(self.ask(self.turns.chance.choice(self.replicas), request), self.turns)

    def end(self) -> None:
        for replica in self.replicas:
            replica.die()


def check(world: World) -> None:
    operations = {each["spec"]["operationID"]: each for each in world.server.all(OPERATIONS)}
    succeeded = [each for each in operations.values() if each.get("status", {}).get("state") == "Succeeded"]
    consumed = Counter(each["status"]["stock"]["uid"] for each in succeeded)
    left = world.of("runtime-stock")
    assert all(count == 1 for count in consumed.values()), "stock was given out twice"
    assert len(left) + len(consumed) == world.stock, "stock was lost, or made"
    assert not [each for each in left if Annotation.CLAIMED_BY in each["metadata"].get("annotations", {})]
    committed = {each["status"]["targetUID"] for each in succeeded}
    there = {each["metadata"]["uid"] for each in world.of("runtime-instance")}
    assert there <= committed, "a unit that no operation made"
    assert committed - there <= world.deleted, "a unit is missing that nobody deleted"
    check_storages(world, {each["spec"]["operationID"] for each in succeeded})
    firsts = Counter(operation for operation, answer in world.answers if answer is True)
    assert all(count == 1 for count in firsts.values()), "two were told that they were first"


def check_storages(world: World, succeeded: set[str]) -> None:
    held = {each["metadata"]["name"]: each["spec"].get("attachedTo") for each in world.server.all(GPU_STORAGES)}
    for unit in world.of("runtime-instance"):
        for mount in unit["spec"].get("storageMounts", ()):
            attached = held[mount["name"]]
            assert attached, "a unit mounts what it does not hold"
            assert attached["unit"] == unit["metadata"]["name"], "a unit mounts what another one holds"
    strays = [name for name, each in held.items() if each and each["operationID"] not in succeeded]
    assert not strays, "a storage is held by an operation that made no unit"


def requests(count: int) -> list[CreateUnit]:
    return [
        CreateUnit(
            operation_id=f"op-{index}",
            name=f"unit-{index}",
            namespace="runtime-instance",
            spec_name="g1.1",
            stock_namespace="runtime-stock",
            image="python",
        )
        for index in range(count)
    ]


@contextmanager
def world(seed: int, stock: int, asked: list[CreateUnit]) -> Iterator[World]:
    random.seed(seed)
    made = World(seed, stock, asked)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_without_deaths_every_stock_unit_becomes_one_unit(seed: int) -> None:
    with world(seed, 3, requests(5)) as made:
        await made.run(kills=0, deletions=0)
        outcomes = Counter(answer for _, answer in made.answers)
        assert outcomes[True] == 3, made.answers
        assert not made.of("runtime-stock")
        refused = {operation for operation, answer in made.answers if answer is NoStock}
        served = {operation for operation, answer in made.answers if answer in (True, False)}
        assert refused.isdisjoint(served), "duplicates of one request got different answers"
        check(made)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_with_deaths_and_deletions_nothing_is_lost(seed: int) -> None:
    with world(seed, 4, requests(6)) as made:
        await made.run(kills=4, deletions=2, phases=("Ready", "Ready", "Progressing"))
        await made.settle()
        check(made)
        await made.replay()
        await made.settle()
        check(made)
        last = dict(made.answers[-len(made.requests) :])
        refused = [operation for operation, answer in last.items() if answer is NoStock]
        assert not refused or not made.of("runtime-stock"), "told that there is no stock, and there is"


@pytest.mark.parametrize("seed", range(SEEDS // 3))
async def test_two_operations_want_one_name(seed: int) -> None:
    """One gets it; the other gives its stock back."""
    asked = [msgspec.structs.replace(each, name="wanted") for each in requests(3)]
    with world(seed, 3, asked) as made:
        await made.run(kills=seed % 3, deletions=0)
        await made.settle()
        check(made)
        assert len(made.of("runtime-instance")) <= 1
        await made.replay()
        check(made)
        assert len(made.of("runtime-instance")) == 1
        assert len(made.of("runtime-stock")) == 2


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_storage_has_one_holder(seed: int) -> None:
    """Some want the same storage, some want two of them in another order, and there is too little stock for all."""
    wanted = (("data-0",), ("data-1", "data-0"), ("data-0", "data-2"), ("data-1",), ("data-2", "data-1"))
    asked = [
        msgspec.structs.replace(each, storage_mounts=tuple(StorageMount(name=n, mount_path=f"/{n}") for n in names))
        for each, names in zip(requests(len(wanted)), wanted, strict=True)
    ]
    with world(seed, 3, asked) as made:
        await made.run(kills=seed % 4, deletions=0, phases=("Ready", "Ready", "Progressing"))
        await made.settle()
        check(made)
        await made.replay()
        await made.settle()
        check(made)


async def test_a_create_is_four_writes_and_one_more_after_its_answer() -> None:
    with world(1, 2, requests(1)) as made:
        await made.quiet()
        before = made.server.version
        await alongside(made.ask(made.replicas[0], made.requests[0]), made.turns)
        written = [plural for version, plural, *_ in made.server.history if version > before]
        assert written[:4] == ["operations", "gpuunits", "gpuunits", "operations"]
        await made.quiet()
        assert made.server.version - before == 5
        assert len(made.of("runtime-stock")) == 1


async def test_a_sweep_reads_no_record_of_what_its_own_replica_committed() -> None:
    with world(1, 2, requests(2)) as made:
        await made.quiet()
        for request in made.requests:
            await alongside(made.ask(made.replicas[0], request), made.turns)
        await made.quiet()
        for replica in made.replicas:
            replica.client.reads = 0
        await made.settle()
        assert [replica.client.reads for replica in made.replicas] == [0, 2, 2]


async def test_stock_of_an_operation_that_another_gave_up_is_not_deleted_by_who_made_its_unit() -> None:
    with world(1, 1, requests(1)) as made:
        await made.quiet()
        asked = asyncio.create_task(made.ask(made.replicas[0], made.requests[0]))
        while not made.of("runtime-instance"):
            await made.turns.next()
        (record,) = made.server.all(OPERATIONS)
        given_up = {"state": "GivingUp", "stock": record["spec"]["stock"], "attempt": 1}
        status = given_up | {"error": {"code": "conflict", "message": "the cluster refuses it"}}
        made.server.patch(OPERATIONS, Key("runtime-system", operation_name("op-0")), {"status": status}, "status")
        await alongside(asked, made.turns)
        await made.quiet()
        assert made.answers == [("op-0", Conflict)]
        assert not made.of("runtime-instance")
        assert len(made.of("runtime-stock")) == 1
        check(made)


async def test_stock_that_nobody_deletes_after_the_answer_is_offered_to_nobody_and_goes_with_a_sweep() -> None:
    with world(1, 1, requests(2)) as made:
        made.replicas[0].stop_deleting()
        await alongside(made.ask(made.replicas[0], made.requests[0]), made.turns)
        await made.quiet()
        assert len(made.of("runtime-stock")) == 1
        for replica in made.replicas:
            await alongside(made.ask(replica, made.requests[1]), made.turns)
        assert [answer for _, answer in made.answers] == [True, NoStock, NoStock, NoStock]
        await made.settle()
        check(made)
        assert not made.of("runtime-stock")


async def test_after_an_operation_is_forgotten_its_name_means_nothing_any_more() -> None:
    """The unit stays, and the same request again finds its name taken and takes no stock."""
    with world(1, 2, requests(1)) as made:
        await made.run(kills=0, deletions=0)
        made.server.delete(OPERATIONS, Key("runtime-system", operation_name("op-0")), None)
        before = [each["metadata"]["uid"] for each in made.of("runtime-instance")]
        await made.replay()
        await made.settle()
        assert made.answers[-1] == ("op-0", Conflict)
        assert [each["metadata"]["uid"] for each in made.of("runtime-instance")] == before
        assert len(made.of("runtime-stock")) == 1
