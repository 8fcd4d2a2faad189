"""A function can use two thirds of the bytes that the records of other functions leave free."""

import pytest

from gpu_runtime.runtime_api.invocations.record_shares import RecordUsage, exceeds_share


def usage(record_count: int) -> RecordUsage:
    """A bucket with capacity for 900 records of 100 bytes."""
    return RecordUsage(record_count * 100, record_count, max_bytes=90_000)


def fill_in_turn(function_count: int) -> list[int]:
    """Return the number of records of each function after all functions have added records until each was rejected."""
    counts, accepted = [0] * function_count, True
    while accepted:
        accepted = False
        for each, count in enumerate(counts):
            if not exceeds_share(count, usage(sum(counts))):
                counts[each], accepted = count + 1, True
    return counts


@pytest.mark.parametrize(("function_count", "share"), [(1, 600), (2, 360), (4, 200), (20, 44)])
def test_functions_get_equal_shares_and_a_rest_stays_free(function_count: int, share: int) -> None:
    counts = fill_in_turn(function_count)
    assert counts == pytest.approx([share] * function_count, abs=2)
    assert not exceeds_share(0, usage(sum(counts)))
    assert usage(sum(counts)).free_bytes > 0


def test_no_count_can_exceed_the_share_while_the_bucket_is_far_from_full() -> None:
    assert not any(exceeds_share(count, usage(600)) for count in range(1000))
    assert exceeds_share(601, usage(601))


def test_full_bucket_has_no_free_bytes_and_rejects_every_function_with_records() -> None:
    assert usage(950).free_bytes == 0
    assert exceeds_share(1, usage(950))
