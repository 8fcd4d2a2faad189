"""Records Kubernetes Events about objects. Best effort: recording never waits and never fails.

Repeated Events become one Event with a count. The recorder drops Events above the limits, and counts the dropped Events
in a metric.
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
from gpu_runtime.printable_text import printable

T = TypeVar("T", bound=KubeObject)
EventType = Literal["Normal", "Warning"]
logger = logging.getLogger(__name__)
WRITE_DELAY_SECONDS = 1.0
"""How long the recorder waits before it writes new Events. Repetitions within this time become one write. The writes do
not compete with the work that the Events report, for example with the start of a pod."""
_MAX_NOTE_BYTES = 1024
_EVENT_RETRY_POLICY = RetryPolicy(max_attempts=2)


@dataclass(frozen=True)
class EventLimits:
    max_cached_events: int = 4096
    """Maximum number of Events that the recorder remembers in order to count repetitions. Above it, the recorder evicts
    the least recent Event."""
    series_timeout: float = 360.0
    """If an Event repeats after more than this number of seconds, the recorder creates a new Event."""
    burst: int = 25
    """How many new Events about one object the recorder accepts without a pause. Repetitions do not count."""
    refill_interval: float = 60.0
    """Seconds after which the recorder accepts one more new Event about the object."""
    update_interval: float = 5.0
    """Minimum seconds between the first two writes of one Event. The interval doubles with each further write."""
    max_update_interval: float = 300.0
    """Maximum of the seconds between two writes of one Event."""


@dataclass(frozen=True, slots=True)
class EventIdentity:
    """The fields that identify an Event. Two occurrences with equal fields are repetitions of one Event."""

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
    """How often an Event occurred, and the key of the Event object that stores the count."""

    key: ObjectKey
    first_time: datetime.datetime
    last_time: datetime.datetime
    last_seen: float
    count: int = 1
    created: bool = False
    next_write_at: float = 0.0
    write_count: int = 0


@dataclass
class EventCorrelator:
    """Aggregates repeated Events, limits their rate, and stores the Events that are not written yet.

    Pure: the caller passes the time, and nothing here awaits.
    """

    limits: EventLimits = field(default_factory=EventLimits)
    cache: OrderedDict[EventIdentity, EventRecord] = field(default_factory=OrderedDict)
    pending: dict[EventIdentity, EventRecord] = field(default_factory=dict)
    token_buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def observe(self, identity: EventIdentity, now: float, wall_time: datetime.datetime) -> bool:
        """Record one occurrence. Return False if a limit is reached: for the object, or for all pending Events."""
        record = self.cache.get(identity)
        if record is not None and now - record.last_seen < self.limits.series_timeout:
            record.count, record.last_time, record.last_seen = record.count + 1, wall_time, now
        elif len(self.pending) < self.limits.max_cached_events and self._take_token(identity.uid, now):
            namespace = identity.key.namespace or "default"
            key = ObjectKey(namespace, f"{identity.key.name[:200]}.{uuid.uuid4().hex[:16]}")
            record = self.cache[identity] = EventRecord(key, wall_time, wall_time, now)
        else:
            return False
        self.pending[identity] = record
        self.cache.move_to_end(identity)
        while len(self.cache) > self.limits.max_cached_events:
            self.cache.popitem(last=False)
        return True

    def pop_due(self, now: float) -> list[tuple[EventIdentity, EventRecord]]:
        """Remove and return the pending Events that are due. An Event that repeats becomes pending again."""
        due = [(identity, record) for identity, record in self.pending.items() if record.next_write_at <= now]
        for identity, record in due:
            del self.pending[identity]
            interval = self.limits.update_interval * 2 ** min(record.write_count, 10)
            record.next_write_at = now + min(interval, self.limits.max_update_interval)
            record.write_count += 1
        return due

    def _take_token(self, uid: str, now: float) -> bool:
        tokens, since = self.token_buckets.pop(uid, (float(self.limits.burst), now))
        tokens = min(float(self.limits.burst), tokens + (now - since) / self.limits.refill_interval)
        self.token_buckets[uid] = (tokens - 1 if tokens >= 1 else tokens, now)
        while len(self.token_buckets) > self.limits.max_cached_events:
            self.token_buckets.popitem(last=False)
        return tokens >= 1


class EventRecorder:
    """Records Events as one reporting controller, and writes them while `run` runs."""

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
        """Record an Event of type Normal. Reason and action are CamelCase words, the note is a sentence."""
        self._record(_event_identity(resource, subject, "Normal", (reason, action, note)))

    def warning(self, resource: ApiResource[T], subject: T, reason: str, note: str, action: str = "Reconcile") -> None:
        """Record an Event of type Warning: an operator should look at the object."""
        self._record(_event_identity(resource, subject, "Warning", (reason, action, note)))

    async def run(self) -> None:
        """Write recorded Events until cancelled."""
        while True:
            await self._has_pending.wait()
            await asyncio.sleep(WRITE_DELAY_SECONDS)
            await self._flush(self._clock())
            if not self._correlator.pending:
                self._has_pending.clear()

    async def flush_all(self, timeout: float) -> None:  # noqa: ASYNC109
        """Write all pending Events, even if they are not due.

        The Events that are not written before the timeout are lost.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._flush(math.inf)

    def _record(self, identity: EventIdentity) -> None:
        if self._correlator.observe(identity, self._clock(), datetime.datetime.now(datetime.UTC)):
            self._has_pending.set()
        else:
            self._event_counter.labels("dropped").inc()

    async def _flush(self, now: float) -> None:
        for identity, record in self._correlator.pop_due(now):
            try:
                await self._write(identity, record, record.count)
                self._event_counter.labels("written").inc()
            except KubeError as error:  # Events are best effort: a failed write is not retried later
                self._event_counter.labels("failed").inc()
                fields = {"kind": identity.kind, "namespace": identity.key.namespace, "object_name": identity.key.name}
                fields |= {"reason": identity.reason, "error": str(error)}
                logger.warning("Kubernetes Event was not written; the process will not retry", extra=fields)

    async def _write(self, identity: EventIdentity, record: EventRecord, count: int) -> None:
        if record.created:
            with contextlib.suppress(KubeNotFound):  # the API server deletes Events after an hour
                await self._client.merge_patch(EVENTS, record.key, {"series": _series_manifest(record, count)})
                return
        await self._client.create(EVENTS, self._manifest(identity, record, count))
        record.created = True

    def _manifest(self, identity: EventIdentity, record: EventRecord, count: int) -> Manifest:
        manifest: Manifest = {
            "metadata": {"namespace": record.key.namespace, "name": record.key.name},
            "eventTime": _micro_time(record.first_time),
            "type": identity.type,
            "reason": identity.reason,
            "action": identity.action,
            "note": identity.note,
            "regarding": {
                "apiVersion": identity.api_version,
                "kind": identity.kind,
                "namespace": identity.key.namespace,
                "name": identity.key.name,
                "uid": identity.uid,
            },
            **self._reporter,
        }
        return manifest | ({"series": _series_manifest(record, count)} if count > 1 else {})


def _event_identity(
    resource: ApiResource[T], subject: T, event_type: EventType, texts: tuple[str, str, str]
) -> EventIdentity:
    reason, action, note = texts
    metadata = subject.metadata
    regarding = (resource.api_version, resource.kind, metadata.key, metadata.uid)
    return EventIdentity(*regarding, event_type, reason[:128], action[:128], _truncate_note(note))


def _series_manifest(record: EventRecord, count: int) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": _micro_time(record.last_time)}


def _micro_time(time: datetime.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _truncate_note(note: str) -> str:
    """Cut the note at the length limit of the API server, but not within a character."""

    note = printable(note)
    encoded = note.encode()
    if len(encoded) <= _MAX_NOTE_BYTES:
        return note
    return encoded[: _MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
