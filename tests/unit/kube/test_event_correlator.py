"""What repeats becomes one Event with a count; what is too much is dropped."""

import datetime

from gpu_runtime.kube.event_recorder import EventCorrelator, EventIdentity, EventLimits
from gpu_runtime.kube.meta import ObjectKey

WALL = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)


def event_identity(note: str = "it broke", name: str = "thing", namespace: str = "ns") -> EventIdentity:
    return EventIdentity(
        "v1", "Thing", ObjectKey(namespace, name), f"uid-{name}", "Warning", "Broken", "Reconcile", note
    )


def test_repeated_event_increments_the_series_count() -> None:
    ledger = EventCorrelator()
    for at in range(3):
        assert ledger.observe(event_identity(), float(at), WALL + datetime.timedelta(seconds=at))
    ((_, series),) = ledger.pop_due(3.0)
    assert series.count == 3
    assert series.last_time == WALL + datetime.timedelta(seconds=2)
    assert ledger.pop_due(100.0) == [], "nothing happened since"


def test_series_updates_are_rate_limited() -> None:
    ledger = EventCorrelator(EventLimits(update_interval=5.0))
    ledger.observe(event_identity(), 0.0, WALL)
    assert len(ledger.pop_due(0.0)) == 1
    ledger.observe(event_identity(), 1.0, WALL)
    assert ledger.pop_due(4.9) == []
    assert len(ledger.pop_due(5.0)) == 1


def test_repeated_event_after_the_series_timeout_is_new() -> None:
    ledger = EventCorrelator(EventLimits(series_timeout=360.0))
    ledger.observe(event_identity(), 0.0, WALL)
    ((_, first),) = ledger.pop_due(0.0)
    ledger.observe(event_identity(), 360.0, WALL)
    ((_, second),) = ledger.pop_due(360.0)
    assert (second.count, second.key != first.key) == (1, True)


def test_one_object_cannot_flood_the_cluster_and_does_not_silence_others() -> None:
    ledger = EventCorrelator(EventLimits(burst=3, refill_interval=60.0))
    noted = [ledger.observe(event_identity(f"note {number}"), 0.0, WALL) for number in range(5)]
    assert noted == [True, True, True, False, False]
    assert ledger.observe(event_identity("note 0"), 0.0, WALL), "counting up is always allowed"
    assert ledger.observe(event_identity(name="other"), 0.0, WALL)
    assert not ledger.observe(event_identity("later"), 59.0, WALL)
    assert ledger.observe(event_identity("later"), 60.0, WALL)


def test_event_cache_is_bounded() -> None:
    ledger = EventCorrelator(EventLimits(max_cached_events=10))
    for number in range(100):
        ledger.observe(event_identity(name=f"thing-{number}"), 0.0, WALL)
    assert len(ledger.cache) == len(ledger.pending) == len(ledger.token_buckets) == 10


def test_events_of_cluster_scoped_objects_use_the_default_namespace() -> None:
    ledger = EventCorrelator()
    ledger.observe(event_identity(namespace=""), 0.0, WALL)
    ((_, series),) = ledger.pop_due(0.0)
    assert series.key.namespace == "default"
