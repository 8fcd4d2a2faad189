"""Pagination of lists."""

import pytest

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.http.paging import paginate

Item = tuple[str, str]


def identity(item: Item) -> Item:
    return item


def list_all(items: list[Item], limit: int) -> list[Item]:
    listed, after = paginate(items, identity, limit, None)
    while after:
        page, after = paginate(items, identity, limit, after)
        listed += page
    return listed


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("limit", [1, 2, 3, 500])
def test_pages_together_are_the_list_in_order(count: int, limit: int) -> None:
    items = [(f"n{number % 2}", f"u{number}") for number in reversed(range(count))]
    assert list_all(items, limit) == sorted(items)


def test_full_last_page_has_no_continue_token() -> None:
    assert paginate([("n", "a"), ("n", "b")], identity, 2, None) == ([("n", "a"), ("n", "b")], None)


def test_changes_between_pages_cause_no_duplicates_and_no_gaps() -> None:
    before = [("n", name) for name in "bdfh"]
    first, after = paginate(before, identity, 2, None)
    now = [("n", name) for name in "acefh"]  # b and d were deleted; a, c and e were created
    second, _ = paginate(now, identity, 10, after)
    assert first == [("n", "b"), ("n", "d")]
    assert second == [("n", "e"), ("n", "f"), ("n", "h")]


@pytest.mark.parametrize("after", ["x", "!!!!", "e30", "WyJhIl0", "ünicode", "W10=", "bm9uZQ"])
def test_invalid_continue_token_is_rejected(after: str) -> None:
    with pytest.raises(Invalid, match=r"^continue: is not a valid token"):
        paginate([("n", "a")], identity, 2, after)
