"""The free concurrency of a function's workers follows their events and expires."""

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.contract.timing import HEARTBEAT_SECONDS, capacity_ttl
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.activator.test_worker_liveness import KEY, Clock, event, slow_event


def capacity_after(*events: tuple[str, int]) -> tuple[FunctionCapacity, Clock]:
    clock = Clock()
    capacity = FunctionCapacity(clock)
    for sequence, (kind, in_flight) in enumerate(events):
        capacity.observe(event(kind, sequence, in_flight))
    return capacity, clock


def test_capacity_is_zero_without_worker_events() -> None:
    assert not FunctionCapacity(Clock()).try_acquire("id-f")


def test_free_slot_is_reserved_once_until_the_next_worker_event() -> None:
    capacity, _ = capacity_after(("registered", 0))
    assert not capacity.try_acquire("another")
    assert capacity.try_acquire("id-f")
    assert not capacity.try_acquire("id-f")
    capacity.observe(event("finished", 9))
    assert capacity.try_acquire("id-f")


def test_busy_or_draining_worker_has_no_capacity() -> None:
    assert not capacity_after(("started", 1))[0].try_acquire("id-f")
    assert not capacity_after(("registered", 0), ("draining", 0))[0].try_acquire("id-f")


def test_capacity_expires_for_removed_and_silent_workers() -> None:
    capacity, clock = capacity_after(("registered", 0))
    clock.now = capacity_ttl(HEARTBEAT_SECONDS)
    assert not capacity.try_acquire("id-f")
    capacity.observe(event("heartbeat", 2))
    capacity.remove(ObjectKey("units", "another"))
    assert capacity.try_acquire("id-f")
    capacity.observe(event("heartbeat", 3))
    capacity.remove(KEY)
    assert not capacity.try_acquire("id-f")


def test_capacity_of_a_worker_with_a_long_heartbeat_interval_is_valid_until_after_the_next_heartbeat() -> None:
    clock = Clock()
    capacity = FunctionCapacity(clock)
    capacity.observe(slow_event("registered", 1))
    clock.now = 20.5
    assert capacity.try_acquire("id-f")
    capacity.observe(slow_event("heartbeat", 2))
    clock.now += capacity_ttl(20)
    assert not capacity.try_acquire("id-f")
