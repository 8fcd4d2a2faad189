"""The reaper ends dispatched invocations that expired, were cancelled, or belong to a deleted function."""

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.errors import NatsNotFound
from tests.bulk_publish import consumer_info
from tests.integration.activator.activator_harness import ActivatorHarness, SidecarFleet, terminated, until


async def test_waiting_invocation_expires_at_its_deadline_and_is_deleted(harness: ActivatorHarness) -> None:
    await harness.create_function("slow", maxWorkers=1)
    async with harness.activator() as activator:
        late = await harness.accept_invocation("slow", seconds=0.5)
        waiting = await harness.accept_invocation("slow", seconds=600)
        result = await harness.wait_result(late)
        assert (result.state, result.failure and result.failure.failure_class) == (
            ResultState.EXPIRED,
            FailureClass.TIMED_OUT,
        )
        await until(lambda: _has_backlog(harness, "slow", 1), "the expired message is deleted")
        assert terminated(activator) == {("expired", "timed_out", "dispatched"): 1}
        assert waiting.invocation_id not in harness.results


async def test_new_leader_reaps_invocations_that_waited_before(harness: ActivatorHarness) -> None:
    await harness.create_function("before", maxWorkers=1)
    async with harness.activator():
        sent = await harness.accept_invocation("before", seconds=5)
        await until(lambda: _has_backlog(harness, "before", 1), "the invocation waits")
    async with harness.activator():
        assert (await harness.wait_result(sent)).state is ResultState.EXPIRED


async def test_cancelled_waiting_invocation_is_deleted_immediately(harness: ActivatorHarness) -> None:
    await harness.create_function("undo", maxWorkers=1)
    async with harness.activator() as activator:
        sent = await harness.accept_invocation("undo", seconds=600)
        other = await harness.accept_invocation("undo", seconds=600)
        await until(lambda: _has_backlog(harness, "undo", 2), "both invocations wait")
        await harness.cancel_invocation(sent)
        assert (await harness.wait_result(sent)).state is ResultState.CANCELLED
        await until(lambda: _has_backlog(harness, "undo", 1), "the cancelled message is deleted")
        assert terminated(activator) == {("cancelled", "cancelled", "dispatched"): 1}
        assert other.invocation_id not in harness.results


async def test_cancel_hint_without_a_cancelled_record_is_ignored(harness: ActivatorHarness) -> None:
    await harness.create_function("uncancelled", maxWorkers=1)
    async with harness.activator(), SidecarFleet(harness, "uncancelled").running() as fleet:
        fleet.may_finish.clear()
        sent = await harness.accept_invocation("uncancelled", seconds=600)
        await until(lambda: _has_backlog(harness, "uncancelled", 1), "the invocation waits")
        await harness.nats.publish(
            harness.topology.subjects.cancel(harness.function_id("uncancelled")), sent.invocation_id.encode()
        )
        fleet.may_finish.set()
        assert (await harness.wait_result(sent)).state is ResultState.SUCCEEDED


async def test_invocations_of_a_deleted_function_fail_and_its_consumer_is_deleted(harness: ActivatorHarness) -> None:
    await harness.create_function("away", maxWorkers=1)
    async with harness.activator() as activator:
        sent = [await harness.accept_invocation("away", seconds=600) for _ in range(3)]
        await until(lambda: _has_backlog(harness, "away", 3), "all invocations wait")
        await harness.delete_unit("away")
        for each in sent:
            result = await harness.wait_result(each)
            assert result.failure
            assert result.failure.failure_class is FailureClass.FUNCTION_GONE
        await until(lambda: _no_consumer(harness, "away"), "its consumer is deleted")
        assert await harness.backlog("away") == 0
        assert terminated(activator) == {("failed", "function_gone", "dispatched"): 3}


async def test_running_invocation_finishes_after_its_function_is_deleted(harness: ActivatorHarness) -> None:
    await harness.create_function("running", maxWorkers=1)
    async with harness.activator(), SidecarFleet(harness, "running").running() as fleet:
        fleet.may_finish.clear()
        sent = await harness.accept_invocation("running", seconds=600)
        second = await harness.accept_invocation("running", seconds=600)
        await until(lambda: _is_busy(fleet), "a worker runs one of the invocations")
        await harness.delete_unit("running")
        running_ids = {each for sidecar in fleet.sidecars.values() for each in sidecar.in_flight_ids}
        running, waiting = (sent, second) if sent.invocation_id in running_ids else (second, sent)
        assert (await harness.wait_result(waiting)).state is ResultState.FAILED
        assert running.invocation_id not in harness.results
        fleet.may_finish.set()
        assert (await harness.wait_result(running)).state is ResultState.SUCCEEDED


async def _has_backlog(harness: ActivatorHarness, name: str, count: int) -> bool:
    return await harness.backlog(name) == count


async def _is_busy(fleet: SidecarFleet) -> bool:
    return any(each.in_flight for each in fleet.sidecars.values())


async def _no_consumer(harness: ActivatorHarness, name: str) -> bool:
    try:
        await consumer_info(harness.nats, harness.topology.dispatch_consumer(harness.function_id(name)))
    except NatsNotFound:
        return True
    return False
