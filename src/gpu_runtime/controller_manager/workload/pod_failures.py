"""Why pods do not start, in the words of whoever refused them. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, is_generation_observed
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
    """The most useful thing to know about a workload that is not ready, if anything is wrong with it."""
    if deployment is not None and not is_generation_observed(deployment):
        return None  # what there is to see is of the time before the last change
    newest_first = sorted(pods, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True)
    live = [pod for pod in newest_first if pod.metadata.deletion_timestamp is None]
    running = [pod for pod in live if pod.status.phase not in ("Failed", "Succeeded")]
    explanations = (
        *(pod_failure(pod) for pod in running),
        _replica_failure(deployment.status.conditions) if deployment else None,
        *(pod_failure(pod) for pod in live if pod.status.phase == "Failed"),
        _progress_deadline_exceeded(deployment.status.conditions) if deployment else None,
    )
    return next((explanation for explanation in explanations if explanation), None)


def pod_failure(pod: Pod) -> str | None:
    statuses = (*pod.status.init_container_statuses, *pod.status.container_statuses)
    return next(
        (text for text in (*_container_failures(statuses), _unschedulable(pod), _failed_phase(pod)) if text),
        None,
    )


def _container_failures(statuses: Iterable[ContainerStatus]) -> Iterator[str]:
    for status in statuses:
        waiting, ended = status.state.waiting, status.state.terminated
        if waiting and waiting.reason in IMAGE_PULL_REASONS:
            yield f"image {status.image} cannot be pulled: {waiting.message or waiting.reason}"
        elif waiting and waiting.reason in CONTAINER_CREATE_REASONS:
            yield f"container {status.name} cannot be created: {waiting.message or waiting.reason}"
        elif waiting and waiting.reason == "CrashLoopBackOff":
            yield _crash_message(status, status.last_state.terminated)
        elif ended and ended.exit_code != 0:
            yield _crash_message(status, ended)


def _crash_message(status: ContainerStatus, ended: ContainerStateTerminated | None) -> str:
    restarts = f" (restarted {status.restart_count} times)" if status.restart_count else ""
    if ended is None:
        return f"container {status.name} keeps crashing{restarts}"
    line = last_line(ended.message)
    why = f", {ended.reason}" if ended.reason not in ("", "Error") else ""
    return f"container {status.name} exited with code {ended.exit_code}{why}{restarts}" + (f": {line}" if line else "")


def last_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:MAX_LINE_LENGTH] if lines else ""


def _unschedulable(pod: Pod) -> str | None:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
            return f"no node takes the pod: {condition.message}"
    return None


def _failed_phase(pod: Pod) -> str | None:
    """A pod that was ended from outside: evicted, or turned away by its node."""
    if pod.status.phase != "Failed":
        return None
    return f"pod {pod.metadata.name} failed: {pod.status.message or pod.status.reason or 'for no given reason'}"


def _replica_failure(conditions: Iterable[Condition]) -> str | None:
    """A quota, or a policy of the namespace."""
    return next((f"pods are refused: {each.message}" for each in conditions if _is_true(each, "ReplicaFailure")), None)


def _progress_deadline_exceeded(conditions: Iterable[Condition]) -> str | None:
    late = (each for each in conditions if each.reason == "ProgressDeadlineExceeded")
    return next((each.message for each in late), None)


def _is_true(condition: Condition, kind: str) -> bool:
    return condition.type == kind and condition.status == "True"
