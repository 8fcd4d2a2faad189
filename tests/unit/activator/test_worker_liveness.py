"""Worker liveness follows the events of workers. The backoff of a function follows the failures of its workers."""

from msgspec import structs

from gpu_runtime.activator.autoscaler import WorkerState
from gpu_runtime.activator.worker_backoff import WorkerBackoff
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.activator.activator_objects import worker

KEY = ObjectKey("units", "f-w0")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def event(kind: str, sequence: int, in_flight: int = 0, pod_uid: str = "one") -> WorkerEvent:
    return WorkerEvent(
        kind=WorkerEventKind(kind),
        function_id="id-f",
        unit=KEY.name,
        namespace=KEY.namespace,
        pod_uid=pod_uid,
        sequence=sequence,
        in_flight=in_flight,
    )


def slow_event(kind: str, sequence: int, in_flight: int = 0, heartbeat_seconds: float = 20) -> WorkerEvent:
    """An event of a worker with a long heartbeat interval."""
    return structs.replace(event(kind, sequence, in_flight), heartbeat_seconds=heartbeat_seconds)


def liveness_after(*events: tuple[float, WorkerEvent]) -> WorkerLiveness:
    clock = Clock()
    liveness = WorkerLiveness(clock)
    for time, each in events:
        clock.now = time
        liveness.observe(each)
    return liveness


def test_worker_is_idle_from_its_first_event_until_an_invocation_starts() -> None:
    status = liveness_after((1, event("registered", 1)), (5, event("heartbeat", 2))).status_of(KEY)
    assert status
    assert (status.first_seen, status.last_seen, status.idle_since) == (1, 5, 1)
    busy = liveness_after((1, event("registered", 1)), (5, event("started", 2, in_flight=1))).status_of(KEY)
    assert busy
    assert busy.idle_since is None


def test_status_has_the_heartbeat_interval_of_the_last_event() -> None:
    registered = (1.0, slow_event("registered", 1))
    first = liveness_after(registered).status_of(KEY)
    second = liveness_after(registered, (2.0, slow_event("heartbeat", 2, heartbeat_seconds=30))).status_of(KEY)
    assert first
    assert second
    assert (first.heartbeat_seconds, second.heartbeat_seconds) == (20, 30)


def test_worker_is_idle_again_after_its_last_invocation() -> None:
    events = (
        (1, event("registered", 1)),
        (2, event("started", 2, 1)),
        (9, event("finished", 3)),
        (12, event("heartbeat", 4)),
    )
    status = liveness_after(*events).status_of(KEY)
    assert status
    assert status.idle_since == 9


def test_finished_event_without_started_event_resets_idle_time() -> None:
    status = liveness_after((1, event("registered", 1)), (9, event("finished", 3))).status_of(KEY)
    assert status
    assert status.idle_since == 9


def test_late_event_with_lower_sequence_is_ignored() -> None:
    status = liveness_after((1, event("started", 5, in_flight=1)), (2, event("heartbeat", 4))).status_of(KEY)
    assert status
    assert status.in_flight == 1


def test_draining_lasts_until_the_next_pod_registers() -> None:
    events = [(1.0, event("draining", 1)), (2.0, event("heartbeat", 2))]
    status = liveness_after(*events).status_of(KEY)
    assert status
    assert status.draining
    successor = liveness_after(*events, (3, event("registered", 1, pod_uid="two"))).status_of(KEY)
    assert successor
    assert (successor.pod_uid, successor.draining) == ("two", False)


def test_restarted_sidecar_in_the_same_pod_is_no_longer_draining() -> None:
    status = liveness_after((1, event("draining", 1)), (2, event("registered", 9))).status_of(KEY)
    assert status
    assert not status.draining


def test_next_pod_of_a_removed_unit_starts_without_a_status() -> None:
    liveness = liveness_after((1, event("draining", 9)))
    liveness.remove(KEY)
    assert liveness.observe(event("registered", 1, pod_uid="two"))
    status = liveness.status_of(KEY)
    assert status
    assert (status.pod_uid, status.draining) == ("two", False)


def test_backoff_grows_with_worker_failures_and_resets_on_success() -> None:
    clock = Clock()
    liveness, backoff, function = (
        WorkerLiveness(clock),
        WorkerBackoff(Backoff(initial_seconds=10, max_seconds=100, jitter=0)),
        ObjectKey("units", "f"),
    )
    first, second = worker(0, WorkerState.UNHEALTHY), worker(1, WorkerState.UNHEALTHY)
    backoff.observe(function, [first], liveness, 0)
    assert (backoff.allows_create(function, 9), backoff.allows_create(function, 10)) == (False, True)
    backoff.observe(function, [first], liveness, 9)  # the same worker is not counted twice
    assert backoff.allows_create(function, 10)
    backoff.observe(function, [second], liveness, 12)
    assert (backoff.allows_create(function, 31), backoff.allows_create(function, 32)) == (False, True)
    clock.now = 13
    liveness.observe(event("registered", 1))
    backoff.observe(function, [worker(0)], liveness, 14)
    assert backoff.allows_create(function, 14)
