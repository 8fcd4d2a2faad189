"""The byte budget is fair: a caller may hold as many bytes as are free."""

from contextlib import ExitStack

import pytest

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.runtime_api.http.byte_budget import ByteBudget


def admitted(budget: ByteBudget, stack: ExitStack, caller: str, size: int) -> int:
    """Return how many requests of this size the caller can have in flight."""
    count = 0
    while True:
        try:
            stack.enter_context(budget.reserve(caller, size))
        except Overloaded:
            return count
        count += 1


def test_one_caller_gets_half_and_the_next_ones_get_a_share_of_the_rest() -> None:
    budget = ByteBudget(1200)
    with ExitStack() as stack:
        assert [admitted(budget, stack, caller, 10) for caller in ("a", "b", "c")] == [60, 30, 15]
        with (
            pytest.raises(Overloaded, match="the bodies of the requests of a in flight") as raised,
            budget.reserve("a", 10),
        ):
            pass
        assert raised.value.retry_after == 1
    assert budget.held == 0


def test_smaller_body_releases_bytes() -> None:
    budget = ByteBudget(1000)
    with budget.reserve("a", 500) as held:
        held.shrink(10)
        assert budget.held == 10
        with budget.reserve("a", 490):
            assert budget.held == 500
    assert budget.held == 0


def test_failed_request_returns_its_bytes() -> None:
    budget = ByteBudget(1000)
    with pytest.raises(KeyError), budget.reserve("a", 500):
        raise KeyError
    assert budget.held == 0


def test_request_without_a_body_is_admitted_if_the_budget_is_used_up() -> None:
    budget = ByteBudget(1000)
    with budget.reserve("a", 500), budget.reserve("b", 500), budget.reserve("c", 0):
        assert budget.held == 1000
