"""What is thought of a unit or a pool after looking at it: the phase, and why. Pure."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase


@dataclass(frozen=True)
class WorkloadReadiness:
    """The phase with the Ready condition that explains it."""

    phase: UnitPhase
    reason: ReadyReason
    message: str

    @property
    def ready(self) -> bool:
        return self.phase is UnitPhase.READY


@dataclass(frozen=True)
class Blocked:
    """Why nothing is built, or built no further. A failure, unless it passes by itself."""

    reason: ReadyReason
    message: str
    failed: bool = True

    @property
    def readiness(self) -> WorkloadReadiness:
        return WorkloadReadiness(UnitPhase.FAILED if self.failed else UnitPhase.PROGRESSING, self.reason, self.message)
