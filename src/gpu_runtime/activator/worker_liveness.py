"""What workers say of themselves, kept by unit. Every replica listens, so that a new leader knows them at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class WorkerStatus:
    """The last word of a unit's worker. Times are of this process's own clock."""

    pod_uid: str
    sequence: int
    event_time: datetime
    first_seen: float
    """When it was first heard of."""
    last_seen: float
    """When it was last heard of."""
    in_flight: int
    idle_since: float | None
    """Since when it has had nothing in hand; None while it has."""
    draining: bool = False
    """Whether it takes no more work."""


def apply_event(known: WorkerStatus | None, event: WorkerEvent, now: float) -> WorkerStatus:
    """What is known of a worker once this event was heard. An older event that comes late changes nothing."""
    draining = event.kind is WorkerEventKind.DRAINING
    if known is None or known.pod_uid != event.pod_uid:
        if known is not None and event.sent_at < known.event_time:
            return known
        idle = now if event.in_flight == 0 else None
        return WorkerStatus(event.pod_uid, event.sequence, event.sent_at, now, now, event.in_flight, idle, draining)
    if event.sequence < known.sequence:
        return known
    worked = event.in_flight > 0 or event.kind in (WorkerEventKind.STARTED, WorkerEventKind.FINISHED)
    idle = None if event.in_flight else now if worked or known.idle_since is None else known.idle_since
    return replace(
        known,
        sequence=event.sequence,
        event_time=event.sent_at,
        last_seen=now,
        in_flight=event.in_flight,
        idle_since=idle,
        # A sidecar that was started again in its pod is the same instance, and takes work once it says so.
        draining=draining or (known.draining and event.kind is not WorkerEventKind.REGISTERED),
    )


DELETED_WORKER_TTL_SECONDS = 60.0
"""Seconds for which the pod of a unit that is gone may still speak: it has no work in hand, so it ends soon."""


class WorkerLiveness:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._statuses: dict[ObjectKey, WorkerStatus] = {}
        self._deleted_at: dict[str, float] = {}
        """Instances whose unit is gone, and since when, the first ones first."""
        self.subscribed_at = clock()
        """What happened before is not known here: silence counts from this moment on."""

    def observe(self, event: WorkerEvent) -> bool:
        """Take note. Whether it is the first word of this instance."""
        if (
            self._clock() - self._deleted_at.get(event.pod_uid, -DELETED_WORKER_TTL_SECONDS)
            < DELETED_WORKER_TTL_SECONDS
        ):
            return False
        key = ObjectKey(event.namespace, event.unit)
        before = self._statuses.get(key)
        self._statuses[key] = now = apply_event(before, event, self._clock())
        return before is None or before.pod_uid != now.pod_uid

    def status_of(self, unit: ObjectKey) -> WorkerStatus | None:
        return self._statuses.get(unit)

    def remove(self, unit: ObjectKey) -> None:
        """The unit's pod was taken away: one that comes under its name is another one."""
        self._statuses.pop(unit, None)

    def mark_unit_deleted(self, unit: ObjectKey) -> None:
        """The unit is gone. What its pod says until it is gone, too, is not said for the next unit of that name."""
        now, heard = self._clock(), self._statuses.pop(unit, None)
        if heard is not None and heard.pod_uid:
            self._deleted_at[heard.pod_uid] = now
        while self._deleted_at and now - next(iter(self._deleted_at.values())) > DELETED_WORKER_TTL_SECONDS:
            del self._deleted_at[next(iter(self._deleted_at))]

    def mark_subscribed(self) -> None:
        """The connection is there again: what was said in between is lost."""
        self.subscribed_at = self._clock()
