"""Stores the last event of each worker: when this process received it, and since when the worker is idle.

Every replica stores the events, so a new leader knows the state of the workers immediately.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class WorkerStatus:
    """The state of a unit's worker after its last event. All floats are times of this process's monotonic clock."""

    pod_uid: str
    sequence: int
    first_seen: float
    """When this process received the first event of this pod."""
    last_seen: float
    """When this process received the last event of this pod."""
    in_flight: int
    idle_since: float | None
    """When the worker became idle. None while the worker runs an invocation."""
    heartbeat_seconds: float
    """The heartbeat interval in the last event."""
    draining: bool = False
    """Whether the worker accepts no more invocations."""


def apply_event(status: WorkerStatus | None, event: WorkerEvent, now: float) -> WorkerStatus:
    """Return the status after an event of the unit's pod. Ignore an event that is older than the status."""
    same_pod = status if status is not None and status.pod_uid == event.pod_uid else None
    if same_pod is not None and event.sequence < same_pod.sequence:
        return same_pod
    had_work = event.kind in (WorkerEventKind.STARTED, WorkerEventKind.FINISHED)
    idle_before = same_pod.idle_since if same_pod and not had_work else None
    # A restarted sidecar has the same pod UID. It registers when it accepts invocations again.
    still_draining = same_pod is not None and same_pod.draining and event.kind is not WorkerEventKind.REGISTERED
    return WorkerStatus(
        pod_uid=event.pod_uid,
        sequence=event.sequence,
        first_seen=same_pod.first_seen if same_pod else now,
        last_seen=now,
        in_flight=event.in_flight,
        idle_since=None if event.in_flight else now if idle_before is None else idle_before,
        heartbeat_seconds=event.heartbeat_seconds,
        draining=event.kind is WorkerEventKind.DRAINING or still_draining,
    )


class WorkerLiveness:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._statuses: dict[ObjectKey, WorkerStatus] = {}
        self.subscribed_at = clock()
        """When this process began to receive events. It cannot know which events workers sent before this time."""

    def observe(self, event: WorkerEvent) -> bool:
        """Store an event. Return whether it is the first event of this pod."""
        key = ObjectKey(event.namespace, event.unit)
        before = self._statuses.get(key)
        self._statuses[key] = after = apply_event(before, event, self._clock())
        return before is None or before.pod_uid != after.pod_uid

    def status_of(self, unit: ObjectKey) -> WorkerStatus | None:
        return self._statuses.get(unit)

    def remove(self, unit: ObjectKey) -> None:
        """Remove the status of a unit that was stopped or deleted. The next pod starts without a status."""
        self._statuses.pop(unit, None)

    def mark_subscribed(self) -> None:
        """Record that NATS is connected again. Events that workers sent during the interruption are lost."""
        self.subscribed_at = self._clock()
