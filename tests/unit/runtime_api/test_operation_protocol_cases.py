"""Cases of the operation protocol that random interleavings reach too rarely."""

import asyncio

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.contract.errors import NoStock
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.runtime_api.interleaved_kube import run_interleaved
from tests.unit.runtime_api.operation_simulation import OperationSimulation, check_conservation, operation_simulation
from tests.unit.runtime_api.test_handoff_interleavings import seed_request, unit_requests


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
        await simulation.grow_old()
        await run_interleaved(first.retention.run_once(), simulation.scheduler)
        assert not simulation.server.all(OPERATIONS)
