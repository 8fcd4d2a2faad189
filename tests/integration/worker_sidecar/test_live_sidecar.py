"""An invocation that is dispatched ends in one result, whatever happens to the framework and to the sidecar."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import RecordState
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.worker_event import WorkerEventKind
from gpu_runtime.jetstream.delivery import OutgoingMessage
from localcluster.nats_server import NatsAccount
from tests.integration.framework.framework_process import FrameworkProcess, running_framework, temporary_socket_dir
from tests.integration.kube.polling import eventually
from tests.integration.worker_sidecar.sidecar_harness import (
    FUNCTION_ID,
    POD_UID,
    RunningSidecar,
    SidecarHarness,
    SidecarScene,
    running_sidecar,
    sidecar_harness,
    sidecar_process,
    sidecar_settings,
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
def module_socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as place:
        yield place


@pytest.fixture(scope="module")
def shared_framework(module_socket_dir: Path) -> Iterator[FrameworkProcess]:
    with running_framework(SOURCE, module_socket_dir, GPU_RUNTIME_CONCURRENCY="8") as running:
        yield running


@pytest.fixture(autouse=True)
def pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", POD_UID)


@pytest.fixture
async def harness(nats_account: NatsAccount, socket_dir: Path) -> AsyncIterator[SidecarHarness]:
    async with sidecar_harness(sidecar_settings(nats_account, str(socket_dir / "unused.sock"))) as plane:
        yield plane


@pytest.fixture
def scene(
    nats_account: NatsAccount, harness: SidecarHarness, shared_framework: FrameworkProcess, module_socket_dir: Path
) -> SidecarScene:
    for name in ("calls", "go"):
        (module_socket_dir / name).unlink(missing_ok=True)
    return SidecarScene(nats_account, harness, shared_framework, module_socket_dir)


async def ready(running: RunningSidecar) -> None:
    async with asyncio.timeout(60):
        while not await running.is_ready():  # noqa: ASYNC110 - readiness is asked for, never told
            await asyncio.sleep(0.02)


async def unready(running: RunningSidecar) -> None:
    async with asyncio.timeout(60):
        while await running.is_ready():  # noqa: ASYNC110 - readiness is asked for, never told
            await asyncio.sleep(0.02)


async def test_response_becomes_result_reply_and_record(scene: SidecarScene, harness: SidecarHarness) -> None:
    async with scene.sidecar() as running:
        await harness.publish_dispatch("this", mode="sync", reply_to="replies")
        ended = await harness.wait_result()
        await eventually(lambda: harness.replies == [ended], "the caller is told the same")
        await harness.wait_empty()
        status, text = await running.get("/metrics")
    assert (ended.state, ended.status_code, ended.failure) == (ResultState.SUCCEEDED, 200, None)
    assert (ended.body, ended.body_bytes, ended.body_truncated) == (b'{"did":"this"}', 14, False)
    assert (ended.worker, ended.attempts) == ("worker-1", 1)
    assert ended.timings.enqueued_at is not None
    assert ended.timings.started_at is not None
    assert ended.timings.enqueued_at <= ended.timings.started_at <= ended.timings.finished_at
    record = await harness.record()
    assert (record.state, record.worker) == (RecordState.RUNNING, "worker-1")
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
async def test_unsuccessful_invocation_has_a_failure_class(
    scene: SidecarScene, payload: str, lasting: float, says: tuple[ResultState, FailureClass], tries: int
) -> None:
    async with scene.sidecar():
        await scene.harness.publish_dispatch(payload, timeout_seconds=lasting)
        ended = await scene.harness.wait_result()
        await scene.harness.wait_empty()
    scene.release_call()
    assert ended.failure is not None
    assert (ended.state, ended.failure.failure_class) == says
    assert scene.handler_calls == [f"{payload} {attempt + 1}" for attempt in range(tries)]


async def test_large_response_is_truncated_and_flagged(scene: SidecarScene, harness: SidecarHarness) -> None:
    async with scene.sidecar():
        await harness.publish_dispatch("large")
        ended = await harness.wait_result()
    assert (ended.state, ended.body_truncated) == (ResultState.SUCCEEDED, True)
    assert (len(ended.body), ended.body_bytes) == (64 * 1024, 100_000)


async def test_undecodable_dispatch_is_dead_lettered_with_a_result_if_identifiable(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    subject = harness.topology.subjects.dispatch(FUNCTION_ID)
    async with scene.sidecar():
        await harness.publisher.publish(OutgoingMessage(subject, b"\xff"))
        await harness.publisher.publish(
            OutgoingMessage(subject, b'{"version": 9, "invocation": {"invocationID": "new"}}')
        )
        ended = await harness.wait_result("new")
        await harness.wait_empty()
    assert [(each.failure_class, each.invocation_id) for each in harness.dead_letters] == [
        (FailureClass.BAD_MESSAGE, ""),
        (FailureClass.BAD_MESSAGE, "new"),
    ]
    assert ended.state is ResultState.DEAD_LETTERED


async def test_crashing_invocation_is_retried_up_to_max_deliveries(
    nats_account: NatsAccount, harness: SidecarHarness, socket_dir: Path
) -> None:
    """The framework comes back each time, as in a pod. While it is away, other invocations keep their tries."""
    settings = sidecar_settings(nats_account, str(socket_dir / "framework.sock"))
    async with running_sidecar(settings) as running:
        for attempt in (1, 2, 3):
            with running_framework(SOURCE, socket_dir) as framework:
                if attempt == 1:
                    await harness.publish_dispatch("crash", "bad", mode="sync", reply_to="replies")
                await asyncio.to_thread(framework.process.wait, 60)
        ended = await harness.wait_result("bad")
        await eventually(lambda: harness.replies == [ended], "the caller is told the same")
        await unready(running)
        await harness.publish_dispatch("good", "good")
        assert await harness.backlog() == 1
        with running_framework(SOURCE, socket_dir):
            survived = await harness.wait_result("good")
    assert ended.failure is not None
    assert (ended.state, ended.failure.failure_class) == (ResultState.DEAD_LETTERED, FailureClass.FUNCTION_CRASHED)
    (letter,) = harness.dead_letters
    assert (letter.invocation_id, letter.delivery_count) == ("bad", 3)
    assert (survived.state, survived.attempts) == (ResultState.SUCCEEDED, 1)


async def test_cancel_aborts_the_running_call(scene: SidecarScene, harness: SidecarHarness) -> None:
    async with scene.sidecar():
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        await harness.cancel_invocation()
        ended = await harness.wait_result()
        await harness.wait_empty()
    scene.release_call()
    assert ended.state is ResultState.CANCELLED


async def test_invocation_cancelled_before_its_start_is_not_called(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    await harness.publish_dispatch("wait", seconds_ago=1)
    await harness.cancel_invocation(publish_hint=False)
    async with scene.sidecar():
        ended = await harness.wait_result()
        await harness.wait_empty()
    assert (ended.state, scene.handler_calls) == (ResultState.CANCELLED, [])


async def test_cancel_during_a_direct_dispatch_aborts_the_call(scene: SidecarScene, harness: SidecarHarness) -> None:
    """Its record says so before the worker's write does, and the hint to the worker is lost."""
    async with scene.sidecar():
        await harness.publish_dispatch("wait", cancelled=True)
        ended = await harness.wait_result()
        await harness.wait_empty()
    scene.release_call()
    assert ended.state is ResultState.CANCELLED
    assert (await harness.record()).cancelled


async def test_long_call_extends_the_ack_wait(scene: SidecarScene, harness: SidecarHarness) -> None:
    """Beside a second worker that would take it."""
    async with scene.sidecar(), scene.sidecar():
        await harness.publish_dispatch(4.5)
        ended = await harness.wait_result()
        await harness.wait_empty()
    assert (ended.state, ended.attempts) == (ResultState.SUCCEEDED, 1)


async def test_invocation_of_a_killed_sidecar_is_redelivered(
    scene: SidecarScene, harness: SidecarHarness, socket_dir: Path
) -> None:
    with sidecar_process(scene.settings(), socket_dir) as doomed:
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        doomed.kill()
    scene.release_call()
    async with scene.sidecar(worker="worker-2"):
        ended = await harness.wait_result()
        await harness.wait_empty()
    assert (ended.state, ended.worker, ended.attempts) == (ResultState.SUCCEEDED, "worker-2", 2)
    assert (await harness.record()).worker == "worker-2"


async def test_drain_request_is_declined_while_busy_and_final_while_idle(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    async with scene.sidecar() as running:
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        refused = await harness.request_drain()
        assert (refused.accepted, refused.in_flight) == (False, 1)
        scene.release_call()
        await harness.wait_empty()
        await harness.wait_event(WorkerEventKind.HEARTBEAT, 0)
        accepted = await harness.request_drain()
        assert (accepted.accepted, accepted.in_flight) == (True, 0)
        await harness.publish_dispatch("other", "inv-2")
        assert await harness.request_drain() == accepted
        await harness.wait_event(WorkerEventKind.DRAINING, 0)
        assert (await running.get("/drain")) == (200, "drained\n")
        assert not await running.is_ready()
        assert await harness.backlog() == 1
    assert "inv-2" not in harness.results


async def test_forced_drain_finishes_running_calls_and_pulls_no_more(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    async with scene.sidecar():
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        finishing = await harness.request_drain(force=True)
        assert (finishing.accepted, finishing.in_flight) == (True, 1)
        await harness.publish_dispatch("other", "inv-2")
        scene.release_call()
        assert (await harness.wait_result()).state is ResultState.SUCCEEDED
        await eventually_drained(harness)
        assert await harness.backlog() == 1
    assert "inv-2" not in harness.results


async def eventually_drained(plane: SidecarHarness) -> None:
    """What is settled is in hand until the server has heard of it."""
    async with asyncio.timeout(30):
        while (await plane.request_drain()).in_flight:  # noqa: ASYNC110 - it is asked for, never told
            await asyncio.sleep(0.02)


async def test_drain_finishes_in_flight_invocations_and_leaves_the_others(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    async with scene.sidecar() as running:
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        await harness.publish_dispatch("other", "inv-2")
        draining = asyncio.create_task(running.get("/drain"))
        await harness.wait_event(WorkerEventKind.DRAINING, 1)
        assert not draining.done()
        scene.release_call()
        assert await draining == (200, "drained\n")
        assert (await harness.wait_result()).state is ResultState.SUCCEEDED
        assert await harness.backlog() == 1
    assert running.task.done()


async def test_health_endpoints_work_without_framework_and_nats(
    nats_account: NatsAccount, harness: SidecarHarness, socket_dir: Path
) -> None:
    async with running_sidecar(sidecar_settings(nats_account, str(socket_dir / "framework.sock"))) as running:
        async with asyncio.timeout(60):
            while not await _alive(running):  # noqa: ASYNC110 - it is asked for, never told
                await asyncio.sleep(0.02)
        status, text = await running.get("/readyz")
        assert (status, "[-] framework" in text) == (503, True)
        assert harness.events == []
        with running_framework(SOURCE, socket_dir):
            await ready(running)
            await eventually(lambda: bool(harness.events), "it is told")
            assert harness.events[0].kind is WorkerEventKind.REGISTERED
            assert (harness.events[0].pod_uid, harness.events[0].unit) == ("pod-1", "worker-1")
            await eventually(lambda: len(harness.events) > 2, "it is told again")
    sequences = [each.sequence for each in harness.events]
    assert sequences == sorted(set(sequences))


async def _alive(running: RunningSidecar) -> bool:
    try:
        return (await running.get("/healthz"))[0] == 200
    except OSError:
        return False
