"""Finds the message that explains why the pods of a workload do not start. No I/O.

The result contains the original messages of the kubelet, the scheduler and the API server.
"""

from collections.abc import Iterable, Iterator, Sequence

from gpu_runtime.controller_manager.unstructured import RawDeployment, is_generation_observed
from gpu_runtime.kube.builtin_kinds import ContainerStateTerminated, ContainerStatus, Pod
from gpu_runtime.kube.meta import Condition

IMAGE_PULL_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "RegistryUnavailable",
)
CONTAINER_CREATE_REASONS = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
)
MAX_LINE_LENGTH = 512


def startup_failure(deployment: RawDeployment | None, pods: Sequence[Pod]) -> str | None:
    """Return the most specific failure of a workload that is not ready, or None if no failure is known.

    The first of these failures is returned: of a pod that has not finished, of a pod that the API server rejected, of a
    failed pod, and last an exceeded progress deadline.
    """
    if deployment is not None and not is_generation_observed(deployment):
        return None  # the status and the pods belong to an earlier generation
    newest_first = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    live = [pod for pod in newest_first if pod.metadata.deletion_timestamp is None]
    running = [pod for pod in live if not pod.has_ended]
    failures = (
        *(pod_failure(pod) for pod in running),
        _replica_failure(deployment.status.conditions) if deployment else None,
        *(pod_failure(pod) for pod in live if pod.status.phase == "Failed"),
        _progress_deadline_exceeded(deployment.status.conditions) if deployment else None,
    )
    return next((failure for failure in failures if failure), None)


def pod_failure(pod: Pod) -> str | None:
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return next(
        (text for text in (*_container_failures(statuses), _unschedulable(pod), _failed_phase(pod)) if text),
        None,
    )


def _container_failures(statuses: Iterable[ContainerStatus]) -> Iterator[str]:
    for status in statuses:
        waiting, terminated = status.state.waiting, status.state.terminated
        if waiting and waiting.reason in IMAGE_PULL_REASONS:
            yield f"image {status.image} cannot be pulled: {waiting.message or waiting.reason}"
        elif waiting and waiting.reason in CONTAINER_CREATE_REASONS:
            yield f"container {status.name} cannot be created: {waiting.message or waiting.reason}"
        elif waiting and waiting.reason == "CrashLoopBackOff":
            yield _crash_message(status, status.last_state.terminated)
        elif terminated and terminated.exit_code != 0:
            yield _crash_message(status, terminated)


def _crash_message(status: ContainerStatus, terminated: ContainerStateTerminated | None) -> str:
    restarts = f" (restarted {status.restart_count} times)" if status.restart_count else ""
    if terminated is None:
        return f"container {status.name} crashes repeatedly{restarts}: read its logs"
    line = last_line(terminated.message)
    reason = f", {terminated.reason}" if terminated.reason not in ("", "Error") else ""
    text = f"container {status.name} exited with code {terminated.exit_code}{reason}{restarts}"
    return f"{text}: {line}" if line else text


def last_line(message: str) -> str:
    """Return the last non-empty line, truncated. In a log with a stack trace, this line normally contains the error."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:MAX_LINE_LENGTH] if lines else ""


def _unschedulable(pod: Pod) -> str | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            return f"the scheduler found no node for the pod: {condition.message}"
    return None


def _failed_phase(pod: Pod) -> str | None:
    """Report a pod with the phase Failed, for example because the kubelet evicted or rejected the pod."""
    if pod.status.phase != "Failed":
        return None
    return (
        f"pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason or 'Kubernetes reported no reason'}"
    )


def _replica_failure(conditions: Iterable[Condition]) -> str | None:
    """Report that the API server rejects the pods because of a quota or policy of the namespace."""
    failures = (each for each in conditions if each.type == "ReplicaFailure" and each.status == "True")
    return next((f"the API server rejects the pods: {each.message}" for each in failures), None)


def _progress_deadline_exceeded(conditions: Iterable[Condition]) -> str | None:
    exceeded = (each for each in conditions if each.reason == "ProgressDeadlineExceeded")
    return next((each.message for each in exceeded), None)
