"""An invocation that is dispatched ends in one result, whatever happens to the framework and to the sidecar."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import Stage
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.worker_event import WorkerEventKind
from gpu_runtime.jetstream.delivery import Outgoing
from localcluster.nats_server import Account
from tests.integration.framework.worker import Worker, socket_place, worker
from tests.integration.kube.waiting import eventually
from tests.integration.worker_sidecar.serving import (
    FUNCTION,
    INSTANCE,
    Plane,
    Running,
    Scene,
    plane_of,
    settings_for,
    sidecar,
    sidecar_process,
)

SOURCE = """
import os, pathlib, time
from gpu_runtime.framework import Reject, Retry, handler, serve

place = pathlib.Path(os.environ["GPU_RUNTIME_SOCKET"]).parent

@handler
def run(request):
    do = request.payload
    with (place / "calls").open("a") as calls:
        calls.write(f"{do} {request.attempt}\\n")
    if do == "fail":
        raise ValueError("it does not work")
    if do == "reject":
        raise Reject("not this")
    if do == "retry":
        raise Retry("not now", after=0)
    if do == "crash":
        os._exit(3)
    if do == "large":
        return b"x" * 100_000
    if isinstance(do, float):
        time.sleep(do)
    if do == "wait":
        while not (place / "go").exists():
            time.sleep(0.01)
    return {"did": do}

serve()
"""


@pytest.fixture(scope="module")
def module_place() -> Iterator[Path]:
    with socket_place() as place:
        yield place


@pytest.fixture(scope="module")
def shared_framework(module_place: Path) -> Iterator[Worker]:
    with worker(SOURCE, module_place, GPU_RUNTIME_CONCURRENCY="8") as running:
        yield running


@pytest.fixture(autouse=True)
def pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", INSTANCE)


@pytest.fixture
async def plane(nats_account: Account, place: Path) -> AsyncIterator[Plane]:
    async with plane_of(settings_for(nats_account, str(place / "unused.sock"))) as plane:
        yield plane


@pytest.fixture
def scene(nats_account: Account, plane: Plane, shared_framework: Worker, module_place: Path) -> Scene:
    for name in ("calls", "go"):
        (module_place / name).unlink(missing_ok=True)
    return Scene(nats_account, plane, shared_framework, module_place)


async def ready(running: Running) -> None:
    async with asyncio.timeout(60):
        while not await running.ready():  # noqa: ASYNC110 - readiness is asked for, never told
            await asyncio.sleep(0.02)


async def unready(running: Running) -> None:
    async with asyncio.timeout(60):
        while await running.ready():  # noqa: ASYNC110 - readiness is asked for, never told
            await asyncio.sleep(0.02)


async def test_an_answer_becomes_a_result_a_reply_and_a_record(scene: Scene, plane: Plane) -> None:
    async with scene.sidecar() as running:
        await plane.dispatch("this", mode="sync", reply_to="replies")
        ended = await plane.result()
        await eventually(lambda: plane.replies == [ended], "the caller is told the same")
        await plane.until_empty()
        status, text = await running.get("/metrics")
    assert (ended.state, ended.status_code, ended.failure) == (ResultState.SUCCEEDED, 200, None)
    assert (ended.body, ended.body_bytes, ended.body_truncated) == (b'{"did":"this"}', 14, False)
    assert (ended.worker, ended.attempts) == ("worker-1", 1)
    assert ended.timings.enqueued_at is not None
    assert ended.timings.started_at is not None
    assert ended.timings.enqueued_at <= ended.timings.started_at <= ended.timings.finished_at
    record = await plane.record()
    assert (record.stage, record.worker) == (Stage.RUNNING, "worker-1")
    assert (status, 'invocations_total{outcome="succeeded"} 1.0' in text) == (200, True)


@pytest.mark.parametrize(
    ("payload", "lasting", "says", "tries"),
    [
        ("fail", 600, (ResultState.FAILED, FailureClass.FUNCTION_ERROR), 1),
        ("reject", 600, (ResultState.FAILED, FailureClass.FUNCTION_ERROR), 1),
        ("wait", 2, (ResultState.EXPIRED, FailureClass.TIMED_OUT), 1),
        ("late", -1, (ResultState.EXPIRED, FailureClass.TIMED_OUT), 0),
        ("retry", 600, (ResultState.DEAD_LETTERED, FailureClass.FUNCTION_UNREACHABLE), 3),
    ],
)
async def test_what_does_not_succeed_says_why(
    scene: Scene, payload: str, lasting: float, says: tuple[ResultState, FailureClass], tries: int
) -> None:
    async with scene.sidecar():
        await scene.plane.dispatch(payload, lasting=lasting)
        ended = await scene.plane.result()
        await scene.plane.until_empty()
    scene.go()
    assert ended.failure is not None
    assert (ended.state, ended.failure.failure_class) == says
    assert scene.calls == [f"{payload} {attempt + 1}" for attempt in range(tries)]


async def test_of_a_large_answer_the_beginning_is_kept_and_the_result_says_so(scene: Scene, plane: Plane) -> None:
    async with scene.sidecar():
        await plane.dispatch("large")
        ended = await plane.result()
    assert (ended.state, ended.body_truncated) == (ResultState.SUCCEEDED, True)
    assert (len(ended.body), ended.body_bytes) == (64 * 1024, 100_000)


async def test_what_cannot_be_read_is_a_dead_letter_and_a_result_if_it_says_whose(scene: Scene, plane: Plane) -> None:
    subject = plane.topology.subjects.dispatch(FUNCTION)
    async with scene.sidecar():
        await plane.publisher.publish(Outgoing(subject, b"\xff"))
        await plane.publisher.publish(Outgoing(subject, b'{"version": 9, "invocation": {"invocationID": "new"}}'))
        ended = await plane.result("new")
        await plane.until_empty()
    assert [(each.failure_class, each.invocation_id) for each in plane.letters] == [
        (FailureClass.BAD_MESSAGE, ""),
        (FailureClass.BAD_MESSAGE, "new"),
    ]
    assert ended.state is ResultState.DEAD_LETTERED


async def test_a_function_that_dies_of_an_invocation_is_tried_again_and_then_no_more(
    nats_account: Account, plane: Plane, place: Path
) -> None:
    """The framework comes back each time, as in a pod. While it is away, other invocations keep their tries."""
    settings = settings_for(nats_account, str(place / "framework.sock"))
    async with sidecar(settings) as running:
        for attempt in (1, 2, 3):
            with worker(SOURCE, place) as framework:
                if attempt == 1:
                    await plane.dispatch("crash", "bad", mode="sync", reply_to="replies")
                await asyncio.to_thread(framework.process.wait, 60)
        ended = await plane.result("bad")
        await eventually(lambda: plane.replies == [ended], "the caller is told the same")
        await unready(running)
        await plane.dispatch("good", "good")
        assert await plane.waiting() == 1
        with worker(SOURCE, place):
            survived = await plane.result("good")
    assert ended.failure is not None
    assert (ended.state, ended.failure.failure_class) == (ResultState.DEAD_LETTERED, FailureClass.FUNCTION_CRASHED)
    (letter,) = plane.letters
    assert (letter.invocation_id, letter.attempts) == ("bad", 3)
    assert (survived.state, survived.attempts) == (ResultState.SUCCEEDED, 1)


async def test_a_call_that_is_taken_back_is_broken_off(scene: Scene, plane: Plane) -> None:
    async with scene.sidecar():
        await plane.dispatch("wait")
        await scene.begun()
        await plane.cancel()
        ended = await plane.result()
        await plane.until_empty()
    scene.go()
    assert ended.state is ResultState.CANCELLED


async def test_what_was_taken_back_before_it_was_begun_is_not_begun(scene: Scene, plane: Plane) -> None:
    await plane.dispatch("wait", ago=1)
    await plane.cancel(tell=False)
    async with scene.sidecar():
        ended = await plane.result()
        await plane.until_empty()
    assert (ended.state, scene.calls) == (ResultState.CANCELLED, [])


async def test_what_is_taken_back_while_it_comes_straight_to_its_worker_is_broken_off(
    scene: Scene, plane: Plane
) -> None:
    """Its record says so before the worker's write does, and the hint to the worker is lost."""
    async with scene.sidecar():
        await plane.dispatch("wait", cancelled=True)
        ended = await plane.result()
        await plane.until_empty()
    scene.go()
    assert ended.state is ResultState.CANCELLED
    assert (await plane.record()).cancelled


async def test_a_long_call_keeps_its_lease(scene: Scene, plane: Plane) -> None:
    """Beside a second worker that would take it."""
    async with scene.sidecar(), scene.sidecar():
        await plane.dispatch(4.5)
        ended = await plane.result()
        await plane.until_empty()
    assert (ended.state, ended.attempts) == (ResultState.SUCCEEDED, 1)


async def test_the_work_of_a_killed_sidecar_goes_to_another(scene: Scene, plane: Plane, place: Path) -> None:
    with sidecar_process(scene.settings(), place) as doomed:
        await plane.dispatch("wait")
        await scene.begun()
        doomed.kill()
    scene.go()
    async with scene.sidecar(worker="worker-2"):
        ended = await plane.result()
        await plane.until_empty()
    assert (ended.state, ended.worker, ended.attempts) == (ResultState.SUCCEEDED, "worker-2", 2)
    assert (await plane.record()).worker == "worker-2"


async def test_a_busy_worker_is_not_drained_by_request_and_an_idle_one_for_good(scene: Scene, plane: Plane) -> None:
    async with scene.sidecar() as running:
        await plane.dispatch("wait")
        await scene.begun()
        refused = await plane.drain()
        assert (refused.draining, refused.in_flight) == (False, 1)
        scene.go()
        await plane.until_empty()
        await plane.told(WorkerEventKind.HEARTBEAT, 0)
        accepted = await plane.drain()
        assert (accepted.draining, accepted.in_flight) == (True, 0)
        await plane.dispatch("other", "inv-2")
        assert await plane.drain() == accepted
        await plane.told(WorkerEventKind.DRAINING, 0)
        assert (await running.get("/drain")) == (200, "drained\n")
        assert not await running.ready()
        assert await plane.waiting() == 1
    assert "inv-2" not in plane.results


async def test_a_busy_worker_that_is_to_finish_takes_no_more(scene: Scene, plane: Plane) -> None:
    async with scene.sidecar():
        await plane.dispatch("wait")
        await scene.begun()
        finishing = await plane.drain(finishing=True)
        assert (finishing.draining, finishing.in_flight) == (True, 1)
        await plane.dispatch("other", "inv-2")
        scene.go()
        assert (await plane.result()).state is ResultState.SUCCEEDED
        await eventually_drained(plane)
        assert await plane.waiting() == 1
    assert "inv-2" not in plane.results


async def eventually_drained(plane: Plane) -> None:
    """What is settled is in hand until the server has heard of it."""
    async with asyncio.timeout(30):
        while (await plane.drain()).in_flight:  # noqa: ASYNC110 - it is asked for, never told
            await asyncio.sleep(0.02)


async def test_draining_ends_what_is_in_hand_and_leaves_the_rest(scene: Scene, plane: Plane) -> None:
    async with scene.sidecar() as running:
        await plane.dispatch("wait")
        await scene.begun()
        await plane.dispatch("other", "inv-2")
        draining = asyncio.create_task(running.get("/drain"))
        await plane.told(WorkerEventKind.DRAINING, 1)
        assert not draining.done()
        scene.go()
        assert await draining == (200, "drained\n")
        assert (await plane.result()).state is ResultState.SUCCEEDED
        assert await plane.waiting() == 1
    assert running.task.done()


async def test_the_endpoints_wait_for_neither_the_framework_nor_the_queue(
    nats_account: Account, plane: Plane, place: Path
) -> None:
    async with sidecar(settings_for(nats_account, str(place / "framework.sock"))) as running:
        async with asyncio.timeout(60):
            while not await _alive(running):  # noqa: ASYNC110 - it is asked for, never told
                await asyncio.sleep(0.02)
        status, text = await running.get("/readyz")
        assert (status, "[-] framework" in text) == (503, True)
        assert plane.events == []
        with worker(SOURCE, place):
            await ready(running)
            await eventually(lambda: bool(plane.events), "it is told")
            assert plane.events[0].kind is WorkerEventKind.REGISTERED
            assert (plane.events[0].instance, plane.events[0].worker) == ("pod-1", "worker-1")
            await eventually(lambda: len(plane.events) > 2, "it is told again")
    sequences = [each.sequence for each in plane.events]
    assert sequences == sorted(set(sequences))


async def _alive(running: Running) -> bool:
    try:
        return (await running.get("/healthz"))[0] == 200
    except OSError:
        return False
