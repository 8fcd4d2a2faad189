"""What workers say of themselves, kept by unit. Every replica listens, so that a new leader knows them at once."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import Key


@dataclass(frozen=True)
class Heard:
    """The last word of a unit's worker. Times are of this process's own clock."""

    instance: str
    sequence: int
    said: datetime
    since: float
    """When it was first heard of."""
    at: float
    """When it was last heard of."""
    in_flight: int
    idle_since: float | None
    """Since when it has had nothing in hand; None while it has."""
    draining: bool = False
    """Whether it takes no more work."""


def after(known: Heard | None, event: WorkerEvent, now: float) -> Heard:
    """What is known of a worker once this event was heard. An older event that comes late changes nothing."""
    draining = event.kind is WorkerEventKind.DRAINING
    if known is None or known.instance != event.instance:
        if known is not None and event.at < known.said:
            return known
        idle = now if event.in_flight == 0 else None
        return Heard(event.instance, event.sequence, event.at, now, now, event.in_flight, idle, draining)
    if event.sequence < known.sequence:
        return known
    worked = event.in_flight > 0 or event.kind in (WorkerEventKind.STARTED, WorkerEventKind.FINISHED)
    idle = None if event.in_flight else now if worked or known.idle_since is None else known.idle_since
    return replace(
        known,
        sequence=event.sequence,
        said=event.at,
        at=now,
        in_flight=event.in_flight,
        idle_since=idle,
        # A sidecar that was started again in its pod is the same instance, and takes work once it says so.
        draining=draining or (known.draining and event.kind is not WorkerEventKind.REGISTERED),
    )


REMAINS = 60.0
"""Seconds for which the pod of a unit that is gone may still speak: it has no work in hand, so it ends soon."""


class Workers:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard: dict[Key, Heard] = {}
        self._gone: dict[str, float] = {}
        """Instances whose unit is gone, and since when, the first ones first."""
        self.listening_since = clock()
        """What happened before is not known here: silence counts from this moment on."""

    def hear(self, event: WorkerEvent) -> bool:
        """Take note. Whether it is the first word of this instance."""
        if self._clock() - self._gone.get(event.instance, -REMAINS) < REMAINS:
            return False
        key = Key(event.namespace, event.worker)
        before = self._heard.get(key)
        self._heard[key] = now = after(before, event, self._clock())
        return before is None or before.instance != now.instance

    def of(self, unit: Key) -> Heard | None:
        return self._heard.get(unit)

    def forget(self, unit: Key) -> None:
        """The unit's pod was taken away: one that comes under its name is another one."""
        self._heard.pop(unit, None)

    def leave(self, unit: Key) -> None:
        """The unit is gone. What its pod says until it is gone, too, is not said for the next unit of that name."""
        now, heard = self._clock(), self._heard.pop(unit, None)
        if heard is not None and heard.instance:
            self._gone[heard.instance] = now
        while self._gone and now - next(iter(self._gone.values())) > REMAINS:
            del self._gone[next(iter(self._gone))]

    def listening(self) -> None:
        """The connection is there again: what was said in between is lost."""
        self.listening_since = self._clock()
