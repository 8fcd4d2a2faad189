"""Cases of the operation protocol that random interleavings reach too rarely."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.contract.errors import NoStock
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.runtime_api.interleaved_kube import run_interleaved
from tests.unit.runtime_api.operation_simulation import (
    SETTINGS,
    OperationSimulation,
    check_conservation,
    operation_simulation,
)
from tests.unit.runtime_api.test_handoff_interleavings import seed_request, unit_requests

T = TypeVar("T")


def has_claim(simulation: OperationSimulation) -> bool:
    return any(Annotation.CLAIMED_BY in unit["metadata"].get("annotations", {}) for unit in simulation.list_units())


async def test_recovery_with_a_stale_cache_releases_no_valid_claim() -> None:
    with operation_simulation(1, 1, unit_requests(2), initial_phase="Progressing") as simulation:
        await simulation.run_until_idle()
        first, other = simulation.replicas[0], simulation.replicas[1]
        await run_interleaved(
            simulation.send(first, simulation.requests[0]), simulation.scheduler
        )  # it waits for stock
        await simulation.run_until_idle()
        other.stop_watching_operations()
        simulation.report_phase("stock-0", "Ready")
        await simulation.run_until_idle()
        create = asyncio.create_task(simulation.send(first, simulation.requests[0]))
        while not has_claim(simulation):
            await simulation.scheduler.run_next()
        while await simulation.scheduler.run_next(lambda name: "watch" in name):
            pass
        for _ in range(2):  # the second run finds the claim unchanged for the stall time
            simulation.clock.elapsed_seconds += 30
            recovery = asyncio.create_task(other.recovery.run_once())
            while not recovery.done():
                await simulation.scheduler.run_next(lambda name: name.startswith("replica-1"))
        assert has_claim(simulation)
        await run_interleaved(create, simulation.scheduler)
        await simulation.run_until_idle()
        check_conservation(simulation)


async def test_recovery_deletes_a_unit_whose_attempt_ends_after_recovery_has_first_checked_it() -> None:
    """The replica is killed before it commits to the unit. A repeated request then finds that the stock is lost."""
    with operation_simulation(1, 1, unit_requests(1)) as simulation:
        await simulation.run_until_idle()
        first, recovering, other = simulation.replicas
        recovering.stop_watching_operations()  # so it checks the unit, but does not resume the operation
        create = asyncio.create_task(simulation.send(first, simulation.requests[0]))
        while not simulation.list_units("runtime-instance"):
            await simulation.scheduler.run_next()
        create.cancel()
        await simulation.run_until_idle()
        for _ in range(2):  # the second run finds the unit unchanged for the stall time
            simulation.clock.elapsed_seconds += 30
            await run_interleaved(recovering.recovery.run_once(), simulation.scheduler)
        assert len(simulation.list_units("runtime-instance")) == 1, "its operation can still commit to it"
        simulation.server.delete(GPU_UNITS, ObjectKey("runtime-stock", "stock-0"), None)
        await run_interleaved(simulation.send(other, simulation.requests[0]), simulation.scheduler)
        assert simulation.outcomes == [("op-0", NoStock)]
        await run_interleaved(recovering.recovery.run_once(), simulation.scheduler)
        assert simulation.list_units("runtime-instance") == []


async def test_resumed_handoff_does_not_claim_later_stock_with_the_same_name() -> None:
    """The replica is killed after it recorded the operation. Then its stock unit is deleted and created again."""
    with operation_simulation(1, 1, unit_requests(1)) as simulation:
        await simulation.run_until_idle()
        create = asyncio.create_task(simulation.send(simulation.replicas[0], simulation.requests[0]))
        while not simulation.server.all(OPERATIONS):
            await simulation.scheduler.run_next()
        create.cancel()
        simulation.server.delete(GPU_UNITS, ObjectKey("runtime-stock", "stock-0"), None)
        simulation.add_stock("stock-0")
        (recreated,) = simulation.list_units()
        await simulation.run_recovery()
        (operation,) = simulation.server.all(OPERATIONS)
        assert operation["status"]["stock"]["uid"] == recreated["metadata"]["uid"]
        assert simulation.list_units() == []


async def test_seeding_repeated_after_its_eviction_keeps_the_stock_of_the_first() -> None:
    with operation_simulation(1, 0, [seed_request(0, 3)]) as simulation:
        await run_interleaved(simulation.send(simulation.replicas[0], simulation.requests[0]), simulation.scheduler)
        await simulation.run_until_idle()
        seeded = {unit["metadata"]["uid"] for unit in simulation.list_units()}
        assert len(seeded) == 3
        simulation.server.delete(OPERATIONS, ObjectKey("runtime-system", operation_name("seed-0")), None)
        await run_interleaved(simulation.send(simulation.replicas[1], simulation.requests[0]), simulation.scheduler)
        await simulation.run_recovery()
        assert {unit["metadata"]["uid"] for unit in simulation.list_units()} == seeded
        assert operation_state(simulation, "seed-0") == "Failed"


async def test_operation_is_not_evicted_before_its_consumed_stock_is_deleted() -> None:
    """Otherwise recovery would release the claim, and another handoff would consume the stock unit again."""
    with operation_simulation(1, 1, unit_requests(2)) as simulation:
        await simulation.run_until_idle()
        first, other, _ = simulation.replicas
        first.stop_deleting()
        await run_interleaved(simulation.send(first, simulation.requests[0]), simulation.scheduler)
        await simulation.grow_old()
        await run_interleaved(other.retention.run_once(), simulation.scheduler)
        assert len(simulation.server.all(OPERATIONS)) == 1
        await simulation.run_recovery()
        await run_interleaved(simulation.send(other, simulation.requests[1]), simulation.scheduler)
        assert [outcome for _, outcome in simulation.outcomes] == [True, NoStock]
        check_conservation(simulation)
        delete_units(simulation)
        await simulation.run_until_idle()
        await run_interleaved(other.retention.run_once(), simulation.scheduler)
        assert [each["spec"]["operationID"] for each in simulation.server.all(OPERATIONS)] == ["op-1"]


async def test_operation_is_not_evicted_shortly_after_its_end() -> None:
    with operation_simulation(1, 1, unit_requests(1)) as simulation:
        await simulation.run_until_idle()
        first = simulation.replicas[0]
        await run_interleaved(simulation.send(first, simulation.requests[0]), simulation.scheduler)
        await simulation.run_until_idle()
        await run_interleaved(first.retention.run_once(), simulation.scheduler)
        assert len(simulation.server.all(OPERATIONS)) == 1
        delete_units(simulation)
        await simulation.grow_old()
        await run_interleaved(first.retention.run_once(), simulation.scheduler)
        assert not simulation.server.all(OPERATIONS)


async def test_operation_is_not_evicted_before_its_unit_is_deleted() -> None:
    with operation_simulation(1, 1, unit_requests(1)) as simulation:
        await simulation.run_until_idle()
        first = simulation.replicas[0]
        await run_interleaved(simulation.send(first, simulation.requests[0]), simulation.scheduler)
        simulation.clock.elapsed_seconds += 30 * SETTINGS.retention_seconds
        await simulation.run_until_idle()
        await run_interleaved(first.retention.run_once(), simulation.scheduler)
        assert len(simulation.server.all(OPERATIONS)) == 1
        delete_units(simulation)
        await simulation.run_until_idle()
        await run_interleaved(first.retention.run_once(), simulation.scheduler)
        assert not simulation.server.all(OPERATIONS)


async def test_recovery_does_not_release_a_claim_that_is_newer_than_its_cache() -> None:
    """Recovery has seen the claim of an operation that has failed since then. Another operation has the stock now."""
    rejected, other, third = unit_requests(3)
    with operation_simulation(1, 1, [rejected, other, third]) as simulation:
        simulation.server.is_rejected = lambda manifest: manifest["metadata"]["name"] == "unit-0"
        killed, recovering, last = simulation.replicas
        await simulation.run_until_idle()
        create = asyncio.create_task(simulation.send(killed, rejected))
        while operation_state(simulation, "op-0") != "RollingBack":
            await simulation.scheduler.run_next()
        create.cancel()
        killed.kill()
        await simulation.run_until_idle()
        await simulation.complete(recovering.recovery.run_once())
        last.stop_deleting()
        operation = await without_watches(simulation, last.operations.store.find("op-0"), "replica-1")
        assert operation is not None
        await without_watches(simulation, last.operations.resume(operation), "replica-1")
        await without_watches(simulation, simulation.send(last, other), "replica-1")
        simulation.clock.elapsed_seconds += 10  # longer than the stall time
        await without_watches(simulation, recovering.recovery.run_once(), "replica-1")
        (stock,) = simulation.list_units()
        assert stock["metadata"]["annotations"][Annotation.CLAIMED_BY] == "op-1"
        await simulation.run_until_idle()
        await simulation.complete(simulation.send(last, third))
        assert simulation.outcomes[-1] == ("op-2", NoStock)
        await simulation.run_recovery()
        check_conservation(simulation)


def delete_units(simulation: OperationSimulation) -> None:
    for _ in simulation.list_units("runtime-instance"):
        simulation.delete_a_unit()


def operation_state(simulation: OperationSimulation, operation_id: str) -> str:
    found = simulation.server.find(OPERATIONS, ObjectKey("runtime-system", operation_name(operation_id))) or {}
    return str(found.get("status", {}).get("state", ""))


async def without_watches(simulation: OperationSimulation, work: Awaitable[T], replica: str) -> T:
    """Run the work while the watches of one replica deliver nothing."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await simulation.scheduler.run_next(lambda name: not name.startswith(f"{replica}/watch"))
    return task.result()
