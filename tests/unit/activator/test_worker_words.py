"""What is known of workers from what they say, and of functions whose workers fail."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.activator.autoscaler import WorkerState
from gpu_runtime.activator.worker_backoff import Setbacks
from gpu_runtime.activator.worker_liveness import REMAINS, Workers
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import Key
from tests.unit.activator.objects import worker

KEY = Key("units", "f-w0")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def event(kind: str, sequence: int, in_flight: int = 0, instance: str = "one", at: float = 0) -> WorkerEvent:
    return WorkerEvent(
        kind=WorkerEventKind(kind),
        serverless_request_id="f",
        worker=KEY.name,
        namespace=KEY.namespace,
        instance=instance,
        sequence=sequence,
        at=BEGIN + timedelta(seconds=at),
        in_flight=in_flight,
    )


def told(*events: tuple[float, WorkerEvent]) -> Workers:
    clock = Clock()
    workers = Workers(clock)
    for moment, each in events:
        clock.now = moment
        workers.hear(each)
    return workers


def test_a_worker_is_idle_from_its_first_word_until_it_begins_something() -> None:
    known = told((1, event("registered", 1)), (5, event("heartbeat", 2))).of(KEY)
    assert known
    assert (known.since, known.at, known.idle_since) == (1, 5, 1)
    busy = told((1, event("registered", 1)), (5, event("started", 2, in_flight=1))).of(KEY)
    assert busy
    assert busy.idle_since is None


def test_a_worker_is_idle_again_from_the_end_of_its_last_invocation() -> None:
    words = (
        (1, event("registered", 1)),
        (2, event("started", 2, 1)),
        (9, event("finished", 3)),
        (12, event("heartbeat", 4)),
    )
    known = told(*words).of(KEY)
    assert known
    assert known.idle_since == 9


def test_an_end_whose_beginning_was_not_heard_is_work_all_the_same() -> None:
    known = told((1, event("registered", 1)), (9, event("finished", 3))).of(KEY)
    assert known
    assert known.idle_since == 9


def test_an_older_word_that_comes_late_changes_nothing() -> None:
    known = told((1, event("started", 5, in_flight=1)), (2, event("heartbeat", 4))).of(KEY)
    assert known
    assert known.in_flight == 1


def test_who_takes_no_more_work_stays_so_but_its_successor_takes_some() -> None:
    words = [(1.0, event("draining", 1)), (2.0, event("heartbeat", 2))]
    known = told(*words).of(KEY)
    assert known
    assert known.draining
    successor = told(*words, (3, event("registered", 1, instance="two", at=5))).of(KEY)
    assert successor
    assert (successor.instance, successor.draining) == ("two", False)


def test_a_sidecar_that_is_started_again_in_its_pod_takes_work_again() -> None:
    known = told((1, event("draining", 1)), (2, event("registered", 9))).of(KEY)
    assert known
    assert not known.draining


def test_the_last_words_of_a_predecessor_are_not_its_successors() -> None:
    known = told((1, event("registered", 1, instance="two", at=5)), (2, event("draining", 9, instance="one", at=4))).of(
        KEY
    )
    assert known
    assert (known.instance, known.draining) == ("two", False)


def test_a_pod_that_outlives_its_unit_does_not_speak_for_the_next_unit_of_that_name() -> None:
    workers = told((1, event("draining", 1)))
    workers.leave(KEY)
    assert not workers.hear(event("draining", 2, at=5))
    assert workers.of(KEY) is None
    assert workers.hear(event("registered", 1, instance="two", at=3))  # by another clock
    known = workers.of(KEY)
    assert known
    assert (known.instance, known.draining) == ("two", False)


def test_those_who_are_gone_are_not_remembered_for_ever() -> None:
    clock = Clock()
    workers = Workers(clock)
    for number in range(3):
        clock.now = number * 1.1 * REMAINS
        workers.hear(event("registered", 1, instance=f"pod-{number}", at=clock.now))
        workers.leave(KEY)
    assert list(workers._gone) == ["pod-2"]


def test_pauses_grow_with_the_workers_that_fail_and_end_when_one_serves() -> None:
    clock = Clock()
    workers, setbacks, function = Workers(clock), Setbacks(Backoff(first=10, longest=100, spread=0)), Key("units", "f")
    first, second = worker(0, WorkerState.BROKEN), worker(1, WorkerState.BROKEN)
    setbacks.note(function, [first], workers, 0)
    assert (setbacks.over(function, 9), setbacks.over(function, 10)) == (False, True)
    setbacks.note(function, [first], workers, 9)  # the same one is not counted twice
    assert setbacks.over(function, 10)
    setbacks.note(function, [second], workers, 12)
    assert (setbacks.over(function, 31), setbacks.over(function, 32)) == (False, True)
    clock.now = 13
    workers.hear(event("registered", 1))
    setbacks.note(function, [worker(0)], workers, 14)
    assert setbacks.over(function, 14)
