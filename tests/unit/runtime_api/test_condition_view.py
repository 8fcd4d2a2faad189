"""Phases and conditions of objects that a newer version or another client wrote are shown, and cause no error."""

import pytest

from gpu_runtime.contract.crd.conditions import StoragePhase, UnitPhase
from gpu_runtime.kube.meta import Condition
from gpu_runtime.runtime_api.condition_view import known_phase, ready_condition
from gpu_runtime.runtime_api.stock.view import phase_of
from tests.unit.runtime_api.runtime_api_objects import unit


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Ready", UnitPhase.READY), (None, UnitPhase.PROGRESSING), ("", UnitPhase.PROGRESSING)],
)
def test_phase_of_the_status_is_shown(phase: str | None, expected: UnitPhase) -> None:
    assert known_phase(phase, UnitPhase.PROGRESSING) is expected


def test_unknown_phase_is_shown_as_the_default() -> None:
    assert known_phase("Hibernating", StoragePhase.PENDING) is StoragePhase.PENDING
    assert phase_of(unit(phase="Hibernating")) is UnitPhase.PROGRESSING


def test_ready_condition_is_unknown_before_the_first_reconcile() -> None:
    other = Condition(type="Synced", status="True", reason="Done")
    ready = Condition(type="Ready", status="False", reason="NameTaken", message="the name is taken")
    assert ready_condition((other, ready)) == ready
    unknown = ready_condition((other,))
    assert (unknown.status, unknown.reason, unknown.message) == ("Unknown", "", "")
