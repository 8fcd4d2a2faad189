"""The readiness of a unit or pool."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase


@dataclass(frozen=True)
class WorkloadReadiness:
    """The phase, and the reason and message of the Ready condition."""

    phase: UnitPhase
    reason: ReadyReason
    message: str

    @property
    def ready(self) -> bool:
        return self.phase is UnitPhase.READY


@dataclass(frozen=True)
class Blocked:
    """Why the children are not created or updated. `failed` is False if the cause disappears without user action."""

    reason: ReadyReason
    message: str
    failed: bool = True

    @property
    def readiness(self) -> WorkloadReadiness:
        return WorkloadReadiness(UnitPhase.FAILED if self.failed else UnitPhase.PROGRESSING, self.reason, self.message)
