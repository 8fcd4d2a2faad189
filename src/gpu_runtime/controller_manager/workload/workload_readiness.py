"""What is thought of a unit or a pool after looking at it: the phase, and why. Pure."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import Reason, UnitPhase


@dataclass(frozen=True)
class Verdict:
    """The phase with the Ready condition that explains it."""

    phase: UnitPhase
    reason: Reason
    message: str

    @property
    def ready(self) -> bool:
        return self.phase is UnitPhase.READY


@dataclass(frozen=True)
class Blocked:
    """Why nothing is built, or built no further. A failure, unless it passes by itself."""

    reason: Reason
    message: str
    failed: bool = True

    @property
    def verdict(self) -> Verdict:
        return Verdict(UnitPhase.FAILED if self.failed else UnitPhase.PROGRESSING, self.reason, self.message)
