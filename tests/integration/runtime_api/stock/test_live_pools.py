"""Pools on a real API server: one operation creates one pool, also if a replica is killed."""

import asyncio
from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPoolSpec
from gpu_runtime.contract.crd.template import EnvVar, Port, Template
from gpu_runtime.contract.crd.well_known import Annotation, generated_pool_name
from gpu_runtime.contract.errors import AlreadyExists, Gone, Invalid, NotFound, OperationReused
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.service_replicas import ServiceReplica, SimulatedKill
from tests.integration.runtime_api.stock.conftest import StartReplica

TEMPLATE = Template(
    command=("python",),
    args=("-m", "http.server"),
    envs=(EnvVar(name="MODEL_ID", value="demo"),),
    ports=(Port(name="http", port=8080),),
)


def request(**changes: Any) -> CreateStockPool:
    fields: dict[str, Any] = {
        "operation_id": "make",
        "name": "warm",
        "spec_name": "g1.1",
        "image": "python:3.12",
        "memory": "1Gi",
        "gpu": 1,
        "replicas": 2,
        "template": TEMPLATE,
    }
    return CreateStockPool(**fields | changes)


async def create(replica: ServiceReplica, pool_request: CreateStockPool) -> str:
    """Execute the whole operation and return its final state."""
    recorded = await replica.pools.create(pool_request)
    return (await replica.runner.resume(recorded.operation)).status.state


async def test_pool_matches_the_request_and_names_its_operation(start_replica: StartReplica, namespace: str) -> None:
    async with start_replica() as replica:
        assert await create(replica, request()) == "Succeeded"
        pool = (await replica.pools_by_name())["warm"]
        operation = (await replica.operations())["make"]
        requested = request()
        assert pool.spec == StockPoolSpec(
            spec_name=requested.spec_name,
            image=requested.image,
            memory=requested.memory,
            gpu=requested.gpu,
            replicas=requested.replicas,
            template=requested.template,
        )
        assert pool.metadata.annotations == {
            Annotation.OPERATION_ID: "make",
            Annotation.OPERATION_UID: operation.metadata.uid,
            Annotation.REQUEST_HASH: operation.spec.request_hash,
        }
        assert operation.status.target_uid == pool.metadata.uid
        job = await replica.jobs.get("make")
        assert (job.status, job.target.kind, job.target.namespace) == ("succeeded", "StockPool", namespace)
        assert job.target.name == "warm"


async def test_concurrent_requests_on_two_replicas_create_one_pool(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        first, second = await asyncio.gather(one.pools.create(request()), other.pools.create(request()))
        assert sorted([first.new, second.new]) == [False, True]
        finished = await asyncio.gather(one.runner.resume(first.operation), other.runner.resume(second.operation))
        assert [each.status.state for each in finished] == ["Succeeded"] * 2
        assert list(await one.pools_by_name()) == ["warm"]
        with pytest.raises(OperationReused):
            await other.pools.create(request(spec_name="g2.1"))


async def test_generated_pool_name_is_stable_across_retries(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        await create(one, request(name=""))
        assert await create(other, request(name="")) == "Succeeded"
        assert list(await one.pools_by_name()) == [generated_pool_name("make")]


@pytest.mark.parametrize("after_write", [False, True], ids=["before-write", "after-write"])
@pytest.mark.parametrize("at_write", range(1, 5))
async def test_pool_creation_killed_at_any_write_is_resumed_by_another_replica(
    start_replica: StartReplica, at_write: int, after_write: bool
) -> None:
    """The writes are: record the operation, mark it running, create the pool, mark it succeeded."""
    async with start_replica() as one, start_replica() as other:
        with pytest.raises(SimulatedKill):
            await create(one.killed_at_write(at_write, after_write=after_write), request())
        assert await create(other, request()) == "Succeeded"
        pools = await other.pools_by_name()
        assert list(pools) == ["warm"]
        assert (await other.operations())["make"].status.target_uid == pools["warm"].metadata.uid


async def test_pool_name_in_use_is_rejected_without_an_operation(
    start_replica: StartReplica,
) -> None:
    async with start_replica() as replica:
        await create(replica, request())
        with pytest.raises(AlreadyExists, match="choose another name"):
            await replica.pools.create(request(operation_id="second"))
        assert list(await replica.operations()) == ["make"]


async def test_lost_race_for_a_pool_name_fails_the_operation(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        first = await replica.pools.create(request())
        second = await replica.pools.create(request(operation_id="second", gpu=2))
        await asyncio.gather(replica.runner.resume(first.operation), replica.runner.resume(second.operation))
        jobs = [await replica.jobs.get("make"), await replica.jobs.get("second")]
        assert sorted(job.status for job in jobs) == ["failed", "succeeded"]
        [error] = [job.error for job in jobs if job.error]
        assert error.code == "already_exists"
        assert "choose another name" in error.message
        winner = next(job.operation_id for job in jobs if not job.error)
        pool = (await replica.pools_by_name())["warm"]
        assert pool.metadata.annotations[Annotation.OPERATION_ID] == winner


async def test_replay_of_a_create_whose_pool_was_deleted_is_410(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        await create(one, request())
        await one.pools.delete("", "warm")
        with pytest.raises(Gone, match="choose a new operationID"):
            await other.pools.create(request())
        assert await create(one, request(operation_id="again")) == "Succeeded"
        with pytest.raises(Gone):
            await other.pools.create(request())


async def test_pool_deleted_before_its_operation_finished_stays_deleted(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        with pytest.raises(SimulatedKill):
            await create(one.killed_at_write(3, after_write=True), request())
        await other.pools.delete("", "warm")
        operation = (await other.operations())["make"]
        assert operation.status.state == "Succeeded"
        await other.runner.resume(operation)
        assert await other.pools_by_name() == {}


async def test_pool_outlives_its_operation(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        await create(replica, request())
        evicted = (await replica.operations())["make"]
        await replica.client.delete(OPERATIONS, evicted.metadata.key, uid=evicted.metadata.uid)
        assert await create(replica, request()) == "Succeeded"
        assert (await replica.operations())["make"].status.target_uid == evicted.status.target_uid


async def test_pools_are_visible_on_every_replica(start_replica: StartReplica, namespace: str) -> None:
    async with start_replica() as one, start_replica() as other:
        await create(one, request())
        assert (await other.pools.get("", "warm")).replicas == 2
        await create(one, request(operation_id="two", name="cold", spec_name="g2.1"))
        query = ListPools(namespace=namespace)
        await eventually(lambda: len(other.pools.list(query)[0]) == 2, "both pools are listed")
        first, after = other.pools.list(ListPools(namespace=namespace, limit=1))
        rest, end = other.pools.list(ListPools(namespace=namespace, limit=1, after=after))
        assert [pool.name for pool in (*first, *rest)] == ["cold", "warm"]
        assert end is None
        assert [pool.name for pool in other.pools.list(ListPools(namespace=namespace, spec_name="g2.1"))[0]] == ["cold"]
        await other.pools.delete(namespace, "cold")
        assert [pool.name for pool in other.pools.list(query)[0]] == ["warm"], "the deleted pool must not be listed"
        for missing in (other.pools.get("", "cold"), other.pools.delete("", "cold")):
            with pytest.raises(NotFound, match="cold does not exist"):
                await missing


async def test_invalid_pool_request_writes_nothing(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        with pytest.raises(Invalid):
            await replica.pools.create(request(memory="not-a-quantity"))
        with pytest.raises(Invalid, match="namespace"):
            await replica.pools.create(request(namespace="kube-system"))
        assert await replica.operations() == {}
        assert await replica.pools_by_name() == {}


async def test_pool_created_with_kubectl_can_be_read_and_deleted(start_replica: StartReplica, namespace: str) -> None:
    async with start_replica() as replica:
        metadata = {"name": "manual", "namespace": namespace}
        await replica.client.create(STOCK_POOLS, {"metadata": metadata, "spec": {"specName": "g1.1", "replicas": 0}})
        assert (await replica.pools.get("", "manual")).operation_id is None
        await replica.pools.delete("", "manual")
        assert await replica.pools_by_name() == {}
