"""Reads from Events why an object makes no progress, if the status of the object does not contain the cause."""

from gpu_runtime.kube.builtin_kinds import EVENTS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.meta import ObjectMeta


async def latest_warning(client: KubeClient, kind: str, metadata: ObjectMeta, reason: str = "") -> str:
    """Return the text of the last warning Event about an object. Return an empty string if there is none."""
    selector = f"regarding.kind={kind},regarding.uid={metadata.uid},type=Warning"
    selector += f",reason={reason}" if reason else ""
    try:
        events = await client.list(EVENTS, ListOptions(metadata.namespace, field_selector=selector))
    except KubeError:
        return ""  # the warning only explains a condition, so a failed read must not fail the reconcile
    latest = max(events.items, key=lambda event: int(event.metadata.resource_version or 0), default=None)
    return latest.note if latest else ""
