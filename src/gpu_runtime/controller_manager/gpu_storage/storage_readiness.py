"""The readiness of a storage."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase


@dataclass(frozen=True)
class StorageReadiness:
    """Phase, reason and message of a storage.

    The phase shows whether units can mount the volume. The Ready condition shows whether the storage fulfils its whole
    spec. For example, a storage with a pending resize has the phase Ready and the condition Ready=False.
    """

    phase: StoragePhase
    reason: ReadyReason
    message: str

    @property
    def ready(self) -> bool:
        return self.reason is ReadyReason.STORAGE_READY
