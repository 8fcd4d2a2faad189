"""Whether a function's workers have room, as far as they said."""

from gpu_runtime.activator.capacity import CAPACITY_TTL_SECONDS, FunctionCapacity
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.activator.test_worker_liveness import KEY, Clock, event


def capacity_after(*events: tuple[str, int]) -> tuple[FunctionCapacity, Clock]:
    clock = Clock()
    room = FunctionCapacity(clock)
    for sequence, (kind, in_flight) in enumerate(events):
        room.observe(event(kind, sequence, in_flight))
    return room, clock


def test_capacity_is_zero_without_worker_events() -> None:
    assert not FunctionCapacity(Clock()).try_acquire("f")


def test_free_slot_is_reserved_once_until_the_next_worker_event() -> None:
    room, _ = capacity_after(("registered", 0))
    assert not room.try_acquire("another")
    assert room.try_acquire("f")
    assert not room.try_acquire("f")
    room.observe(event("finished", 9))
    assert room.try_acquire("f")


def test_busy_or_draining_worker_has_no_capacity() -> None:
    assert not capacity_after(("started", 1))[0].try_acquire("f")
    assert not capacity_after(("registered", 0), ("draining", 0))[0].try_acquire("f")


def test_capacity_expires_for_removed_and_silent_workers() -> None:
    room, clock = capacity_after(("registered", 0))
    clock.now = CAPACITY_TTL_SECONDS
    assert not room.try_acquire("f")
    room.observe(event("heartbeat", 2))
    room.remove(ObjectKey("units", "another"))
    assert room.try_acquire("f")
    room.observe(event("heartbeat", 3))
    room.remove(KEY)
    assert not room.try_acquire("f")
