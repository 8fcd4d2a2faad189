"""What a provisioner says while it makes no volume. A claim does not tell, only Events about it do."""

from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.kube.builtin_kinds import EVENTS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeError


async def latest_pvc_warning(client: KubeClient, seen: ObservedStorage) -> str:
    """The last warning about a claim that waits for its volume, if there is one. One read, and only then."""
    claim = seen.pvc
    if claim is None or claim.status.phase != "Pending" or seen.storage_class is None:
        return ""
    fields = f"regarding.kind=PersistentVolumeClaim,regarding.uid={claim.metadata.uid},type=Warning"
    try:
        found = await client.list(EVENTS, ListOptions(claim.metadata.namespace, field_selector=fields))
    except KubeError:
        return ""  # an explanation that cannot be had must not stop anything
    latest = max(found.items, key=lambda event: int(event.metadata.resource_version or 0), default=None)
    return latest.note if latest else ""
