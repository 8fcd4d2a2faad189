"""Result of the readiness decision of a storage. Pure."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase


@dataclass(frozen=True)
class StorageReadiness:
    """Phase, reason and message of a storage.

    The phase reports whether there is a volume to mount. The Ready condition reports whether the whole spec is
    fulfilled: a storage with a pending resize has the phase Ready and the condition Ready=False.
    """

    phase: StoragePhase
    reason: ReadyReason
    message: str

    @property
    def ready(self) -> bool:
        return self.reason is ReadyReason.STORAGE_READY
