"""Operations lose no stock, use no stock unit twice and create every object once, in any order of events.

Every seed is another order of events among three replicas: requests that are sent to several replicas at the same time,
stale caches, recovery and retention on every replica, a controller that updates the status of stock and detaches
storages, users that delete units, pools, stock and storages, processes that are killed between any two steps, and other
callers that use the operationIDs of evicted operations again.
"""

import asyncio
import os
from collections import Counter

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import Serverless, StorageMount
from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import operation_name
from gpu_runtime.contract.errors import AlreadyExists, Conflict, NoStock
from gpu_runtime.contract.stock_grades import StockGrade
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.runtime_api.stock import seed_decision
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock
from gpu_runtime.runtime_api.units.requests import CreateUnit, StockChoice
from tests.unit.runtime_api.interleaved_kube import run_interleaved
from tests.unit.runtime_api.operation_simulation import (
    AnyRequest,
    Chaos,
    check_conservation,
    check_finished,
    check_pools,
    check_prepared_pods,
    operation_simulation,
)

SEEDS = int(os.environ.get("INTERLEAVING_SEEDS", "950")) * 3 // 25 + 1
"""The number of seeds of each test. One test has only a third of it. `INTERLEAVING_SEEDS` is the sum of all tests."""
UNSTEADY = ("Ready", "Ready", "Progressing")


def unit_requests(count: int) -> list[CreateUnit]:
    return [
        CreateUnit(
            operation_id=f"op-{index}",
            name=f"unit-{index}",
            namespace="runtime-instance",
            spec_name="g1.1",
            stock_namespace="runtime-stock",
            image=f"image-{index}",
        )
        for index in range(count)
    ]


def seed_request(number: int, replicas: int) -> SeedStock:
    return SeedStock(operation_id=f"seed-{number}", spec_name="g1.1", replicas=replicas)


def pool_request(number: int, name: str) -> CreateStockPool:
    return CreateStockPool(operation_id=f"pool-{number}", name=name, namespace="default", spec_name="g1.1", replicas=1)


def is_rejected(manifest: Manifest) -> bool:
    """A policy rejects the fifth stock unit of a seeding."""
    name: str = manifest["metadata"]["name"]
    return manifest["metadata"]["namespace"] == "runtime-stock" and name.endswith("-4")


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_without_kills_every_stock_unit_becomes_one_unit(seed: int) -> None:
    with operation_simulation(seed, 3, unit_requests(5)) as simulation:
        await simulation.run(Chaos(background=False))
        counts = Counter(outcome for _, outcome in simulation.outcomes)
        assert counts[True] == 3, simulation.outcomes
        assert not simulation.list_units("runtime-stock")
        rejected = {operation for operation, outcome in simulation.outcomes if outcome is NoStock}
        accepted = {operation for operation, outcome in simulation.outcomes if outcome in (True, False)}
        assert rejected.isdisjoint(accepted), "duplicates of one request got different responses"
        check_conservation(simulation)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_with_kills_and_deletions_stock_is_conserved(seed: int) -> None:
    with operation_simulation(seed, 4, unit_requests(6)) as simulation:
        chaos = Chaos(kills=4, deletions=1, unit_requests=2, full_queues=1, stock_deletions=seed % 2, phases=UNSTEADY)
        await simulation.run(chaos)
        await simulation.run_recovery()
        check_conservation(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_conservation(simulation)
        last = dict(simulation.outcomes[-len(simulation.requests) :])
        rejected = [operation for operation, outcome in last.items() if outcome is NoStock]
        assert not rejected or not simulation.list_units("runtime-stock"), "NoStock although stock exists"


PREPARED = Template(command=("serve",))


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_prepared_pod_becomes_the_pod_of_one_unit(seed: int) -> None:
    """Pods become unready and are lost meanwhile, units are deleted, and some requests allow only one grade."""
    grades = (None, None, StockChoice(grades=(StockGrade.PREPARED,)), StockChoice(grades=(StockGrade.RESERVED,)))
    requests = [
        msgspec.structs.replace(each, image="model", template=PREPARED, stock=grades[index % 4])
        for index, each in enumerate(unit_requests(6))
    ]
    pool = CreateStockPool(
        operation_id="pool",
        name="warm",
        namespace="runtime-instance",
        spec_name="g1.1",
        image="model",
        template=PREPARED,
        replicas=3,
        adoptable=True,
    )
    with operation_simulation(seed, 2, requests, pool=pool) as simulation:
        chaos = Chaos(kills=seed % 4, deletions=seed % 2, unit_requests=1, pod_deletions=seed % 3, full_queues=1)
        await simulation.run(chaos)
        await simulation.run_recovery()
        check_conservation(simulation)
        check_prepared_pods(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_conservation(simulation)
        check_prepared_pods(simulation)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_stock_of_a_worker_is_returned_once_and_not_while_the_worker_exists(seed: int) -> None:
    """Leaders return the stock of workers that exist, that are being created, and that are deleted. Other workers use
    the returned stock."""
    worker = Serverless(enabled=True, request_id="embed", worker_of="embed")
    workers = [msgspec.structs.replace(each, serverless=worker) for each in unit_requests(5)]
    with operation_simulation(seed, 2, workers) as simulation:
        for _ in range(2):
            await simulation.run(Chaos(kills=2, deletions=seed % 2, returns=4, fault_chance=0.04))
            await simulation.grow_old()
        await simulation.run_recovery()
        check_finished(simulation)
        check_conservation(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_conservation(simulation)


@pytest.mark.parametrize("seed", range(SEEDS // 3))
async def test_one_of_several_operations_with_one_unit_name_succeeds(seed: int) -> None:
    """One operation creates the unit. The others release their stock."""
    same_name = [msgspec.structs.replace(each, name="same") for each in unit_requests(3)]
    with operation_simulation(seed, 3, same_name) as simulation:
        await simulation.run(Chaos(kills=seed % 3))
        await simulation.run_recovery()
        check_conservation(simulation)
        assert len(simulation.list_units("runtime-instance")) <= 1
        await simulation.replay()
        check_conservation(simulation)
        assert len(simulation.list_units("runtime-instance")) == 1
        assert len(simulation.list_units("runtime-stock")) == 2


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_storage_is_attached_to_one_unit_only(seed: int) -> None:
    """Some requests mount the same storage, some mount two in different order, and the stock does not suffice for all.
    Users delete storages and stock meanwhile, and the API server is not always reachable."""
    mounts = (("data-0",), ("data-1", "data-0"), ("data-0", "data-2"), ("data-1",), ("data-2", "data-1"))
    with_storages = [
        msgspec.structs.replace(each, storage_mounts=tuple(StorageMount(name=n, mount_path=f"/{n}") for n in names))
        for each, names in zip(unit_requests(len(mounts)), mounts, strict=True)
    ]
    with operation_simulation(seed, 3, with_storages, replica_count=1 + seed % 3) as simulation:
        for kills in (seed % 4, 0):
            faults = Chaos(kills, deletions=1, storage_changes=4, stock_deletions=seed % 2, outages=2, phases=UNSTEADY)
            await simulation.run(faults)
        await simulation.run_recovery()
        check_conservation(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_conservation(simulation)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_seeding_creates_all_of_its_stock_once_while_handoffs_consume_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller reports stock as Ready while its seeding still runs. No handoff may use it before the commit,
    because the seeding may still fail: a policy rejects the last stock unit of one of them."""
    monkeypatch.setattr(seed_decision, "SEED_BATCH_SIZE", 2)
    sent: list[AnyRequest] = [*unit_requests(4), seed_request(0, 3), seed_request(1, 2), seed_request(2, 5)]
    with operation_simulation(seed, 1, sent) as simulation:
        simulation.server.is_rejected = is_rejected
        await simulation.run(Chaos(kills=4, deletions=1, phases=UNSTEADY))
        await simulation.run_recovery()
        check_finished(simulation)
        check_conservation(simulation)
        for _ in range(2):  # a seeding whose callers were killed may be recorded by its replay only
            await simulation.replay()
            await simulation.run_recovery()
        check_finished(simulation)
        check_conservation(simulation)
        assert len(simulation.list_units()) == 2, "four of six stock units become units"


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_pool_of_several_requests_is_created_once_and_stays_deleted(seed: int) -> None:
    """Two requests want the same name. Users delete pools while their operations still run."""
    sent = [pool_request(0, "same"), pool_request(1, "same"), pool_request(2, "other")]
    with operation_simulation(seed, 0, sent) as simulation:
        await simulation.run(Chaos(kills=3, pool_requests=2))
        await simulation.run_recovery()
        check_finished(simulation)
        check_pools(simulation)
        await simulation.replay()
        await simulation.run_recovery()
        check_finished(simulation)
        check_pools(simulation)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_reused_operation_id_gives_each_caller_its_own_object(seed: int) -> None:
    """Retention evicts operations that wait for stock or have finished. Other callers use their operationIDs, while
    recovery still has to clean up after killed processes. Three of them want the same storage."""
    mounts = (StorageMount(name="data-0", mount_path="/data"),)
    units = [msgspec.structs.replace(each, storage_mounts=mounts) for each in unit_requests(2)]
    others = [
        msgspec.structs.replace(each, name=f"other-{index}", image=f"other-{index}", storage_mounts=mounts[:index])
        for index, each in enumerate(units)
    ]
    sent: list[AnyRequest] = [
        *units,
        *others,
        msgspec.structs.replace(seed_request(0, 2), operation_id="op-0"),
        msgspec.structs.replace(pool_request(0, "pool"), operation_id="op-1"),
    ]
    with operation_simulation(seed, 4, sent, initial_phase="Progressing") as simulation:
        for _ in range(2):
            await simulation.run(Chaos(kills=1, full_queues=2, unit_requests=1, fault_chance=0.05, phases=UNSTEADY))
            await simulation.grow_old()
        await simulation.run_recovery()
        check_finished(simulation)
        check_conservation(simulation)
        check_pools(simulation)


async def test_create_makes_four_writes_one_more_after_its_response_and_no_read() -> None:
    with operation_simulation(1, 2, unit_requests(1)) as simulation:
        await simulation.run_until_idle()
        before, client = simulation.server.version, simulation.replicas[0].client
        client.reads = 0
        await run_interleaved(simulation.send(simulation.replicas[0], simulation.requests[0]), simulation.scheduler)
        written = [plural for version, plural, *_ in simulation.server.history if version > before]
        assert written[:4] == ["operations", "gpuunits", "gpuunits", "operations"]
        await simulation.run_until_idle()
        assert simulation.server.version - before == 5
        assert client.reads == 0
        assert len(simulation.list_units("runtime-stock")) == 1


async def test_recovery_does_not_read_operations_of_its_own_replica() -> None:
    with operation_simulation(1, 2, unit_requests(2)) as simulation:
        await simulation.run_until_idle()
        for request in simulation.requests:
            await run_interleaved(simulation.send(simulation.replicas[0], request), simulation.scheduler)
        await simulation.run_until_idle()
        for replica in simulation.replicas:
            replica.client.reads = 0
        await simulation.run_recovery()
        assert [replica.client.reads for replica in simulation.replicas] == [0, 2, 2]


async def test_stock_of_an_abandoned_attempt_is_not_deleted_by_its_creator() -> None:
    with operation_simulation(1, 1, unit_requests(1)) as simulation:
        await simulation.run_until_idle()
        create = asyncio.create_task(simulation.send(simulation.replicas[0], simulation.requests[0]))
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
    with operation_simulation(1, 1, unit_requests(2)) as simulation:
        simulation.replicas[0].stop_deleting()
        await run_interleaved(simulation.send(simulation.replicas[0], simulation.requests[0]), simulation.scheduler)
        await simulation.run_until_idle()
        assert len(simulation.list_units("runtime-stock")) == 1
        for replica in simulation.replicas:
            await run_interleaved(simulation.send(replica, simulation.requests[1]), simulation.scheduler)
        assert [outcome for _, outcome in simulation.outcomes] == [True, NoStock, NoStock, NoStock]
        await simulation.run_recovery()
        check_conservation(simulation)
        assert not simulation.list_units("runtime-stock")


async def test_replay_after_eviction_of_the_operation_is_a_name_conflict() -> None:
    """The unit stays. The replay fails because the name exists, and claims no stock."""
    with operation_simulation(1, 2, unit_requests(1)) as simulation:
        await simulation.run(Chaos(background=False))
        simulation.server.delete(OPERATIONS, ObjectKey("runtime-system", operation_name("op-0")), None)
        before = [each["metadata"]["uid"] for each in simulation.list_units("runtime-instance")]
        await simulation.replay()
        await simulation.run_recovery()
        assert simulation.outcomes[-1] == ("op-0", AlreadyExists)
        assert [each["metadata"]["uid"] for each in simulation.list_units("runtime-instance")] == before
        assert len(simulation.list_units("runtime-stock")) == 1
