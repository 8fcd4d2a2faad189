"""Each caller has its own allowance, and the memory for it has an end."""

import pytest

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.runtime_api.http.rate_limit import Rates


def refused(rates: Rates, caller: str, now: float) -> float | None:
    """The time to wait; None where the request was admitted."""
    try:
        rates.admit(caller, now)
    except Overloaded as overloaded:
        return overloaded.retry_after
    return None


def test_a_burst_is_allowed_and_then_the_average() -> None:
    rates = Rates(per_second=2, burst=3)
    assert [refused(rates, "a", 0.0) for _ in range(4)] == [None, None, None, 0.5]
    assert refused(rates, "a", 0.25) == 0.25
    assert refused(rates, "a", 0.5) is None
    assert refused(rates, "a", 0.5) == 0.5


def test_what_is_not_used_is_saved_up_to_the_burst() -> None:
    rates = Rates(per_second=2, burst=3)
    rates.admit("a", 0.0)
    assert [refused(rates, "a", 1000.0) is None for _ in range(4)] == [True, True, True, False]


def test_one_caller_does_not_use_up_what_another_has() -> None:
    rates = Rates(per_second=1, burst=1)
    assert [refused(rates, caller, 0.0) for caller in ("a", "b", "a")] == [None, None, 1.0]


def test_zero_means_no_limit() -> None:
    rates = Rates(per_second=0, burst=1)
    assert [refused(rates, "a", 0.0) for _ in range(1000)] == [None] * 1000


def test_whoever_was_silent_the_longest_is_forgotten_first() -> None:
    rates = Rates(per_second=1, burst=1, callers=2)
    for caller in ("a", "b", "c"):
        rates.admit(caller, 0.0)
    assert len(rates._buckets) == 2
    assert refused(rates, "c", 0.0) == 1.0


def test_the_refusal_says_who_and_how_long() -> None:
    rates = Rates(per_second=0.5, burst=1)
    rates.admit("token:shop", 0.0)
    with pytest.raises(Overloaded, match=r"token:shop makes more than 0\.5 requests per second; wait 2 s"):
        rates.admit("token:shop", 0.0)
