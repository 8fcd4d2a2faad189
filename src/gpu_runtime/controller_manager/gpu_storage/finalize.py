"""Decides the next step when a storage is deleted, and for which objects the deletion waits. No I/O.

The finalizer waits only for units and pods that mount the storage. It does not wait for an operation that attached the
storage but has not created its unit, because a finalizer that waits for another process could wait forever. If the
operation creates the unit later, the condition of the unit reports the missing storage.
"""

from dataclasses import dataclass

from gpu_runtime.controller_manager.gpu_storage.attachment import is_mounted_by_attached_unit
from gpu_runtime.controller_manager.gpu_storage.children.pvc import is_pvc_of
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim

PVC_DELETION_REQUEUE_SECONDS = 1.0
"""Requeue delay while the PersistentVolumeClaim is being deleted."""

STORAGE_IN_USE_REQUEUE_SECONDS = 15.0
"""Requeue delay while a unit or a pod uses the storage. Events normally trigger an earlier reconcile."""


@dataclass(frozen=True)
class FinalizeStep:
    waiting_for: str = ""
    """The rest of the condition message after "the deletion waits for". Empty if the finalizer can be removed."""
    pvc_to_delete: PersistentVolumeClaim | None = None
    requeue_seconds: float = PVC_DELETION_REQUEUE_SECONDS


def next_finalize_step(observed: ObservedStorage) -> FinalizeStep:
    if users := _mount_users(observed):
        return FinalizeStep(
            f"{users}: delete the unit, or remove the storage from spec.storageMounts of the unit",
            requeue_seconds=STORAGE_IN_USE_REQUEUE_SECONDS,
        )
    if observed.pod_cache_error:
        return FinalizeStep(f"a successful check that no pod mounts the storage: {observed.pod_cache_error}")
    pvc = observed.pvc
    if pvc is None or not is_pvc_of(pvc, observed.storage):
        return FinalizeStep()
    if pvc.metadata.deletion_timestamp is None:
        return FinalizeStep(f"the deletion of PersistentVolumeClaim {pvc.metadata.name}", pvc_to_delete=pvc)
    # Kubernetes does not delete a PVC while any pod mounts it. This includes pods that the platform did not create.
    finalizers = ", ".join(pvc.metadata.finalizers) or "none"
    return FinalizeStep(
        f"the deletion of PersistentVolumeClaim {pvc.metadata.name}, which has finalizers {finalizers}: delete the pods"
        " that mount the PVC"
    )


def _mount_users(observed: ObservedStorage) -> str:
    unit = (
        [f"GPUUnit {observed.attachment.unit}"] if observed.attachment and is_mounted_by_attached_unit(observed) else []
    )
    return ", ".join([*unit, *observed.mounted_by])
