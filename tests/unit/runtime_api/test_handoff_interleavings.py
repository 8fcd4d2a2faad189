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
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.recovery import OperationRecovery
from gpu_runtime.runtime_api.settings import APINamespaceSettings, OperationSettings
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStockDeleter
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.stock_selector import StockSelector
from tests.unit.runtime_api.interleaved_kube import (
    Document,
    FakeClient,
    FakeKubeServer,
    InterleavingScheduler,
    run_interleaved,
)

SEEDS = 150
REPLICAS = 3
STORAGES = ("data-0", "data-1", "data-2")


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.elapsed_seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.elapsed_seconds


@dataclass
class HandoffReplica:
    """The parts of a runtime API that the handoff needs, on a client of its own."""

    server: FakeKubeServer
    scheduler: InterleavingScheduler
    name: str
    clock: ManualClock
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    client: FakeClient = field(init=False)
    deleting: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.client = FakeClient(self.server, self.scheduler, self.name)
        client = cast(KubeClient, self.client)
        caches = new_informers(client, APINamespaceSettings(), KubeMetrics())
        ledger = OperationStore(client, "runtime-system", self.clock)
        consumed, attachments = ConsumedStockDeleter(client, caches), StorageAttacher(client, caches)
        self.handoff = Handoff(
            client, caches, ledger, StockSelector(caches, ledger), attachments, consumed_deleter=consumed
        )
        drivers = {OperationType.CREATE_UNIT: self.handoff}
        self.sweep = OperationRecovery(client, caches, ledger, drivers, settings=OperationSettings(), clock=self.clock)
        self.tasks += [asyncio.create_task(cache.run()) for cache in caches.all]
        self.deleting = asyncio.create_task(consumed.run(asyncio.Event(), grace_seconds=0))
        self.tasks.append(self.deleting)

    def stop_deleting(self) -> None:
        """As one that dies right after its answer, for all that becomes of the stock."""
        self.deleting.cancel()

    def kill(self) -> None:
        for task in self.tasks:
            task.cancel()


@dataclass
class HandoffSimulation:
    seed: int
    stock: int
    requests: list[CreateUnit]
    server: FakeKubeServer = field(default_factory=FakeKubeServer)
    clock: ManualClock = field(default_factory=ManualClock)
    answers: list[tuple[str, object]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    """Units that a user has deleted."""

    def __post_init__(self) -> None:
        self.scheduler = InterleavingScheduler(self.seed)
        for index in range(self.stock):
            self._add_stock(f"stock-{index}")
        for name in STORAGES:
            metadata = {"name": name, "namespace": "runtime-instance"}
            self.server.create(GPU_STORAGES, {"metadata": metadata, "spec": {"size": "1Gi"}})
        self.replicas = [self._replica(f"replica-{index}") for index in range(REPLICAS)]

    def _add_stock(self, name: str) -> None:
        manifest: Document = {"metadata": {"name": name, "namespace": "runtime-stock"}, "spec": {"specName": "g1.1"}}
        self.server.create(GPU_UNITS, manifest)
        self.server.patch(GPU_UNITS, ObjectKey("runtime-stock", name), {"status": {"phase": "Ready"}}, "status")

    def _replica(self, who: str) -> HandoffReplica:
        return HandoffReplica(self.server, self.scheduler, who, self.clock)

    async def create_unit(self, replica: HandoffReplica, request: CreateUnit) -> None:
        try:
            _, first = await replica.handoff.create(request)
            self.answers.append((request.operation_id, first))
        except (NoStock, Gone, Conflict) as fault:
            self.answers.append((request.operation_id, type(fault)))

    def report_on_stock(self, phases: Sequence[str] = ("Ready",)) -> None:
        """As the controller does: a status changes, and with it the version on which claims are conditional."""
        names = [found["metadata"]["name"] for found in self.list_units("runtime-stock")]
        if names:
            self._report(self.scheduler.rng.choice(names), self.scheduler.rng.choice(phases))

    def _report(self, name: str, phase: str) -> None:
        status = {"status": {"phase": phase, "lastSyncTime": str(self.server.version)}}
        self.server.patch(GPU_UNITS, ObjectKey("runtime-stock", name), status, "status")

    def delete_a_unit(self) -> None:
        """As a user does, who may well be faster than the answer to the create."""
        units = self.list_units("runtime-instance")
        if units:
            metadata = self.scheduler.rng.choice(units)["metadata"]
            self.server.delete(GPU_UNITS, ObjectKey("runtime-instance", metadata["name"]), metadata["uid"])
            self.deleted.add(metadata["uid"])

    def list_units(self, namespace: str) -> list[Document]:
        return [each for each in self.server.all(GPU_UNITS) if each["metadata"]["namespace"] == namespace]

    async def run(self, *, kills: int, deletions: int, phases: Sequence[str] = ("Ready",)) -> None:
        """Every request goes to several replicas at once, and anything may happen in between."""
        for request in self.requests:
            for replica in self.scheduler.rng.sample(self.replicas, self.scheduler.rng.randint(1, REPLICAS)):
                replica.tasks.append(asyncio.create_task(self.create_unit(replica, request)))
        for _ in range(4000):
            chance = self.scheduler.rng.random()
            if kills and chance < 0.01:
                kills -= 1
                self._kill_one()
            elif deletions and chance > 0.985:
                deletions -= 1
                self.delete_a_unit()
            elif chance > 0.9:
                self.report_on_stock(phases)
            if await self.scheduler.run_next() is None:
                break

    def _kill_one(self) -> None:
        index = self.scheduler.rng.randrange(REPLICAS)
        self.replicas[index].kill()
        self.replicas[index] = self._replica(f"replica-{index}-{self.server.version}")

    async def run_recovery(self) -> None:
        """Stock is Ready again, time passes, and those who are left sweep."""
        for found in self.list_units("runtime-stock"):
            self._report(found["metadata"]["name"], "Ready")
        for _ in range(4):
            self.clock.elapsed_seconds += 10
            for replica in self.replicas:
                await run_interleaved(replica.sweep.run_once(), self.scheduler)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Until every cache has heard of everything, and consumed stock is deleted."""
        while await self.scheduler.run_next():
            pass

    async def replay(self) -> None:
        await self.run_until_idle()
        for request in self.requests:
            await run_interleaved(self.create_unit(self.scheduler.rng.choice(self.replicas), request), self.scheduler)

    def end(self) -> None:
        for replica in self.replicas:
            replica.kill()


def check_conservation(world: HandoffSimulation) -> None:
    operations = {each["spec"]["operationID"]: each for each in world.server.all(OPERATIONS)}
    succeeded = [each for each in operations.values() if each.get("status", {}).get("state") == "Succeeded"]
    consumed = Counter(each["status"]["stock"]["uid"] for each in succeeded)
    left = world.list_units("runtime-stock")
    assert all(count == 1 for count in consumed.values()), "stock was given out twice"
    assert len(left) + len(consumed) == world.stock, "stock was lost, or made"
    assert not [each for each in left if Annotation.CLAIMED_BY in each["metadata"].get("annotations", {})]
    committed = {each["status"]["targetUID"] for each in succeeded}
    there = {each["metadata"]["uid"] for each in world.list_units("runtime-instance")}
    assert there <= committed, "a unit that no operation made"
    assert committed - there <= world.deleted, "a unit is missing that nobody deleted"
    check_storages(world, {each["spec"]["operationID"] for each in succeeded})
    firsts = Counter(operation for operation, answer in world.answers if answer is True)
    assert all(count == 1 for count in firsts.values()), "two were told that they were first"


def check_storages(world: HandoffSimulation, succeeded: set[str]) -> None:
    held = {each["metadata"]["name"]: each["spec"].get("attachedTo") for each in world.server.all(GPU_STORAGES)}
    for unit in world.list_units("runtime-instance"):
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
def handoff_simulation(seed: int, stock: int, asked: list[CreateUnit]) -> Iterator[HandoffSimulation]:
    random.seed(seed)
    made = HandoffSimulation(seed, stock, asked)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_without_kills_every_stock_unit_becomes_one_unit(seed: int) -> None:
    with handoff_simulation(seed, 3, requests(5)) as made:
        await made.run(kills=0, deletions=0)
        outcomes = Counter(answer for _, answer in made.answers)
        assert outcomes[True] == 3, made.answers
        assert not made.list_units("runtime-stock")
        refused = {operation for operation, answer in made.answers if answer is NoStock}
        served = {operation for operation, answer in made.answers if answer in (True, False)}
        assert refused.isdisjoint(served), "duplicates of one request got different answers"
        check_conservation(made)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_with_kills_and_deletions_stock_is_conserved(seed: int) -> None:
    with handoff_simulation(seed, 4, requests(6)) as made:
        await made.run(kills=4, deletions=2, phases=("Ready", "Ready", "Progressing"))
        await made.run_recovery()
        check_conservation(made)
        await made.replay()
        await made.run_recovery()
        check_conservation(made)
        last = dict(made.answers[-len(made.requests) :])
        refused = [operation for operation, answer in last.items() if answer is NoStock]
        assert not refused or not made.list_units("runtime-stock"), "told that there is no stock, and there is"


@pytest.mark.parametrize("seed", range(SEEDS // 3))
async def test_two_operations_with_one_unit_name(seed: int) -> None:
    """One gets it; the other gives its stock back."""
    asked = [msgspec.structs.replace(each, name="wanted") for each in requests(3)]
    with handoff_simulation(seed, 3, asked) as made:
        await made.run(kills=seed % 3, deletions=0)
        await made.run_recovery()
        check_conservation(made)
        assert len(made.list_units("runtime-instance")) <= 1
        await made.replay()
        check_conservation(made)
        assert len(made.list_units("runtime-instance")) == 1
        assert len(made.list_units("runtime-stock")) == 2


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_storage_has_one_holder(seed: int) -> None:
    """Some want the same storage, some want two of them in another order, and there is too little stock for all."""
    wanted = (("data-0",), ("data-1", "data-0"), ("data-0", "data-2"), ("data-1",), ("data-2", "data-1"))
    asked = [
        msgspec.structs.replace(each, storage_mounts=tuple(StorageMount(name=n, mount_path=f"/{n}") for n in names))
        for each, names in zip(requests(len(wanted)), wanted, strict=True)
    ]
    with handoff_simulation(seed, 3, asked) as made:
        await made.run(kills=seed % 4, deletions=0, phases=("Ready", "Ready", "Progressing"))
        await made.run_recovery()
        check_conservation(made)
        await made.replay()
        await made.run_recovery()
        check_conservation(made)


async def test_a_create_is_four_writes_and_one_more_after_its_answer() -> None:
    with handoff_simulation(1, 2, requests(1)) as made:
        await made.run_until_idle()
        before = made.server.version
        await run_interleaved(made.create_unit(made.replicas[0], made.requests[0]), made.scheduler)
        written = [plural for version, plural, *_ in made.server.history if version > before]
        assert written[:4] == ["operations", "gpuunits", "gpuunits", "operations"]
        await made.run_until_idle()
        assert made.server.version - before == 5
        assert len(made.list_units("runtime-stock")) == 1


async def test_recovery_does_not_read_operations_of_its_own_replica() -> None:
    with handoff_simulation(1, 2, requests(2)) as made:
        await made.run_until_idle()
        for request in made.requests:
            await run_interleaved(made.create_unit(made.replicas[0], request), made.scheduler)
        await made.run_until_idle()
        for replica in made.replicas:
            replica.client.reads = 0
        await made.run_recovery()
        assert [replica.client.reads for replica in made.replicas] == [0, 2, 2]


async def test_stock_of_an_abandoned_attempt_is_not_deleted_by_its_creator() -> None:
    with handoff_simulation(1, 1, requests(1)) as made:
        await made.run_until_idle()
        asked = asyncio.create_task(made.create_unit(made.replicas[0], made.requests[0]))
        while not made.list_units("runtime-instance"):
            await made.scheduler.run_next()
        (record,) = made.server.all(OPERATIONS)
        given_up = {"state": "RollingBack", "stock": record["spec"]["stock"], "attempt": 1}
        status = given_up | {"error": {"code": "conflict", "message": "the cluster refuses it"}}
        made.server.patch(OPERATIONS, ObjectKey("runtime-system", operation_name("op-0")), {"status": status}, "status")
        await run_interleaved(asked, made.scheduler)
        await made.run_until_idle()
        assert made.answers == [("op-0", Conflict)]
        assert not made.list_units("runtime-instance")
        assert len(made.list_units("runtime-stock")) == 1
        check_conservation(made)


async def test_consumed_stock_is_never_offered_and_recovery_deletes_it() -> None:
    with handoff_simulation(1, 1, requests(2)) as made:
        made.replicas[0].stop_deleting()
        await run_interleaved(made.create_unit(made.replicas[0], made.requests[0]), made.scheduler)
        await made.run_until_idle()
        assert len(made.list_units("runtime-stock")) == 1
        for replica in made.replicas:
            await run_interleaved(made.create_unit(replica, made.requests[1]), made.scheduler)
        assert [answer for _, answer in made.answers] == [True, NoStock, NoStock, NoStock]
        await made.run_recovery()
        check_conservation(made)
        assert not made.list_units("runtime-stock")


async def test_replay_after_eviction_of_the_operation_is_a_name_conflict() -> None:
    """The unit stays, and the same request again finds its name taken and takes no stock."""
    with handoff_simulation(1, 2, requests(1)) as made:
        await made.run(kills=0, deletions=0)
        made.server.delete(OPERATIONS, ObjectKey("runtime-system", operation_name("op-0")), None)
        before = [each["metadata"]["uid"] for each in made.list_units("runtime-instance")]
        await made.replay()
        await made.run_recovery()
        assert made.answers[-1] == ("op-0", Conflict)
        assert [each["metadata"]["uid"] for each in made.list_units("runtime-instance")] == before
        assert len(made.list_units("runtime-stock")) == 1
