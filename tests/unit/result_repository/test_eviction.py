"""Eviction selects expired results, then results of the largest function, in small batches."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.result_repository.eviction import (
    EVICTION_BATCH_BYTES,
    EvictionBatch,
    EvictionCandidate,
    Surplus,
    expired_batch,
    oversized_batch,
)

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
AN_HOUR_AGO = NOW - timedelta(hours=1)


def stored_row(number: int, minutes: float, size: int = 100) -> EvictionCandidate:
    return EvictionCandidate(number, NOW - timedelta(minutes=minutes), size)


def test_results_below_max_age_do_not_expire() -> None:
    assert expired_batch([stored_row(1, 59), stored_row(2, 5)], AN_HOUR_AGO) is None
    assert expired_batch([], AN_HOUR_AGO) is None


def test_results_older_than_max_age_are_evicted() -> None:
    oldest = [stored_row(7, 90), stored_row(8, 61), stored_row(9, 59)]
    assert expired_batch(oldest, AN_HOUR_AGO) == EvictionBatch(8, count=2)


def test_size_limit_evicts_no_more_than_needed() -> None:
    oldest = [stored_row(1, 50), stored_row(3, 40), stored_row(8, 30), stored_row(9, 20)]
    assert oversized_batch(oldest, Surplus(excess_bytes=250, margin_bytes=10**6)) == EvictionBatch(8, count=3)


def test_function_loses_results_until_another_function_is_larger() -> None:
    oldest = [stored_row(1, 50), stored_row(3, 40), stored_row(8, 30), stored_row(9, 20)]
    assert oversized_batch(oldest, Surplus(excess_bytes=10**6, margin_bytes=150)) == EvictionBatch(3, count=2)


def test_eviction_stops_at_the_first_retained_result() -> None:
    """A result with a timestamp in the future also protects the later results."""
    oldest = [stored_row(1, 90), stored_row(2, -600), stored_row(3, 90)]
    assert expired_batch(oldest, AN_HOUR_AGO) == EvictionBatch(1, count=1)
    assert expired_batch([stored_row(1, -600), stored_row(2, 90)], AN_HOUR_AGO) is None


def test_large_results_are_evicted_in_small_batches() -> None:
    oldest = [stored_row(number, 90, EVICTION_BATCH_BYTES // 2 + 1) for number in range(1, 10)]
    assert expired_batch(oldest, AN_HOUR_AGO) == EvictionBatch(2, count=2)
    assert oversized_batch(oldest, Surplus(10**9, 10**9)) == EvictionBatch(2, count=2)
