"""What the end of a storage still waits for. Pure.

Only what really mounts the data is waited for. An operation that attached the storage and made no unit yet is not: its
unit will be told that the storage is gone, while a finalizer that waits for another process could block for good.
"""

from dataclasses import dataclass

from gpu_runtime.controller_manager.gpu_storage.attachment import is_mounted_by_attached_unit
from gpu_runtime.controller_manager.gpu_storage.children.pvc import is_pvc_of
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim

PVC_DELETION_REQUEUE_SECONDS = 1.0
"""For a claim that is on its way out."""

STORAGE_IN_USE_REQUEUE_SECONDS = 15.0
"""For what a unit or a stranger's pod holds. Its end is heard of, mostly."""


@dataclass(frozen=True)
class FinalizeStep:
    waiting_for: str = ""
    """Empty when the storage may go."""
    pvc_to_delete: PersistentVolumeClaim | None = None
    requeue_seconds: float = PVC_DELETION_REQUEUE_SECONDS


def next_finalize_step(seen: ObservedStorage) -> FinalizeStep:
    if holders := _mount_users(seen):
        return FinalizeStep(
            f"{holders}: delete or change the unit first", requeue_seconds=STORAGE_IN_USE_REQUEUE_SECONDS
        )
    if seen.pod_cache_error:
        return FinalizeStep(f"a look at the pods that may mount it: {seen.pod_cache_error}")
    claim = seen.pvc
    if claim is None or not is_pvc_of(claim, seen.storage):
        return FinalizeStep()
    if claim.metadata.deletion_timestamp is None:
        return FinalizeStep(f"the end of PersistentVolumeClaim {claim.metadata.name}", pvc_to_delete=claim)
    # Kubernetes keeps a claim while a pod mounts it, whoever's pod that is.
    held = ", ".join(claim.metadata.finalizers)
    return FinalizeStep(f"the end of PersistentVolumeClaim {claim.metadata.name}, which {held or 'nothing'} holds")


def _mount_users(seen: ObservedStorage) -> str:
    unit = [f"GPUUnit {seen.attachment.unit}"] if seen.attachment and is_mounted_by_attached_unit(seen) else []
    return ", ".join([*unit, *seen.mounted_by])
