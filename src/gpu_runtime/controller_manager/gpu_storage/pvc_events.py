"""Reads from Events why the provisioner has not created a volume. The status of a PVC does not contain the cause."""

from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.controller_manager.warning_events import latest_warning
from gpu_runtime.kube.client import KubeClient


async def latest_pvc_warning(client: KubeClient, observed: ObservedStorage) -> str:
    """Return the last warning about the PVC, if the PVC is pending and its StorageClass exists."""
    pvc = observed.pvc
    if pvc is None or pvc.status.phase != "Pending" or observed.storage_class is None:
        return ""
    return await latest_warning(client, "PersistentVolumeClaim", pvc.metadata)
