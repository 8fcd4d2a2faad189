"""Eviction selects the oldest results beyond the limits, in small batches without gaps."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.result_repository.eviction import EVICTION_BATCH_BYTES, Eviction, EvictionCandidate, plan_eviction
from gpu_runtime.result_repository.repository import EvictedCounts, RetentionLimits

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
HOUR = RetentionLimits(timedelta(hours=1), max_bytes=1000)


def stored_row(number: int, minutes: float, size: int = 100) -> EvictionCandidate:
    return EvictionCandidate(number, NOW - timedelta(minutes=minutes), size)


def test_nothing_is_evicted_below_both_limits() -> None:
    assert plan_eviction([stored_row(1, 59), stored_row(2, 5)], used_bytes=1000, limits=HOUR, now=NOW) is None
    assert plan_eviction([], used_bytes=5000, limits=HOUR, now=NOW) is None


def test_results_older_than_max_age_are_evicted() -> None:
    assert plan_eviction([stored_row(7, 90), stored_row(8, 61), stored_row(9, 59)], 1000, HOUR, NOW) == Eviction(
        8, EvictedCounts(by_ttl=2)
    )


def test_size_limit_evicts_no_more_than_needed() -> None:
    oldest = [stored_row(1, 90), stored_row(2, 50), stored_row(3, 40), stored_row(4, 30)]
    assert plan_eviction(oldest, 1250, HOUR, NOW) == Eviction(3, EvictedCounts(by_ttl=1, by_size=2))


def test_eviction_stops_at_the_first_retained_result() -> None:
    """A result with a timestamp in the future also protects the later results, so that no gap is created."""
    assert plan_eviction([stored_row(1, 90), stored_row(2, -600), stored_row(3, 90)], 1000, HOUR, NOW) == Eviction(
        1, EvictedCounts(by_ttl=1)
    )
    assert plan_eviction([stored_row(1, -600), stored_row(2, 90)], 1000, HOUR, NOW) is None


def test_large_results_are_evicted_in_small_batches() -> None:
    oldest = [stored_row(number, 90, EVICTION_BATCH_BYTES // 2 + 1) for number in range(1, 10)]
    assert plan_eviction(oldest, 10**9, HOUR, NOW) == Eviction(2, EvictedCounts(by_ttl=2))
