"""Each caller has its own allowance, and the memory for it has an end."""

import pytest

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.runtime_api.http.rate_limit import CallerRateLimiter


def refused(rates: CallerRateLimiter, caller: str, now: float) -> float | None:
    """The time to wait; None where the request was admitted."""
    try:
        rates.admit(caller, now)
    except Overloaded as overloaded:
        return overloaded.retry_after
    return None


def test_a_burst_is_allowed_and_then_the_average() -> None:
    rates = CallerRateLimiter(per_second=2, burst=3)
    assert [refused(rates, "a", 0.0) for _ in range(4)] == [None, None, None, 0.5]
    assert refused(rates, "a", 0.25) == 0.25
    assert refused(rates, "a", 0.5) is None
    assert refused(rates, "a", 0.5) == 0.5


def test_unused_rate_accumulates_up_to_the_burst() -> None:
    rates = CallerRateLimiter(per_second=2, burst=3)
    rates.admit("a", 0.0)
    assert [refused(rates, "a", 1000.0) is None for _ in range(4)] == [True, True, True, False]


def test_rate_limit_is_per_caller() -> None:
    rates = CallerRateLimiter(per_second=1, burst=1)
    assert [refused(rates, caller, 0.0) for caller in ("a", "b", "a")] == [None, None, 1.0]


def test_zero_means_no_limit() -> None:
    rates = CallerRateLimiter(per_second=0, burst=1)
    assert [refused(rates, "a", 0.0) for _ in range(1000)] == [None] * 1000


def test_least_recently_used_caller_is_evicted_first() -> None:
    rates = CallerRateLimiter(per_second=1, burst=1, max_callers=2)
    for caller in ("a", "b", "c"):
        rates.admit(caller, 0.0)
    assert len(rates._buckets) == 2
    assert refused(rates, "c", 0.0) == 1.0


def test_rate_limit_error_names_caller_and_delay() -> None:
    rates = CallerRateLimiter(per_second=0.5, burst=1)
    rates.admit("token:shop", 0.0)
    with pytest.raises(Overloaded, match=r"token:shop makes more than 0\.5 requests per second; wait 2 s"):
        rates.admit("token:shop", 0.0)
