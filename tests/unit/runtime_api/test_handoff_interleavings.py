"""The handoff loses no stock, uses no stock unit twice and creates one unit per operation, in any order of events.

Every seed is another order of events among three replicas: requests that are sent to several replicas at the same time,
stale caches, a controller that updates the status of stock, users that delete units, and processes that are killed
between any two steps.
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
from gpu_runtime.contract.errors import AlreadyExists, Conflict, Gone, NoStock
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
    """A clock that changes only when a test advances it."""

    def __init__(self) -> None:
        self.elapsed_seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return self.elapsed_seconds


@dataclass
class HandoffReplica:
    """The parts of a runtime API that the handoff needs, with their own client."""

    server: FakeKubeServer
    scheduler: InterleavingScheduler
    name: str
    clock: ManualClock
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    client: FakeClient = field(init=False)
    deleter_task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.client = FakeClient(self.server, self.scheduler, self.name)
        client = cast(KubeClient, self.client)
        informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
        operation_store = OperationStore(client, "runtime-system", self.clock)
        consumed_deleter, attacher = ConsumedStockDeleter(client, informers), StorageAttacher(client, informers)
        self.handoff = Handoff(
            client,
            informers,
            operation_store,
            StockSelector(informers, operation_store),
            attacher,
            consumed_deleter=consumed_deleter,
        )
        executors = {OperationType.CREATE_UNIT: self.handoff}
        self.recovery = OperationRecovery(
            client, informers, operation_store, executors, settings=OperationSettings(), clock=self.clock
        )
        self.tasks += [asyncio.create_task(informer.run()) for informer in informers.all]
        self.deleter_task = asyncio.create_task(consumed_deleter.run(asyncio.Event(), grace_seconds=0))
        self.tasks.append(self.deleter_task)

    def stop_deleting(self) -> None:
        """Behave, as far as consumed stock is concerned, like a replica that is killed right after its response."""
        self.deleter_task.cancel()

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
    outcomes: list[tuple[str, object]] = field(default_factory=list)
    """For each response: its operationID, and whether it created the unit (201) or the type of the fault."""
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

    def _replica(self, name: str) -> HandoffReplica:
        return HandoffReplica(self.server, self.scheduler, name, self.clock)

    async def create_unit(self, replica: HandoffReplica, request: CreateUnit) -> None:
        try:
            _, created = await replica.handoff.create(request)
            self.outcomes.append((request.operation_id, created))
        except (NoStock, Gone, Conflict) as fault:
            self.outcomes.append((request.operation_id, type(fault)))

    def report_on_stock(self, phases: Sequence[str] = ("Ready",)) -> None:
        """Update the status of a stock unit, as the controller does. That changes the resourceVersion that claims
        depend on."""
        names = [unit["metadata"]["name"] for unit in self.list_units("runtime-stock")]
        if names:
            self._report(self.scheduler.rng.choice(names), self.scheduler.rng.choice(phases))

    def _report(self, name: str, phase: str) -> None:
        status = {"status": {"phase": phase, "lastSyncTime": str(self.server.version)}}
        self.server.patch(GPU_UNITS, ObjectKey("runtime-stock", name), status, "status")

    def delete_a_unit(self) -> None:
        """Delete a unit, as a user does. That may happen before the response to the create is sent."""
        units = self.list_units("runtime-instance")
        if units:
            metadata = self.scheduler.rng.choice(units)["metadata"]
            self.server.delete(GPU_UNITS, ObjectKey("runtime-instance", metadata["name"]), metadata["uid"])
            self.deleted.add(metadata["uid"])

    def list_units(self, namespace: str) -> list[Document]:
        return [each for each in self.server.all(GPU_UNITS) if each["metadata"]["namespace"] == namespace]

    async def run(self, *, kills: int, deletions: int, phases: Sequence[str] = ("Ready",)) -> None:
        """Send every request to several replicas at the same time, with random kills, deletions and status updates."""
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
        """Make all stock Ready, advance the clock and run recovery on all replicas."""
        for unit in self.list_units("runtime-stock"):
            self._report(unit["metadata"]["name"], "Ready")
        for _ in range(4):
            self.clock.elapsed_seconds += 10
            for replica in self.replicas:
                await run_interleaved(replica.recovery.run_once(), self.scheduler)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Run until all caches are up to date and consumed stock is deleted."""
        while await self.scheduler.run_next():
            pass

    async def replay(self) -> None:
        await self.run_until_idle()
        for request in self.requests:
            await run_interleaved(self.create_unit(self.scheduler.rng.choice(self.replicas), request), self.scheduler)

    def end(self) -> None:
        for replica in self.replicas:
            replica.kill()


def check_conservation(simulation: HandoffSimulation) -> None:
    operations = {each["spec"]["operationID"]: each for each in simulation.server.all(OPERATIONS)}
    succeeded = [each for each in operations.values() if each.get("status", {}).get("state") == "Succeeded"]
    consumed = Counter(each["status"]["stock"]["uid"] for each in succeeded)
    remaining = simulation.list_units("runtime-stock")
    assert all(count == 1 for count in consumed.values()), "two operations consumed the same stock unit"
    assert len(remaining) + len(consumed) == simulation.stock, "a stock unit was lost or created"
    assert not [each for each in remaining if Annotation.CLAIMED_BY in each["metadata"].get("annotations", {})]
    committed = {each["status"]["targetUID"] for each in succeeded}
    existing = {each["metadata"]["uid"] for each in simulation.list_units("runtime-instance")}
    assert existing <= committed, "a unit exists that no operation committed to"
    assert committed - existing <= simulation.deleted, "a unit is missing that no user deleted"
    check_storages(simulation, {each["spec"]["operationID"] for each in succeeded})
    creations = Counter(operation for operation, outcome in simulation.outcomes if outcome is True)
    assert all(count == 1 for count in creations.values()), "two responses reported the creation of one unit"


def check_storages(simulation: HandoffSimulation, succeeded: set[str]) -> None:
    storages = simulation.server.all(GPU_STORAGES)
    attachments = {each["metadata"]["name"]: each["spec"].get("attachedTo") for each in storages}
    for unit in simulation.list_units("runtime-instance"):
        for mount in unit["spec"].get("storageMounts", ()):
            attachment = attachments[mount["name"]]
            assert attachment, "a unit mounts a storage that is not attached to it"
            assert attachment["unit"] == unit["metadata"]["name"], "a unit mounts a storage of another unit"
    orphans = [name for name, each in attachments.items() if each and each["operationID"] not in succeeded]
    assert not orphans, "a storage is attached for an operation that created no unit"


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
def handoff_simulation(seed: int, stock: int, create_requests: list[CreateUnit]) -> Iterator[HandoffSimulation]:
    random.seed(seed)
    simulation = HandoffSimulation(seed, stock, create_requests)
    try:
        yield simulation
    finally:
        simulation.end()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_without_kills_every_stock_unit_becomes_one_unit(seed: int) -> None:
    with handoff_simulation(seed, 3, requests(5)) as simulation:
        await simulation.run(kills=0, deletions=0)
        counts = Counter(outcome for _, outcome in simulation.outcomes)
        assert counts[True] == 3, simulation.outcomes
        assert not simulation.list_units("runtime-stock")
        rejected = {operation for operation, outcome in simulation.outcomes if outcome is NoStock}
        accepted = {operation for operation, outcome in simulation.outcomes if outcome in (True, False)}
        assert rejected.isdisjoint(accepted), "duplicates of one request got different responses"
        check_conservation(simulation)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_with_kills_and_deletions_stock_is_conserved(seed: int) -> None:
    with handoff_simulation(seed, 4, requests(6)) as simulation:
        await simulation.run(kills=4, deletions=2, phases=("Ready", "Ready", "Progressing"))
        await simulation.run_recovery()
        check_conservation(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_conservation(simulation)
        last = dict(simulation.outcomes[-len(simulation.requests) :])
        rejected = [operation for operation, outcome in last.items() if outcome is NoStock]
        assert not rejected or not simulation.list_units("runtime-stock"), "NoStock although stock exists"


@pytest.mark.parametrize("seed", range(SEEDS // 3))
async def test_one_of_several_operations_with_one_unit_name_succeeds(seed: int) -> None:
    """One operation creates the unit. The others release their stock."""
    same_name = [msgspec.structs.replace(each, name="same") for each in requests(3)]
    with handoff_simulation(seed, 3, same_name) as simulation:
        await simulation.run(kills=seed % 3, deletions=0)
        await simulation.run_recovery()
        check_conservation(simulation)
        assert len(simulation.list_units("runtime-instance")) <= 1
        await simulation.replay()
        check_conservation(simulation)
        assert len(simulation.list_units("runtime-instance")) == 1
        assert len(simulation.list_units("runtime-stock")) == 2


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_storage_is_attached_to_one_unit_only(seed: int) -> None:
    """Some requests mount the same storage, some mount two in different order, and the stock does not suffice for
    all."""
    mounts = (("data-0",), ("data-1", "data-0"), ("data-0", "data-2"), ("data-1",), ("data-2", "data-1"))
    with_storages = [
        msgspec.structs.replace(each, storage_mounts=tuple(StorageMount(name=n, mount_path=f"/{n}") for n in names))
        for each, names in zip(requests(len(mounts)), mounts, strict=True)
    ]
    with handoff_simulation(seed, 3, with_storages) as simulation:
        await simulation.run(kills=seed % 4, deletions=0, phases=("Ready", "Ready", "Progressing"))
        await simulation.run_recovery()
        check_conservation(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_conservation(simulation)


async def test_create_makes_four_writes_and_one_more_after_its_response() -> None:
    with handoff_simulation(1, 2, requests(1)) as simulation:
        await simulation.run_until_idle()
        before = simulation.server.version
        await run_interleaved(
            simulation.create_unit(simulation.replicas[0], simulation.requests[0]), simulation.scheduler
        )
        written = [plural for version, plural, *_ in simulation.server.history if version > before]
        assert written[:4] == ["operations", "gpuunits", "gpuunits", "operations"]
        await simulation.run_until_idle()
        assert simulation.server.version - before == 5
        assert len(simulation.list_units("runtime-stock")) == 1


async def test_recovery_does_not_read_operations_of_its_own_replica() -> None:
    with handoff_simulation(1, 2, requests(2)) as simulation:
        await simulation.run_until_idle()
        for request in simulation.requests:
            await run_interleaved(simulation.create_unit(simulation.replicas[0], request), simulation.scheduler)
        await simulation.run_until_idle()
        for replica in simulation.replicas:
            replica.client.reads = 0
        await simulation.run_recovery()
        assert [replica.client.reads for replica in simulation.replicas] == [0, 2, 2]


async def test_stock_of_an_abandoned_attempt_is_not_deleted_by_its_creator() -> None:
    with handoff_simulation(1, 1, requests(1)) as simulation:
        await simulation.run_until_idle()
        create = asyncio.create_task(simulation.create_unit(simulation.replicas[0], simulation.requests[0]))
        while not simulation.list_units("runtime-instance"):
            await simulation.scheduler.run_next()
        (record,) = simulation.server.all(OPERATIONS)
        rolling_back = {"state": "RollingBack", "stock": record["spec"]["stock"], "attempt": 1}
        status = rolling_back | {"error": {"code": "conflict", "message": "rejected by a policy"}}
        simulation.server.patch(
            OPERATIONS, ObjectKey("runtime-system", operation_name("op-0")), {"status": status}, "status"
        )
        await run_interleaved(create, simulation.scheduler)
        await simulation.run_until_idle()
        assert simulation.outcomes == [("op-0", Conflict)]
        assert not simulation.list_units("runtime-instance")
        assert len(simulation.list_units("runtime-stock")) == 1
        check_conservation(simulation)


async def test_consumed_stock_is_never_offered_and_recovery_deletes_it() -> None:
    with handoff_simulation(1, 1, requests(2)) as simulation:
        simulation.replicas[0].stop_deleting()
        await run_interleaved(
            simulation.create_unit(simulation.replicas[0], simulation.requests[0]), simulation.scheduler
        )
        await simulation.run_until_idle()
        assert len(simulation.list_units("runtime-stock")) == 1
        for replica in simulation.replicas:
            await run_interleaved(simulation.create_unit(replica, simulation.requests[1]), simulation.scheduler)
        assert [outcome for _, outcome in simulation.outcomes] == [True, NoStock, NoStock, NoStock]
        await simulation.run_recovery()
        check_conservation(simulation)
        assert not simulation.list_units("runtime-stock")


async def test_replay_after_eviction_of_the_operation_is_a_name_conflict() -> None:
    """The unit stays. The replay fails because the name exists, and claims no stock."""
    with handoff_simulation(1, 2, requests(1)) as simulation:
        await simulation.run(kills=0, deletions=0)
        simulation.server.delete(OPERATIONS, ObjectKey("runtime-system", operation_name("op-0")), None)
        before = [each["metadata"]["uid"] for each in simulation.list_units("runtime-instance")]
        await simulation.replay()
        await simulation.run_recovery()
        assert simulation.outcomes[-1] == ("op-0", AlreadyExists)
        assert [each["metadata"]["uid"] for each in simulation.list_units("runtime-instance")] == before
        assert len(simulation.list_units("runtime-stock")) == 1
