"""What is thought of a storage after looking at it. Pure."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase


@dataclass(frozen=True)
class StorageReadiness:
    """The phase says whether there is a volume to mount; the Ready condition, whether all that was asked is true."""

    phase: StoragePhase
    reason: ReadyReason
    message: str

    @property
    def ready(self) -> bool:
        return self.reason is ReadyReason.STORAGE_READY
