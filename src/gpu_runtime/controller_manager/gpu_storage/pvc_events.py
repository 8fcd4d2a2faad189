"""Reads from Events why the provisioner has not created a volume. The status of a PVC does not contain the cause."""

from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.kube.builtin_kinds import EVENTS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeError


async def latest_pvc_warning(client: KubeClient, observed: ObservedStorage) -> str:
    """Return the text of the last warning Event about a pending PVC. Return an empty string if there is none.

    Read from the API server only if the PVC is pending and its StorageClass exists.
    """
    pvc = observed.pvc
    if pvc is None or pvc.status.phase != "Pending" or observed.storage_class is None:
        return ""
    selector = f"regarding.kind=PersistentVolumeClaim,regarding.uid={pvc.metadata.uid},type=Warning"
    try:
        events = await client.list(EVENTS, ListOptions(pvc.metadata.namespace, field_selector=selector))
    except KubeError:
        return ""  # the warning only explains a condition, so a failed read must not fail the reconcile
    latest = max(events.items, key=lambda event: int(event.metadata.resource_version or 0), default=None)
    return latest.note if latest else ""
