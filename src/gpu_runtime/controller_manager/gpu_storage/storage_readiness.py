"""The readiness of a storage."""

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase
from gpu_runtime.controller_manager.workload.workload_readiness import Readiness


class StorageReadiness(Readiness[StoragePhase]):
    """Phase, reason and message of a storage.

    The phase shows whether units can mount the volume. The Ready condition shows whether the storage fulfils its whole
    spec. For example, a storage with a pending resize has the phase Ready and the condition Ready=False.
    """

    @property
    def ready(self) -> bool:
        return self.reason is ReadyReason.STORAGE_READY
