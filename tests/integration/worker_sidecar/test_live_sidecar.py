"""Every dispatched invocation gets one result, also if the framework or the sidecar fails."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import RecordState
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.worker_event import WorkerEventKind
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.worker_sidecar.main import DRAIN_SIGNAL
from localcluster.nats_server import NatsAccount
from tests.integration.framework.framework_process import FrameworkProcess, running_framework, temporary_socket_dir
from tests.integration.kube.polling import eventually
from tests.integration.worker_sidecar.sidecar_harness import (
    FUNCTION_ID,
    POD_UID,
    REPLY_SUBJECT,
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

directory = pathlib.Path(os.environ["GPU_RUNTIME_SOCKET"]).parent

@handler
def run(request):
    do = request.payload
    with (directory / "calls").open("a") as calls:
        calls.write(f"{do} {request.attempt}\\n")
    if do == "fail":
        raise ValueError("the handler failed")
    if do == "reject":
        raise Reject("invalid input")
    if do == "retry":
        raise Retry("not now", after=0)
    if do == "crash":
        os._exit(3)
    if do == "large":
        return b"x" * 100_000
    if isinstance(do, float):
        time.sleep(do)
    if do == "wait":
        while not (directory / "release").exists():
            time.sleep(0.01)
    return {"did": do}

serve()
"""


@pytest.fixture(scope="module")
def module_socket_dir() -> Iterator[Path]:
    with temporary_socket_dir() as directory:
        yield directory


@pytest.fixture(scope="module")
def shared_framework(module_socket_dir: Path) -> Iterator[FrameworkProcess]:
    with running_framework(SOURCE, module_socket_dir, GPU_RUNTIME_CONCURRENCY="8") as running:
        yield running


@pytest.fixture(autouse=True)
def pod_uid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_UID", POD_UID)


@pytest.fixture
async def harness(nats_account: NatsAccount, socket_dir: Path) -> AsyncIterator[SidecarHarness]:
    async with sidecar_harness(sidecar_settings(nats_account, str(socket_dir / "unused.sock"))) as harness:
        yield harness


@pytest.fixture
def scene(
    nats_account: NatsAccount, harness: SidecarHarness, shared_framework: FrameworkProcess, module_socket_dir: Path
) -> SidecarScene:
    for name in ("calls", "release"):
        (module_socket_dir / name).unlink(missing_ok=True)
    return SidecarScene(nats_account, harness, shared_framework, module_socket_dir)


async def wait_ready(running: RunningSidecar) -> None:
    async with asyncio.timeout(60):
        while not await running.is_ready():  # noqa: ASYNC110 - the sidecar sends no event for readiness
            await asyncio.sleep(0.02)


async def wait_not_ready(running: RunningSidecar) -> None:
    async with asyncio.timeout(60):
        while await running.is_ready():  # noqa: ASYNC110 - the sidecar sends no event for readiness
            await asyncio.sleep(0.02)


async def test_response_becomes_result_reply_and_record(scene: SidecarScene, harness: SidecarHarness) -> None:
    async with scene.sidecar() as running:
        await harness.publish_dispatch("this", mode="sync", reply_to=REPLY_SUBJECT)
        result = await harness.wait_result()
        await eventually(lambda: harness.replies == [result], "the caller receives the same result")
        await harness.wait_backlog(0)
        status, text = await running.get("/metrics")
    assert (result.state, result.status_code, result.failure) == (ResultState.SUCCEEDED, 200, None)
    assert (result.body, result.body_bytes, result.body_truncated) == (b'{"did":"this"}', 14, False)
    assert (result.worker, result.attempts) == ("worker-1", 1)
    assert result.timings.enqueued_at is not None
    assert result.timings.started_at is not None
    assert result.timings.enqueued_at <= result.timings.started_at <= result.timings.finished_at
    record = await harness.record()
    assert (record.state, record.worker) == (RecordState.RUNNING, "worker-1")
    assert (status, 'invocations_total{outcome="succeeded"} 1.0' in text) == (200, True)


@pytest.mark.parametrize(
    ("payload", "timeout_seconds", "expected", "attempts"),
    [
        ("fail", 600, (ResultState.FAILED, FailureClass.FUNCTION_ERROR), 1),
        ("reject", 600, (ResultState.FAILED, FailureClass.FUNCTION_ERROR), 1),
        ("wait", 2, (ResultState.EXPIRED, FailureClass.TIMED_OUT), 1),
        ("late", -1, (ResultState.EXPIRED, FailureClass.TIMED_OUT), 0),
        ("retry", 600, (ResultState.DEAD_LETTERED, FailureClass.FUNCTION_UNREACHABLE), 3),
    ],
)
async def test_unsuccessful_invocation_has_a_failure_class(
    scene: SidecarScene, payload: str, timeout_seconds: float, expected: tuple[ResultState, FailureClass], attempts: int
) -> None:
    async with scene.sidecar():
        await scene.harness.publish_dispatch(payload, timeout_seconds=timeout_seconds)
        result = await scene.harness.wait_result()
        await scene.harness.wait_backlog(0)
    scene.release_call()
    assert result.failure is not None
    assert (result.state, result.failure.failure_class) == expected
    assert scene.handler_calls == [f"{payload} {attempt + 1}" for attempt in range(attempts)]


async def test_large_response_is_truncated_and_flagged(scene: SidecarScene, harness: SidecarHarness) -> None:
    async with scene.sidecar():
        await harness.publish_dispatch("large")
        result = await harness.wait_result()
    assert (result.state, result.body_truncated) == (ResultState.SUCCEEDED, True)
    assert (len(result.body), result.body_bytes) == (64 * 1024, 100_000)


async def test_undecodable_dispatch_is_dead_lettered_with_a_result_if_identifiable(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    subject = harness.topology.subjects.dispatch(FUNCTION_ID)
    async with scene.sidecar():
        await harness.publisher.publish(OutgoingMessage(subject, b"\xff"))
        data, headers = b'{"version": 9, "invocation": {"invocationID": "new"}}', ticket_headers("ticket of new")
        await harness.publisher.publish(OutgoingMessage(subject, data, headers=headers))
        result = await harness.wait_result("new")
        await harness.wait_backlog(0)
    assert [(each.failure_class, each.invocation_id) for each in harness.dead_letters] == [
        (FailureClass.BAD_MESSAGE, ""),
        (FailureClass.BAD_MESSAGE, "new"),
    ]
    assert result.state is ResultState.DEAD_LETTERED


async def test_crashing_invocation_is_retried_up_to_max_attempts(
    nats_account: NatsAccount, harness: SidecarHarness, socket_dir: Path
) -> None:
    """The framework restarts after each crash, as in a pod. While it does not run, other invocations use up no
    attempts."""
    settings = sidecar_settings(nats_account, str(socket_dir / "framework.sock"))
    async with running_sidecar(settings) as running:
        for attempt in (1, 2, 3):
            with running_framework(SOURCE, socket_dir) as framework:
                if attempt == 1:
                    await harness.publish_dispatch("crash", "bad", mode="sync", reply_to=REPLY_SUBJECT)
                await asyncio.to_thread(framework.process.wait, 60)
        result = await harness.wait_result("bad")
        await eventually(lambda: harness.replies == [result], "the caller receives the same result")
        await wait_not_ready(running)
        await harness.publish_dispatch("good", "good")
        await harness.wait_backlog(1)
        with running_framework(SOURCE, socket_dir):
            survived = await harness.wait_result("good")
    assert result.failure is not None
    assert (result.state, result.failure.failure_class) == (ResultState.DEAD_LETTERED, FailureClass.FUNCTION_CRASHED)
    (letter,) = harness.dead_letters
    assert (letter.invocation_id, letter.delivery_count) == ("bad", 3)
    assert (survived.state, survived.attempts) == (ResultState.SUCCEEDED, 1)


async def test_cancel_aborts_the_running_call(scene: SidecarScene, harness: SidecarHarness) -> None:
    async with scene.sidecar():
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        await harness.cancel_invocation()
        result = await harness.wait_result()
        await harness.wait_backlog(0)
    scene.release_call()
    assert result.state is ResultState.CANCELLED


async def test_invocation_cancelled_before_its_start_is_not_called(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    await harness.publish_dispatch("wait", seconds_ago=1)
    await harness.cancel_invocation(publish_hint=False)
    async with scene.sidecar():
        result = await harness.wait_result()
        await harness.wait_backlog(0)
    assert (result.state, scene.handler_calls) == (ResultState.CANCELLED, [])


async def test_cancel_of_a_fresh_dispatch_aborts_the_call(scene: SidecarScene, harness: SidecarHarness) -> None:
    """The record is cancelled before the worker writes it, and the cancel message to the worker is lost."""
    async with scene.sidecar():
        await harness.publish_dispatch("wait", cancelled=True)
        result = await harness.wait_result()
        await harness.wait_backlog(0)
    scene.release_call()
    assert result.state is ResultState.CANCELLED
    assert (await harness.record()).cancel_requested


async def test_long_call_extends_the_ack_wait(scene: SidecarScene, harness: SidecarHarness) -> None:
    """A second worker would receive the redelivery if the ack wait expired."""
    async with scene.sidecar(), scene.sidecar():
        await harness.publish_dispatch(4.5)
        result = await harness.wait_result()
        await harness.wait_backlog(0)
    assert (result.state, result.attempts) == (ResultState.SUCCEEDED, 1)


async def test_invocation_of_a_killed_sidecar_is_redelivered(
    scene: SidecarScene, harness: SidecarHarness, socket_dir: Path
) -> None:
    with sidecar_process(scene.settings(), socket_dir) as killed:
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        killed.kill()
    scene.release_call()
    async with scene.sidecar(worker="worker-2"):
        result = await harness.wait_result()
        await harness.wait_backlog(0)
    assert (result.state, result.worker, result.attempts) == (ResultState.SUCCEEDED, "worker-2", 2)
    assert (await harness.record()).worker == "worker-2"


async def test_drain_request_is_declined_while_busy_and_final_while_idle(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    async with scene.sidecar() as running:
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        declined = await harness.request_drain()
        assert (declined.accepted, declined.in_flight) == (False, 1)
        scene.release_call()
        await harness.wait_backlog(0)
        await harness.wait_event(WorkerEventKind.HEARTBEAT, 0)
        accepted = await harness.request_drain()
        assert (accepted.accepted, accepted.in_flight) == (True, 0)
        await harness.publish_dispatch("other", "inv-2")
        assert await harness.request_drain() == accepted
        await harness.wait_event(WorkerEventKind.DRAINING, 0)
        assert (await running.get("/drained")) == (200, "drained\n")
        assert not await running.is_ready()
        await harness.wait_backlog(1)
    assert "inv-2" not in harness.results


async def test_forced_drain_finishes_running_calls_and_pulls_no_more(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    async with scene.sidecar():
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        forced = await harness.request_drain(force=True)
        assert (forced.accepted, forced.in_flight) == (True, 1)
        await harness.publish_dispatch("other", "inv-2")
        scene.release_call()
        assert (await harness.wait_result()).state is ResultState.SUCCEEDED
        await wait_drained(harness)
        await harness.wait_backlog(1)
    assert "inv-2" not in harness.results


async def wait_drained(harness: SidecarHarness) -> None:
    """Wait until no invocation is in flight. One that has its result is in flight until the server confirms the ack."""
    async with asyncio.timeout(30):
        while (await harness.request_drain()).in_flight:  # noqa: ASYNC110 - the sidecar sends no event for this
            await asyncio.sleep(0.02)


async def test_drain_finishes_in_flight_invocations_and_leaves_the_others(
    scene: SidecarScene, harness: SidecarHarness
) -> None:
    async with scene.sidecar() as running:
        await harness.publish_dispatch("wait")
        await scene.wait_call_started()
        await harness.publish_dispatch("other", "inv-2")
        draining = asyncio.create_task(running.get("/drained"))
        signal.raise_signal(DRAIN_SIGNAL)
        await harness.wait_event(WorkerEventKind.DRAINING, 1)
        assert not draining.done()
        scene.release_call()
        assert await draining == (200, "drained\n")
        assert (await harness.wait_result()).state is ResultState.SUCCEEDED
        await harness.wait_backlog(1)
    assert running.task.done()


async def test_health_endpoints_work_without_framework_and_nats(
    nats_account: NatsAccount, harness: SidecarHarness, socket_dir: Path
) -> None:
    async with running_sidecar(sidecar_settings(nats_account, str(socket_dir / "framework.sock"))) as running:
        async with asyncio.timeout(60):
            while not await _is_alive(running):  # noqa: ASYNC110 - the sidecar sends no event for this
                await asyncio.sleep(0.02)
        status, text = await running.get("/readyz")
        assert (status, "[-] framework" in text) == (503, True)
        assert harness.events == []
        with running_framework(SOURCE, socket_dir):
            await wait_ready(running)
            await eventually(lambda: bool(harness.events), "the worker publishes an event")
            assert harness.events[0].kind is WorkerEventKind.REGISTERED
            assert (harness.events[0].pod_uid, harness.events[0].unit) == ("pod-1", "worker-1")
            await eventually(lambda: len(harness.events) > 2, "the worker publishes heartbeats")
    sequences = [each.sequence for each in harness.events]
    assert sequences == sorted(set(sequences))


async def _is_alive(running: RunningSidecar) -> bool:
    try:
        return (await running.get("/healthz"))[0] == 200
    except OSError:
        return False
