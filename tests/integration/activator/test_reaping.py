"""Work that waits for nobody, and how it ends."""

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.errors import NotFound
from gpu_runtime.jetstream.stream_admin import consumer_load
from tests.integration.activator.plane import Fleet, Plane, until


async def test_waiting_work_expires_at_its_deadline_and_leaves_the_queue(plane: Plane) -> None:
    await plane.function("slow", maxWorkers=1)
    async with plane.activator():
        late = await plane.accept("slow", seconds=0.5)
        patient = await plane.accept("slow", seconds=600)
        result = await plane.result(late)
        assert (result.state, result.failure and result.failure.failure_class) == (
            ResultState.EXPIRED,
            FailureClass.TIMED_OUT,
        )
        await until(lambda: _holds(plane, "slow", 1), "what is over is taken out")
        assert patient.invocation_id not in plane.results


async def test_a_new_leader_finds_what_waited_before_it_came(plane: Plane) -> None:
    await plane.function("before", maxWorkers=1)
    async with plane.activator():
        sent = await plane.accept("before", seconds=5)
        await until(lambda: _holds(plane, "before", 1), "it waits")
    async with plane.activator():
        assert (await plane.result(sent)).state is ResultState.EXPIRED


async def test_cancelled_work_that_waits_leaves_the_queue_at_once(plane: Plane) -> None:
    await plane.function("undo", maxWorkers=1)
    async with plane.activator():
        sent = await plane.accept("undo", seconds=600)
        other = await plane.accept("undo", seconds=600)
        await until(lambda: _holds(plane, "undo", 2), "both wait")
        await plane.cancel(sent)
        assert (await plane.result(sent)).state is ResultState.CANCELLED
        await until(lambda: _holds(plane, "undo", 1), "it is taken out")
        assert other.invocation_id not in plane.results


async def test_a_hint_about_what_nobody_cancelled_changes_nothing(plane: Plane) -> None:
    await plane.function("lie", maxWorkers=1)
    async with plane.activator(), Fleet(plane, "lie").running() as fleet:
        fleet.go_on.clear()
        sent = await plane.accept("lie", seconds=600)
        await until(lambda: _holds(plane, "lie", 1), "it waits")
        await plane.nats.publish(plane.topology.subjects.cancel("lie"), sent.invocation_id.encode())
        fleet.go_on.set()
        assert (await plane.result(sent)).state is ResultState.SUCCEEDED


async def test_work_of_a_function_that_is_gone_fails_and_its_consumer_goes(plane: Plane) -> None:
    await plane.function("away", maxWorkers=1)
    async with plane.activator():
        sent = [await plane.accept("away", seconds=600) for _ in range(3)]
        await until(lambda: _holds(plane, "away", 3), "all wait")
        await plane.delete("away")
        for each in sent:
            result = await plane.result(each)
            assert result.failure
            assert result.failure.failure_class is FailureClass.FUNCTION_GONE
        await until(lambda: _no_consumer(plane, "away"), "its consumer is gone")
        assert await plane.waiting("away") == 0


async def test_work_in_a_workers_hand_is_left_to_it_when_the_function_goes(plane: Plane) -> None:
    await plane.function("hand", maxWorkers=1)
    async with plane.activator(), Fleet(plane, "hand").running() as fleet:
        fleet.go_on.clear()
        sent = await plane.accept("hand", seconds=600)
        waits = await plane.accept("hand", seconds=600)
        await until(lambda: _works(fleet), "one is in a worker's hand")
        await plane.delete("hand")
        in_hand = {each for sidecar in fleet.sidecars.values() for each in sidecar.holding}
        mine, other = (sent, waits) if sent.invocation_id in in_hand else (waits, sent)
        assert (await plane.result(other)).state is ResultState.FAILED
        assert mine.invocation_id not in plane.results
        fleet.go_on.set()
        assert (await plane.result(mine)).state is ResultState.SUCCEEDED


async def _holds(plane: Plane, name: str, count: int) -> bool:
    return await plane.waiting(name) == count


async def _works(fleet: Fleet) -> bool:
    return any(each.in_flight for each in fleet.sidecars.values())


async def _no_consumer(plane: Plane, name: str) -> bool:
    try:
        await consumer_load(plane.nats, plane.topology.work(name))
    except NotFound:
        return True
    return False
