"""The report of a failed chaos run names the violated invariants, or shows the traceback of another error."""

import pytest

from tests.chaos.__main__ import failure_text
from tests.chaos.chaos_round import InvariantViolated


def test_report_of_a_violation_omits_other_errors() -> None:
    nested = ExceptionGroup("callers", [InvariantViolated("two units from one stock unit")])
    error = ExceptionGroup("all", [nested, ConnectionError("connection closed")])
    assert failure_text(error) == "two units from one stock unit"


def test_report_of_another_error_includes_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert "_ = 1 / 0" in failure_text(raised.value)
