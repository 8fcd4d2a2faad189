"""The readiness of an object, and the readiness of a unit or pool."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase

P = TypeVar("P", bound=StrEnum)


@dataclass(frozen=True)
class Readiness(Generic[P]):
    """The phase, and the reason and message of the Ready condition."""

    phase: P
    reason: ReadyReason
    message: str

    @property
    def ready(self) -> bool:
        return self.phase == UnitPhase.READY


class WorkloadReadiness(Readiness[UnitPhase]):
    """The readiness of a unit or pool. It is ready if and only if its phase is Ready."""


@dataclass(frozen=True)
class Blocked:
    """Why the children are not created or updated. `failed` is False if the cause disappears without user action."""

    reason: ReadyReason
    message: str
    failed: bool = True

    @property
    def readiness(self) -> WorkloadReadiness:
        return WorkloadReadiness(UnitPhase.FAILED if self.failed else UnitPhase.PROGRESSING, self.reason, self.message)
