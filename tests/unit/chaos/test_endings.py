"""How a run that does not end well tells of it."""

import pytest

from tests.chaos.__main__ import what_was_wrong
from tests.chaos.rounds import Violated


def test_a_violation_is_told_alone_whatever_ends_with_it() -> None:
    within = ExceptionGroup("callers", [Violated("two units of one stock")])
    assert what_was_wrong(ExceptionGroup("all", [within, ConnectionError("broken off")])) == "two units of one stock"


def test_what_is_no_violation_is_told_with_its_place() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert "_ = 1 / 0" in what_was_wrong(raised.value)
