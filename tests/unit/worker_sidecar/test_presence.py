"""What a worker tells of itself, and what of several things."""

from gpu_runtime.contract.messages.worker_event import WorkerEventKind
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.worker_sidecar.heartbeat import Presence
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

REGISTERED, HEARTBEAT, DRAINING = WorkerEventKind.REGISTERED, WorkerEventKind.HEARTBEAT, WorkerEventKind.DRAINING
STARTED, FINISHED = WorkerEventKind.STARTED, WorkerEventKind.FINISHED


def presence(in_flight: int = 0) -> Presence:
    settings = WorkerSidecarSettings(request_id="fn-1", worker="worker-1", namespace="runtime-instance")
    nowhere = Connection(Options(("nats://127.0.0.1:1",)))
    return Presence(nowhere, settings, "pod-1", lambda: in_flight)


async def test_nothing_is_told_until_the_framework_answers_and_then_that_comes_first() -> None:
    worker = presence()
    assert worker.to_be_told() == ()
    worker.registered()
    worker.started("a")
    assert worker.to_be_told() == ((REGISTERED, ""), (STARTED, "a"))
    assert worker.to_be_told() == ((HEARTBEAT, ""),)


async def test_of_several_starts_and_ends_a_start_is_told() -> None:
    worker = presence()
    for invocation_id in ("a", "b"):
        worker.started(invocation_id)
        worker.finished(invocation_id)
    assert worker.to_be_told() == ((STARTED, "b"),)
    worker.finished("b")
    assert worker.to_be_told() == ((FINISHED, "b"),)


async def test_a_worker_whose_framework_went_silent_is_heard_of_only_while_it_has_work() -> None:
    for in_flight, told in ((0, ()), (1, ((HEARTBEAT, ""),))):
        worker = presence(in_flight)
        worker.registered()
        worker.to_be_told()
        worker.absent()
        assert worker.to_be_told() == told


async def test_a_draining_worker_says_nothing_else() -> None:
    worker = presence()
    worker.draining()
    worker.registered()
    worker.started("a")
    assert worker.to_be_told() == ((DRAINING, ""),)
    assert worker.to_be_told() == ((DRAINING, ""),)
