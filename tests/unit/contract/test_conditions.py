"""Phases and conditions of objects that a newer version or another client wrote are shown, and cause no error."""

import pytest

from gpu_runtime.contract.crd.conditions import StoragePhase, UnitPhase, current_ready_condition, known_phase
from gpu_runtime.kube.meta import Condition


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Ready", UnitPhase.READY), (None, UnitPhase.PROGRESSING), ("", UnitPhase.PROGRESSING)],
)
def test_phase_of_the_status_is_shown(phase: str | None, expected: UnitPhase) -> None:
    assert known_phase(phase, UnitPhase.PROGRESSING) is expected


def test_unknown_phase_is_shown_as_the_default() -> None:
    assert known_phase("Hibernating", StoragePhase.PENDING) is StoragePhase.PENDING


def test_ready_condition_is_unknown_before_the_first_reconcile() -> None:
    other = Condition(type="Synced", status="True", reason="Done")
    ready = Condition(type="Ready", status="False", reason="NameTaken", message="the name is taken")
    assert current_ready_condition((other, ready)) == ready
    unknown = current_ready_condition((other,))
    assert (unknown.status, unknown.reason, unknown.message) == ("Unknown", "", "")
