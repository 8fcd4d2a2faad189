"""Seeding on a real API server: an operation creates all its stock units once, or none, also if a replica is killed."""

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from lightkube import Client as LightkubeClient
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ResourceQuota

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationType
from gpu_runtime.contract.crd.well_known import Annotation, stock_unit_name
from gpu_runtime.contract.errors import NotFound, OperationReused
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.stock import seed_decision
from gpu_runtime.runtime_api.stock.requests import ListStock, SeedStock
from localcluster.supervisor_client import ProcessFailed, wait_until
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.service_replicas import ServiceReplica, SimulatedKill
from tests.integration.runtime_api.stock.conftest import StartReplica

STOCK_QUOTA = "count/gpuunits.runtime.lokiwager.io"


def request(**changes: Any) -> SeedStock:
    fields: dict[str, Any] = {"operation_id": "seed", "spec_name": "g1.1", "memory": "1Gi", "gpu": 1, "replicas": 3}
    return SeedStock(**fields | changes)


NAMES = [stock_unit_name("seed", index) for index in range(3)]


async def seed(replica: ServiceReplica, seed_request: SeedStock) -> str:
    """Execute the whole operation and return its final state."""
    recorded = await replica.stock.seed(seed_request)
    return (await replica.runner.resume(recorded.operation)).status.state


async def test_concurrent_requests_on_two_replicas_seed_once(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        first, second = await asyncio.gather(one.stock.seed(request()), other.stock.seed(request(memory="1024Mi")))
        assert sorted([first.new, second.new]) == [False, True]
        assert first.operation.metadata.uid == second.operation.metadata.uid
        finished = await asyncio.gather(one.runner.resume(first.operation), other.runner.resume(second.operation))
        assert {each.status.state for each in finished} == {"Succeeded"}
        units = await one.units()
        assert sorted(units) == NAMES
        assert finished[0].status.stock_uids == finished[1].status.stock_uids
        assert set(finished[0].status.stock_uids) == {unit.metadata.uid for unit in units.values()}


async def test_stock_unit_has_the_reservation_and_names_its_operation(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        await seed(replica, request())
        operation = (await replica.operations())["seed"]
        for unit in (await replica.units()).values():
            assert (unit.spec.spec_name, unit.spec.memory, unit.spec.gpu, unit.spec.image) == ("g1.1", "1Gi", 1, "")
            assert unit.metadata.annotations == {
                Annotation.OPERATION_ID: "seed",
                Annotation.OPERATION_UID: operation.metadata.uid,
                Annotation.REQUEST_HASH: operation.spec.request_hash,
            }


async def test_other_request_with_the_same_operation_id_is_rejected(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        await seed(one, request())
        with pytest.raises(OperationReused, match="operationID seed"):
            await other.stock.seed(request(replicas=4))
        assert len(await one.units()) == 3


async def test_replay_does_not_recreate_consumed_stock(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        await seed(one, request())
        consumed = (await one.units())[NAMES[0]]
        await one.client.delete(GPU_UNITS, consumed.metadata.key, uid=consumed.metadata.uid)
        replayed = await other.stock.seed(request())
        assert not replayed.new
        assert other.runner.enqueued == []
        await other.runner.resume(replayed.operation)
        assert sorted(await other.units()) == NAMES[1:]


WRITES = range(1, 7)
"""The writes of seeding three units: record the operation, mark it running, create the units, mark it succeeded."""


@pytest.mark.parametrize("after_write", [False, True], ids=["before-write", "after-write"])
@pytest.mark.parametrize("at_write", WRITES)
async def test_seeding_killed_at_any_write_is_resumed_by_another_replica(
    start_replica: StartReplica, at_write: int, after_write: bool
) -> None:
    async with start_replica() as one, start_replica() as other:
        with pytest.raises(SimulatedKill):
            await seed(one.killed_at_write(at_write, after_write=after_write), request())
        assert await seed(other, request()) == "Succeeded"
        units = await other.units()
        assert sorted(units) == NAMES
        operation = (await other.operations())["seed"]
        assert set(operation.status.stock_uids) == {unit.metadata.uid for unit in units.values()}


async def test_resumed_seeding_continues_after_the_recorded_progress(
    start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writes are: record, mark running, two units, progress. The kill is before the third unit."""
    monkeypatch.setattr(seed_decision, "SEED_BATCH_SIZE", 2)
    async with start_replica() as one, start_replica() as other:
        with pytest.raises(SimulatedKill):
            await seed(one.killed_at_write(6, after_write=False), request())
        job = await other.jobs.get("seed")
        assert (job.status, job.requested, job.seeded) == ("running", 3, 2)
        first = (await other.units())[NAMES[0]]
        await other.client.delete(GPU_UNITS, first.metadata.key, uid=first.metadata.uid)
        assert await seed(other, request()) == "Succeeded"
        assert sorted(await other.units()) == NAMES[1:], "a recorded stock unit must not be created again"


@pytest.fixture
def quota_of_two(kube: LightkubeClient, namespace: str) -> None:
    """A quota that counts stock units.

    The quota controller discovers new kinds every 30 seconds, and does not count for quotas that existed before.
    """
    quota_spec = ResourceQuotaSpec(hard={STOCK_QUOTA: "2"})
    deadline, number = time.monotonic() + 240, 0
    while True:
        name = f"stock-{number}"
        kube.create(
            ResourceQuota(metadata=ObjectMeta(name=name, namespace=namespace), spec=quota_spec), namespace=namespace
        )
        try:
            wait_until(partial(is_counted, kube, namespace, name), 10, lambda: "the quota does not count")
        except ProcessFailed:
            assert time.monotonic() < deadline
            kube.delete(ResourceQuota, name, namespace=namespace)
            number += 1
        else:
            return


def is_counted(kube: LightkubeClient, namespace: str, name: str) -> bool:
    status = kube.get(ResourceQuota, name, namespace=namespace).status
    return bool(status and status.used and STOCK_QUOTA in status.used)


@pytest.mark.usefixtures("quota_of_two")
async def test_seeding_rejected_by_a_quota_leaves_no_stock(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        assert await seed(one, request()) == "Failed"
        assert await one.units() == {}
        job = await other.jobs.get("seed")
        assert (job.status, job.seeded) == ("failed", 0)
        assert job.error
        assert job.error.code == "quota_exceeded"
        assert "exceeded quota" in job.error.message
        assert job.finished_at
        replayed = await other.stock.seed(request())
        assert (replayed.new, replayed.operation.status.state) == (False, "Failed")


ROLLBACK_WRITES = range(2, 11)
"""The writes are: mark running, three creates of which two succeed, mark rolling back, two deletes, mark failed. A kill
at a later write never happens."""


@pytest.mark.usefixtures("quota_of_two")
@pytest.mark.parametrize("after_write", [False, True], ids=["before-write", "after-write"])
async def test_rollback_killed_at_any_write_is_finished_by_another_replica(
    start_replica: StartReplica, after_write: bool
) -> None:
    async with start_replica() as one, start_replica() as other:
        killed = 0
        for at_write in ROLLBACK_WRITES:
            seed_request = request(operation_id=f"seed-{at_write}")
            try:
                await seed(one.killed_at_write(at_write, after_write=after_write), seed_request)
            except SimulatedKill:
                killed += 1
            assert await seed(other, seed_request) == "Failed"
            assert await other.units() == {}
        assert killed >= 7


async def test_stock_of_an_evicted_operation_is_not_adopted_by_its_successor(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        await seed(replica, request(replicas=1))
        before = await replica.units()
        evicted = (await replica.operations())["seed"]
        await replica.client.delete(OPERATIONS, evicted.metadata.key, uid=evicted.metadata.uid)
        assert await seed(replica, request(replicas=2)) == "Failed"
        assert await replica.units() == before
        error = (await replica.operations())["seed"].status.error
        assert error
        assert error.code == "already_exists"
        assert "choose a new operationID" in error.message


async def test_seeding_runs_in_the_background_of_the_first_replica(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        operations = OperationRunner(replica.operation_store, replica.runner.executors, BackgroundQueue())
        stopping = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(operations.queue.run(stopping, grace_seconds=5))
            operations.enqueue((await replica.stock.seed(request(replicas=30))).operation)
            key = replica.operation_store.key("seed")
            await eventually(
                lambda: replica.caches.unfinished_operations.store.get(key) is not None, "the operation is cached"
            )
            await eventually(
                lambda: replica.caches.unfinished_operations.store.get(key) is None, "the operation is finished"
            )
            stopping.set()
        assert (await replica.jobs.get("seed")).status == "succeeded"
        assert len(await replica.units()) == 30


async def test_seeded_stock_is_listed_before_the_watch_event(start_replica: StartReplica) -> None:
    async with start_replica(watching=False) as replica:
        await seed(replica, request())
        assert [unit.name for unit in replica.stock.list(ListStock())[0]] == NAMES


async def test_operation_is_readable_on_every_replica(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        with pytest.raises(NotFound, match="operation seed does not exist"):
            await other.jobs.get("seed")
        await one.stock.seed(request())
        accepted = await other.jobs.get("seed")
        assert (accepted.status, accepted.type, accepted.seeded) == ("accepted", OperationType.SEED_STOCK.value, 0)
        assert accepted.created_at
        await seed(one, request())
        finished = await other.jobs.get("seed")
        assert (finished.status, finished.seeded, finished.error) == ("succeeded", 3, None)
        assert finished.started_at
        assert finished.finished_at


async def test_stock_list_has_pages_and_filters(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        await seed(one, request())
        await seed(one, request(operation_id="more", spec_name="g2.1", replicas=1))
        await eventually(lambda: len(other.stock.list(ListStock())[0]) == 4, "the other replica lists all stock units")
        first, after = other.stock.list(ListStock(spec_name="g1.1", limit=2))
        rest, end = other.stock.list(ListStock(spec_name="g1.1", limit=2, after=after))
        assert [unit.name for unit in (*first, *rest)] == NAMES
        assert end is None
        claim = {"metadata": {"annotations": {Annotation.CLAIMED_BY: "an-operation"}}}
        await one.client.merge_patch(GPU_UNITS, (await one.units())[NAMES[1]].metadata.key, claim)
        await eventually(
            lambda: [unit.claimed_by for unit in other.stock.list(ListStock(claimed=True))[0]] == ["an-operation"],
            "the claimed stock unit is listed as claimed",
        )
        assert len(other.stock.list(ListStock(claimed=False))[0]) == 3
