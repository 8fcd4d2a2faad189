"""A cache of one kind that keeps itself true: a list, then a watch, again and again, until it is cancelled.

Level-triggered: it tells that something changed and what is known now, never how often it changed in between. After
every interruption the cache is complete again, and what went missing meanwhile is told like any other change.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from gpu_runtime.kube.client import Client
from gpu_runtime.kube.codec import EVERYTHING, Bookmark, Garbled, Gone, Present, Selection, WatchEvent
from gpu_runtime.kube.errors import ApiError, Expired, KubeError
from gpu_runtime.kube.meta import Key, Object, Resource
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import IMPATIENT, Backoff
from gpu_runtime.kube.store import Change, Store

T = TypeVar("T", bound=Object)
Handler = Callable[[Change[T]], None]

logger = logging.getLogger(__name__)
_RECONNECT = Backoff(first=0.2, longest=5.0)


@dataclass(frozen=True)
class Pace:
    """How an informer deals with time, in seconds."""

    watch: int = 300
    """How long a watch lives before it is opened anew; up to twice as long, by chance, so that not all end at once."""
    idle: float = 90.0
    """A watch that says nothing for so long is dead: a healthy one has a bookmark about every minute."""
    resync: float | None = None
    """How often every object is told again as if it had changed, if at all."""
    backoff: Backoff = _RECONNECT
    """Between attempts while the server cannot be reached."""
    page: int = 500
    """Objects per page of a list."""


class Informer(Generic[T]):
    """Read from `store`, hear of changes through `on_change`, and keep `run` running."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        pace: Pace | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        # The loop below has its own backoff, and must know of every failure.
        self._client = client.patient(timeout=30.0, retries=IMPATIENT)
        self.resource = resource
        self.selection = selection
        self.store: Store[T] = Store()
        self._pace = pace or Pace()
        metrics = metrics or KubeMetrics()
        self._lists = metrics.informer_lists.labels(resource.kind)
        self._watches = metrics.informer_watches.labels(resource.kind)
        self._known = metrics.informer_objects.labels(resource.kind)
        self._handlers: list[Handler[T]] = []
        self._synced = asyncio.Event()
        self._version = ""
        self._failures = 0
        self.trouble = ""
        """Why the cache may be out of date; empty while a watch is open."""
        self.troubled_at = 0.0
        """Since when that is so, in the time of the event loop."""

    @property
    def has_synced(self) -> bool:
        """Whether the cache has been complete once."""
        return self._synced.is_set()

    async def synced(self) -> None:
        """Wait until the cache has been complete once."""
        await self._synced.wait()

    def on_change(self, handler: Handler[T]) -> None:
        """Call this with every change from now on. It must not block, and what it raises ends `run`."""
        self._handlers.append(handler)

    def learn(self, written: T) -> None:
        """Take note of what a write returned, so that the next look at the cache does not see the time before it.

        What the watch has passed already it has told itself, also that the object is gone again.
        """
        ahead = _is_later(written.metadata.resource_version, self._version)
        self._tell(self.store.put(written) if ahead else self.store.learn(written))

    def forget(self, key: Key, uid: str) -> None:
        """Take note that an object is gone, as the answer to a write told."""
        self._tell(self.store.remove(key, uid))

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            if self._pace.resync is not None:
                tasks.create_task(self._resync(self._pace.resync))
            while True:
                await self._follow()
        raise AssertionError("an informer ends only by being cancelled")

    async def _follow(self) -> None:
        """One list or one watch, whichever is needed, and a pause after failures."""
        try:
            if not self._version:
                await self._list()
            await self._watch()
        except Expired:
            logger.info("history expired, listing anew", extra=self._extra)
            self._version = ""
            await asyncio.sleep(self._pace.backoff.delay(1))
        except KubeError as error:
            self._failures += 1
            self.troubled_at = self.troubled_at if self.trouble else asyncio.get_running_loop().time()
            self.trouble = f"{self.resource.plural} cannot be watched: {error}"
            asked = error.retry_after if isinstance(error, ApiError) else None
            wait = max(asked or 0.0, self._pace.backoff.delay(self._failures))
            logger.warning("informer interrupted", extra={**self._extra, "error": str(error), "wait": round(wait, 3)})
            await asyncio.sleep(wait)

    async def _list(self) -> None:
        self._lists.inc()
        found = await self._client.list(self.resource, self.selection, page=self._pace.page)
        # What cannot be read is not gone: the last state that could be read stays.
        keep = [item.metadata.key for item in found.unreadable]
        for change in self.store.replace(found.items, keep):
            self._tell(change)
        self._version = found.resource_version
        self._known.set(len(self.store))
        self._synced.set()

    async def _watch(self) -> None:
        self._watches.inc()
        seconds = self._pace.watch + random.randrange(self._pace.watch)  # noqa: S311 - no secret
        opened = asyncio.get_running_loop().time()
        async with self._client.watch(
            self.resource, self.selection, resource_version=self._version, seconds=seconds, idle=self._pace.idle
        ) as events:
            self._failures, self.trouble = 0, ""
            await self._take_note(events)
        # An end in peace; but ends that come at once, again and again, must not make a busy loop.
        if asyncio.get_running_loop().time() - opened < 1:
            await asyncio.sleep(self._pace.backoff.delay(1))

    async def _take_note(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            match event:
                case Bookmark(version):
                    self._version = version
                case Present(found):
                    self._version = found.metadata.resource_version
                    self._tell(self.store.put(found))
                case Gone(found):
                    self._version = found.metadata.resource_version
                    self._tell(self.store.remove(found.metadata.key, found.metadata.uid))
                case Garbled(found):
                    self._version = found.metadata.resource_version
            self._known.set(len(self.store))

    async def _resync(self, seconds: float) -> NoReturn:
        while True:
            await asyncio.sleep(seconds)
            for known in self.store.all():
                self._tell(Change(known, known))

    def _tell(self, change: Change[T] | None) -> None:
        if change is not None:
            for handler in self._handlers:
                handler(change)

    @property
    def _extra(self) -> dict[str, object]:
        return {"kind": self.resource.kind, "namespace": self.selection.namespace or "*", "version": self._version}


def _is_later(version: str, known: str) -> bool:
    return version.isdecimal() and known.isdecimal() and int(version) > int(known)
