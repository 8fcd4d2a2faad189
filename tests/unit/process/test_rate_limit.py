"""Each caller has its own rate limit, and the number of buckets is bounded."""

import pytest

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.process.rate_limit import CallerRateLimiter


def retry_after(limiter: CallerRateLimiter, caller: str, now: float) -> float | None:
    """The time to wait in seconds. None if the request was admitted."""
    try:
        limiter.admit(caller, now)
    except Overloaded as overloaded:
        return overloaded.retry_after
    return None


def test_burst_is_admitted_and_then_the_average_rate() -> None:
    limiter = CallerRateLimiter(per_second=2, burst=3)
    assert [retry_after(limiter, "a", 0.0) for _ in range(4)] == [None, None, None, 0.5]
    assert retry_after(limiter, "a", 0.25) == 0.25
    assert retry_after(limiter, "a", 0.5) is None
    assert retry_after(limiter, "a", 0.5) == 0.5


def test_unused_rate_accumulates_up_to_the_burst() -> None:
    limiter = CallerRateLimiter(per_second=2, burst=3)
    limiter.admit("a", 0.0)
    assert [retry_after(limiter, "a", 1000.0) is None for _ in range(4)] == [True, True, True, False]


def test_rate_limit_is_per_caller() -> None:
    limiter = CallerRateLimiter(per_second=1, burst=1)
    assert [retry_after(limiter, caller, 0.0) for caller in ("a", "b", "a")] == [None, None, 1.0]


def test_rate_zero_means_no_limit() -> None:
    limiter = CallerRateLimiter(per_second=0, burst=1)
    assert [retry_after(limiter, "a", 0.0) for _ in range(1000)] == [None] * 1000


def test_least_recently_used_caller_is_evicted_first() -> None:
    limiter = CallerRateLimiter(per_second=1, burst=1, max_callers=2)
    for caller in ("a", "b", "c"):
        limiter.admit(caller, 0.0)
    assert len(limiter._buckets) == 2
    assert retry_after(limiter, "c", 0.0) == 1.0


def test_rate_limit_error_names_caller_and_delay() -> None:
    limiter = CallerRateLimiter(per_second=0.5, burst=1)
    limiter.admit("token:shop", 0.0)
    with pytest.raises(Overloaded, match=r"token:shop sends more than 0\.5 requests per second; wait 2 s"):
        limiter.admit("token:shop", 0.0)
