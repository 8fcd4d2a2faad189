"""Kubernetes Events: what happened to an object, for people who look at it. Best effort by nature.

Recording never waits and never fails. What repeats becomes one Event with a count; what is too much is dropped and
counted.
"""

import asyncio
import contextlib
import datetime
import logging
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from gpu_runtime.kube.builtin_kinds import EVENTS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError, KubeNotFound
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy

T = TypeVar("T", bound=KubeObject)
EventType = Literal["Normal", "Warning"]
logger = logging.getLogger(__name__)
_MAX_NOTE_BYTES = 1024
_EVENT_RETRY_POLICY = RetryPolicy(max_attempts=2)


@dataclass(frozen=True)
class EventLimits:
    max_cached_events: int = 4096
    """Events that may still be counted up, the least recent forgotten first."""
    series_timeout: float = 360.0
    """Seconds without repetition after which the same thing is a new Event."""
    burst: int = 25
    """Events about one object at once."""
    refill_interval: float = 60.0
    """Seconds until one more Event about that object is allowed."""
    update_interval: float = 5.0
    """Seconds between two counts of one Event that are written."""


@dataclass(frozen=True, slots=True)
class EventIdentity:
    """What makes two Events the same."""

    api_version: str
    kind: str
    key: ObjectKey
    uid: str
    type: EventType
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class EventRecord:
    """How often something happened, and the Event that tells it."""

    key: ObjectKey
    first_time: datetime.datetime
    last_time: datetime.datetime
    last_seen: float
    count: int = 1
    created: bool = False
    next_write_at: float = 0.0


@dataclass
class EventCorrelator:
    """What happened and is still to be written. Pure: time is passed in, and nothing here awaits."""

    limits: EventLimits = field(default_factory=EventLimits)
    cache: OrderedDict[EventIdentity, EventRecord] = field(default_factory=OrderedDict)
    pending: dict[EventIdentity, EventRecord] = field(default_factory=dict)
    token_buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def observe(self, happening: EventIdentity, now: float, wall: datetime.datetime) -> bool:
        """Take note. False if there is too much already, about that object or at all."""
        series = self.cache.get(happening)
        if series is not None and now - series.last_seen < self.limits.series_timeout:
            series.count, series.last_time, series.last_seen = series.count + 1, wall, now
        elif len(self.pending) < self.limits.max_cached_events and self._take_token(happening.uid, now):
            namespace = happening.key.namespace or "default"
            event = ObjectKey(namespace, f"{happening.key.name[:200]}.{uuid.uuid4().hex[:16]}")
            series = self.cache[happening] = EventRecord(event, wall, wall, now)
        else:
            return False
        self.pending[happening] = series
        self.cache.move_to_end(happening)
        while len(self.cache) > self.limits.max_cached_events:
            self.cache.popitem(last=False)
        return True

    def pop_due(self, now: float) -> list[tuple[EventIdentity, EventRecord]]:
        """What may be written now. It counts as written until it happens again."""
        due = [(happening, series) for happening, series in self.pending.items() if series.next_write_at <= now]
        for happening, series in due:
            del self.pending[happening]
            series.next_write_at = now + self.limits.update_interval
        return due

    def _take_token(self, uid: str, now: float) -> bool:
        tokens, since = self.token_buckets.pop(uid, (float(self.limits.burst), now))
        tokens = min(float(self.limits.burst), tokens + (now - since) / self.limits.refill_interval)
        self.token_buckets[uid] = (tokens - 1 if tokens >= 1 else tokens, now)
        while len(self.token_buckets) > self.limits.max_cached_events:
            self.token_buckets.popitem(last=False)
        return tokens >= 1


class EventRecorder:
    """Records Events in the name of one controller, and writes them while `run` runs."""

    def __init__(
        self,
        client: KubeClient,
        controller: str,
        instance: str,
        limits: EventLimits | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self._client = client.with_options(timeout=5.0, retries=_EVENT_RETRY_POLICY)
        self._reporter = {"reportingController": controller, "reportingInstance": instance[:128]}
        self._correlator = EventCorrelator(limits or EventLimits())
        self._event_counter = (metrics or KubeMetrics()).recorded_events
        self._has_pending = asyncio.Event()
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    def normal(self, resource: ApiResource[T], subject: T, reason: str, note: str, action: str = "Reconcile") -> None:
        """Something happened as it should. Reason and action are CamelCase words, the note is a sentence."""
        self._record(_event_identity(resource, subject, "Normal", (reason, action, note)))

    def warning(self, resource: ApiResource[T], subject: T, reason: str, note: str, action: str = "Reconcile") -> None:
        """Something happened that somebody should look at."""
        self._record(_event_identity(resource, subject, "Warning", (reason, action, note)))

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        while True:
            await self._has_pending.wait()
            await self._flush(self._clock())
            if not self._correlator.pending:
                self._has_pending.clear()
            await asyncio.sleep(1.0)  # gives repetitions the time to become one count

    async def flush_all(self, timeout: float) -> None:
        """Write what there is, due or not, as far as that takes no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._flush(math.inf)

    def _record(self, happening: EventIdentity) -> None:
        if self._correlator.observe(happening, self._clock(), datetime.datetime.now(datetime.UTC)):
            self._has_pending.set()
        else:
            self._event_counter.labels("dropped").inc()

    async def _flush(self, now: float) -> None:
        for happening, series in self._correlator.pop_due(now):
            try:
                await self._write(happening, series, series.count)
                self._event_counter.labels("written").inc()
            except KubeError as error:  # an Event that cannot be written is not worth a queue
                self._event_counter.labels("failed").inc()
                logger.warning("an Event was not written", extra={"reason": happening.reason, "error": str(error)})

    async def _write(self, happening: EventIdentity, series: EventRecord, count: int) -> None:
        if not series.created:
            await self._client.create(EVENTS, self._manifest(happening, series, count))
            series.created = True
            return
        try:
            await self._client.merge_patch(EVENTS, series.key, {"series": _series_manifest(series, count)})
        except KubeNotFound:  # the API server forgets Events after an hour
            await self._client.create(EVENTS, self._manifest(happening, series, count))

    def _manifest(self, happening: EventIdentity, series: EventRecord, count: int) -> Manifest:
        manifest: Manifest = {
            "metadata": {"namespace": series.key.namespace, "name": series.key.name},
            "eventTime": _micro_time(series.first_time),
            "type": happening.type,
            "reason": happening.reason,
            "action": happening.action,
            "note": happening.note,
            "regarding": {
                "apiVersion": happening.api_version,
                "kind": happening.kind,
                "namespace": happening.key.namespace,
                "name": happening.key.name,
                "uid": happening.uid,
            },
            **self._reporter,
        }
        return manifest | ({"series": _series_manifest(series, count)} if count > 1 else {})


def _event_identity(
    resource: ApiResource[T], subject: T, kind: EventType, words: tuple[str, str, str]
) -> EventIdentity:
    reason, action, note = words
    metadata = subject.metadata
    what = (resource.api_version, resource.kind, metadata.key, metadata.uid)
    return EventIdentity(*what, kind, reason[:128], action[:128], _truncate_note(note))


def _series_manifest(series: EventRecord, count: int) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": _micro_time(series.last_time)}


def _micro_time(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _truncate_note(note: str) -> str:
    """At most so many bytes as the API server takes, cut where no letter is torn."""
    encoded = note.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
