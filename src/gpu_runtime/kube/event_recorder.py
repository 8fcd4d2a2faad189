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
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import KubeError, NotFound
from gpu_runtime.kube.meta import Key, Manifest, Object, Resource
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy

T = TypeVar("T", bound=Object)
EventType = Literal["Normal", "Warning"]
logger = logging.getLogger(__name__)
_LONGEST_NOTE = 1024
_PATIENCE = RetryPolicy(attempts=2)


@dataclass(frozen=True)
class Limits:
    remembered: int = 4096
    """Events that may still be counted up, the least recent forgotten first."""
    series: float = 360.0
    """Seconds without repetition after which the same thing is a new Event."""
    burst: int = 25
    """Events about one object at once."""
    refill: float = 60.0
    """Seconds until one more Event about that object is allowed."""
    every: float = 5.0
    """Seconds between two counts of one Event that are written."""


@dataclass(frozen=True, slots=True)
class Happening:
    """What makes two Events the same."""

    api_version: str
    kind: str
    key: Key
    uid: str
    type: EventType
    reason: str
    action: str
    note: str


@dataclass(slots=True)
class Series:
    """How often something happened, and the Event that tells it."""

    event: Key
    first: datetime.datetime
    last: datetime.datetime
    last_seen: float
    count: int = 1
    created: bool = False
    not_before: float = 0.0


@dataclass
class Ledger:
    """What happened and is still to be written. Pure: time is passed in, and nothing here awaits."""

    limits: Limits = field(default_factory=Limits)
    known: OrderedDict[Happening, Series] = field(default_factory=OrderedDict)
    unwritten: dict[Happening, Series] = field(default_factory=dict)
    allowances: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def note(self, happening: Happening, now: float, wall: datetime.datetime) -> bool:
        """Take note. False if there is too much already, about that object or at all."""
        series = self.known.get(happening)
        if series is not None and now - series.last_seen < self.limits.series:
            series.count, series.last, series.last_seen = series.count + 1, wall, now
        elif len(self.unwritten) < self.limits.remembered and self._allowed(happening.uid, now):
            namespace = happening.key.namespace or "default"
            event = Key(namespace, f"{happening.key.name[:200]}.{uuid.uuid4().hex[:16]}")
            series = self.known[happening] = Series(event, wall, wall, now)
        else:
            return False
        self.unwritten[happening] = series
        self.known.move_to_end(happening)
        while len(self.known) > self.limits.remembered:
            self.known.popitem(last=False)
        return True

    def take_due(self, now: float) -> list[tuple[Happening, Series]]:
        """What may be written now. It counts as written until it happens again."""
        due = [(happening, series) for happening, series in self.unwritten.items() if series.not_before <= now]
        for happening, series in due:
            del self.unwritten[happening]
            series.not_before = now + self.limits.every
        return due

    def _allowed(self, uid: str, now: float) -> bool:
        tokens, since = self.allowances.pop(uid, (float(self.limits.burst), now))
        tokens = min(float(self.limits.burst), tokens + (now - since) / self.limits.refill)
        self.allowances[uid] = (tokens - 1 if tokens >= 1 else tokens, now)
        while len(self.allowances) > self.limits.remembered:
            self.allowances.popitem(last=False)
        return tokens >= 1


class Recorder:
    """Records Events in the name of one controller, and writes them while `run` runs."""

    def __init__(
        self,
        client: Client,
        controller: str,
        instance: str,
        limits: Limits | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self._client = client.patient(timeout=5.0, retries=_PATIENCE)
        self._reporter = {"reportingController": controller, "reportingInstance": instance[:128]}
        self._ledger = Ledger(limits or Limits())
        self._metrics = (metrics or KubeMetrics()).events
        self._news = asyncio.Event()
        self._clock: Callable[[], float] = asyncio.get_running_loop().time

    def normal(self, resource: Resource[T], subject: T, reason: str, note: str, action: str = "Reconcile") -> None:
        """Something happened as it should. Reason and action are CamelCase words, the note is a sentence."""
        self._record(_happening(resource, subject, "Normal", (reason, action, note)))

    def warning(self, resource: Resource[T], subject: T, reason: str, note: str, action: str = "Reconcile") -> None:
        """Something happened that somebody should look at."""
        self._record(_happening(resource, subject, "Warning", (reason, action, note)))

    async def run(self) -> None:
        """Write what was recorded, until cancelled."""
        while True:
            await self._news.wait()
            await self._flush(self._clock())
            if not self._ledger.unwritten:
                self._news.clear()
            await asyncio.sleep(1.0)  # gives repetitions the time to become one count

    async def flush_all(self, within: float) -> None:
        """Write what there is, due or not, as far as that takes no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._flush(math.inf)

    def _record(self, happening: Happening) -> None:
        if self._ledger.note(happening, self._clock(), datetime.datetime.now(datetime.UTC)):
            self._news.set()
        else:
            self._metrics.labels("dropped").inc()

    async def _flush(self, now: float) -> None:
        for happening, series in self._ledger.take_due(now):
            try:
                await self._write(happening, series, series.count)
                self._metrics.labels("written").inc()
            except KubeError as error:  # an Event that cannot be written is not worth a queue
                self._metrics.labels("failed").inc()
                logger.warning("an Event was not written", extra={"reason": happening.reason, "error": str(error)})

    async def _write(self, happening: Happening, series: Series, count: int) -> None:
        if not series.created:
            await self._client.create(EVENTS, self._manifest(happening, series, count))
            series.created = True
            return
        try:
            await self._client.merge_patch(EVENTS, series.event, {"series": _series(series, count)})
        except NotFound:  # the API server forgets Events after an hour
            await self._client.create(EVENTS, self._manifest(happening, series, count))

    def _manifest(self, happening: Happening, series: Series, count: int) -> Manifest:
        manifest: Manifest = {
            "metadata": {"namespace": series.event.namespace, "name": series.event.name},
            "eventTime": _micro(series.first),
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
        return manifest | ({"series": _series(series, count)} if count > 1 else {})


def _happening(resource: Resource[T], subject: T, kind: EventType, words: tuple[str, str, str]) -> Happening:
    reason, action, note = words
    metadata = subject.metadata
    what = (resource.api_version, resource.kind, metadata.key, metadata.uid)
    return Happening(*what, kind, reason[:128], action[:128], _shortened(note))


def _series(series: Series, count: int) -> dict[str, Any]:
    return {"count": count, "lastObservedTime": _micro(series.last)}


def _micro(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _shortened(note: str) -> str:
    """At most so many bytes as the API server takes, cut where no letter is torn."""
    encoded = note.encode()
    if len(encoded) <= _LONGEST_NOTE:
        return note
    return encoded[: _LONGEST_NOTE - 3].decode(errors="ignore") + "…"
