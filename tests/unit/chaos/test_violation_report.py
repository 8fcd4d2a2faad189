"""How a run that does not end well tells of it."""

import pytest

from tests.chaos.__main__ import failure_text
from tests.chaos.chaos_round import InvariantViolated


def test_report_of_a_violation_omits_other_errors() -> None:
    within = ExceptionGroup("callers", [InvariantViolated("two units of one stock")])
    assert failure_text(ExceptionGroup("all", [within, ConnectionError("broken off")])) == "two units of one stock"


def test_report_of_another_error_includes_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        _ = 1 / 0
    assert "_ = 1 / 0" in failure_text(raised.value)
