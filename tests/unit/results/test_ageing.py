"""Which results go: a beginning of the oldest, no larger than one transaction should be."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.result_repository.eviction import AT_ONCE_BYTES, Doomed, Old, doomed
from gpu_runtime.result_repository.repository import Forgotten, Keeping

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
HOUR = Keeping(timedelta(hours=1), bytes=1000)


def old(number: int, minutes: float, size: int = 100) -> Old:
    return Old(number, NOW - timedelta(minutes=minutes), size)


def test_nothing_goes_before_its_time_while_there_is_room() -> None:
    assert doomed([old(1, 59), old(2, 5)], used=1000, keeping=HOUR, now=NOW) is None
    assert doomed([], used=5000, keeping=HOUR, now=NOW) is None


def test_what_is_older_than_the_time_goes() -> None:
    assert doomed([old(7, 90), old(8, 61), old(9, 59)], 1000, HOUR, NOW) == Doomed(8, Forgotten(expired=2))


def test_for_want_of_room_no_more_goes_than_needed() -> None:
    oldest = [old(1, 90), old(2, 50), old(3, 40), old(4, 30)]
    assert doomed(oldest, 1250, HOUR, NOW) == Doomed(3, Forgotten(expired=1, crowded_out=2))


def test_it_ends_at_the_first_that_may_stay() -> None:
    """A clock that was ahead keeps what came after it a while longer, and no gap is made."""
    assert doomed([old(1, 90), old(2, -600), old(3, 90)], 1000, HOUR, NOW) == Doomed(1, Forgotten(expired=1))
    assert doomed([old(1, -600), old(2, 90)], 1000, HOUR, NOW) is None


def test_large_results_go_a_few_at_a_time() -> None:
    oldest = [old(number, 90, AT_ONCE_BYTES // 2 + 1) for number in range(1, 10)]
    assert doomed(oldest, 10**9, HOUR, NOW) == Doomed(2, Forgotten(expired=2))
