"""Repeated Events become one Event with a count, and Events above the limits are dropped."""

import datetime

from gpu_runtime.kube.event_recorder import EventCorrelator, EventIdentity, EventLimits
from gpu_runtime.kube.meta import ObjectKey

WALL = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)


def event_identity(note: str = "it broke", name: str = "thing", namespace: str = "ns") -> EventIdentity:
    return EventIdentity(
        "v1", "Thing", ObjectKey(namespace, name), f"uid-{name}", "Warning", "Broken", "Reconcile", note
    )


def test_repeated_event_increments_the_series_count() -> None:
    correlator = EventCorrelator()
    for at in range(3):
        assert correlator.observe(event_identity(), float(at), WALL + datetime.timedelta(seconds=at))
    ((_, record),) = correlator.pop_due(3.0)
    assert record.count == 3
    assert record.last_time == WALL + datetime.timedelta(seconds=2)
    assert correlator.pop_due(100.0) == [], "no repetition since"


def test_series_updates_are_rate_limited() -> None:
    correlator = EventCorrelator(EventLimits(update_interval=5.0))
    correlator.observe(event_identity(), 0.0, WALL)
    assert len(correlator.pop_due(0.0)) == 1
    correlator.observe(event_identity(), 1.0, WALL)
    assert correlator.pop_due(4.9) == []
    assert len(correlator.pop_due(5.0)) == 1


def test_event_that_repeats_all_the_time_is_written_less_and_less() -> None:
    correlator = EventCorrelator(EventLimits(update_interval=5.0, max_update_interval=300.0))
    writes = 0
    for second in range(3600):
        correlator.observe(event_identity(), float(second), WALL)
        writes += len(correlator.pop_due(float(second)))
    assert writes <= 19


def test_repeated_event_after_the_series_timeout_is_new() -> None:
    correlator = EventCorrelator(EventLimits(series_timeout=360.0))
    correlator.observe(event_identity(), 0.0, WALL)
    ((_, first),) = correlator.pop_due(0.0)
    correlator.observe(event_identity(), 360.0, WALL)
    ((_, second),) = correlator.pop_due(360.0)
    assert (second.count, second.key != first.key) == (1, True)


def test_event_rate_is_limited_per_object() -> None:
    correlator = EventCorrelator(EventLimits(burst=3, refill_interval=60.0))
    recorded = [correlator.observe(event_identity(f"note {number}"), 0.0, WALL) for number in range(5)]
    assert recorded == [True, True, True, False, False]
    assert correlator.observe(event_identity("note 0"), 0.0, WALL), "a repetition needs no token"
    assert correlator.observe(event_identity(name="other"), 0.0, WALL)
    assert not correlator.observe(event_identity("later"), 59.0, WALL)
    assert correlator.observe(event_identity("later"), 60.0, WALL)


def test_event_cache_is_bounded() -> None:
    correlator = EventCorrelator(EventLimits(max_cached_events=10))
    for number in range(100):
        correlator.observe(event_identity(name=f"thing-{number}"), 0.0, WALL)
    assert len(correlator.cache) == len(correlator.pending) == len(correlator.token_buckets) == 10


def test_events_of_cluster_scoped_objects_use_the_default_namespace() -> None:
    correlator = EventCorrelator()
    correlator.observe(event_identity(namespace=""), 0.0, WALL)
    ((_, record),) = correlator.pop_due(0.0)
    assert record.key.namespace == "default"
