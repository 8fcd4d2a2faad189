"""Reads from Events why a volume of a unit's pod cannot be mounted. The status of a pod does not contain the cause."""

from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.warning_events import latest_warning
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient

MOUNT_POLL_SECONDS = 5.0
"""Interval between two reads of the Events, while a pod with volumes starts. This process does not watch Events."""


def mounting_pod(observed: ObservedUnit) -> Pod | None:
    """Return the pod if it may wait for a Secret or a storage. A pod without a node does not mount volumes yet."""
    spec = observed.unit.spec
    if not spec.storage_mounts and not spec.template.secret_mounts:
        return None
    pods = (pod for pod in observed.pods if pod.metadata.deletion_timestamp is None)
    return next((pod for pod in pods if pod.spec.node_name and not _has_mounted(pod)), None)


def _has_mounted(pod: Pod) -> bool:
    """Return whether the volumes are mounted. The kubelet sets this condition before it pulls images."""
    mounted = any(each.type == "PodReadyToStartContainers" and each.status == "True" for each in pod.status.conditions)
    return mounted or pod.status.phase != "Pending"


async def mount_warning(client: KubeClient, observed: ObservedUnit) -> str:
    """Return the last warning about the mounts of the unit's pod. Return an empty string if there is none."""
    pod = mounting_pod(observed)
    return "" if pod is None else await latest_warning(client, "Pod", pod.metadata, "FailedMount")
