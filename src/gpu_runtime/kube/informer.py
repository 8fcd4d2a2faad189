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

from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import (
    ALL_OBJECTS,
    Bookmark,
    ListOptions,
    ObjectApplied,
    ObjectDecodeFailed,
    ObjectDeleted,
    WatchEvent,
)
from gpu_runtime.kube.errors import KubeApiError, KubeError, KubeResourceExpired
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import NO_RETRY, Backoff
from gpu_runtime.kube.store import ObjectChange, Store

T = TypeVar("T", bound=KubeObject)
ChangeHandler = Callable[[ObjectChange[T]], None]

logger = logging.getLogger(__name__)
_RELIST_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)


@dataclass(frozen=True)
class InformerOptions:
    """How an informer deals with time, in seconds."""

    watch_timeout_seconds: int = 300
    """How long a watch lives before it is opened anew; up to twice as long, by chance, so that not all end at once."""
    watch_idle_timeout: float = 90.0
    """A watch that says nothing for so long is dead: a healthy one has a bookmark about every minute."""
    resync_period: float | None = None
    """How often every object is told again as if it had changed, if at all."""
    backoff: Backoff = _RELIST_BACKOFF
    """Between attempts while the server cannot be reached."""
    page_size: int = 500
    """Objects per page of a list."""


class Informer(Generic[T]):
    """Read from `store`, hear of changes through `on_change`, and keep `run` running."""

    def __init__(
        self,
        client: KubeClient,
        resource: ApiResource[T],
        selection: ListOptions = ALL_OBJECTS,
        *,
        options: InformerOptions | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        # The loop below has its own backoff, and must know of every failure.
        self._client = client.with_options(timeout=30.0, retries=NO_RETRY)
        self.resource = resource
        self.list_options = selection
        self.store: Store[T] = Store()
        self._options = options or InformerOptions()
        metrics = metrics or KubeMetrics()
        self._list_counter = metrics.informer_lists.labels(resource.kind)
        self._watch_counter = metrics.informer_watches.labels(resource.kind)
        self._object_gauge = metrics.informer_objects.labels(resource.kind)
        self._handlers: list[ChangeHandler[T]] = []
        self._synced = asyncio.Event()
        self._resource_version = ""
        self._failures = 0
        self.last_error = ""
        """Why the cache may be out of date; empty while a watch is open."""
        self.failing_since = 0.0
        """Since when that is so, in the time of the event loop."""

    @property
    def has_synced(self) -> bool:
        """Whether the cache has been complete once."""
        return self._synced.is_set()

    async def wait_for_sync(self) -> None:
        """Wait until the cache has been complete once."""
        await self._synced.wait()

    def add_event_handler(self, handler: ChangeHandler[T]) -> None:
        """Call this with every change from now on. It must not block, and what it raises ends `run`."""
        self._handlers.append(handler)

    def record_write(self, written: T) -> None:
        """Take note of what a write returned, so that the next look at the cache does not see the time before it.

        What the watch has passed already it has told itself, also that the object is gone again.
        """
        ahead = _is_newer_version(written.metadata.resource_version, self._resource_version)
        self._notify(self.store.put(written) if ahead else self.store.record_write(written))

    def record_delete(self, key: ObjectKey, uid: str) -> None:
        """Take note that an object is gone, as the answer to a write told."""
        self._notify(self.store.remove(key, uid))

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            if self._options.resync_period is not None:
                tasks.create_task(self._resync(self._options.resync_period))
            while True:
                await self._list_and_watch()
        raise AssertionError("an informer ends only by being cancelled")

    async def _list_and_watch(self) -> None:
        """One list or one watch, whichever is needed, and a pause after failures."""
        try:
            if not self._resource_version:
                await self._list()
            await self._watch()
        except KubeResourceExpired:
            logger.info("history expired, listing anew", extra=self._log_fields)
            self._resource_version = ""
            await asyncio.sleep(self._options.backoff.delay(1))
        except KubeError as error:
            self._failures += 1
            self.failing_since = self.failing_since if self.last_error else asyncio.get_running_loop().time()
            self.last_error = f"{self.resource.plural} cannot be watched: {error}"
            asked = error.retry_after if isinstance(error, KubeApiError) else None
            wait = max(asked or 0.0, self._options.backoff.delay(self._failures))
            logger.warning(
                "informer interrupted", extra={**self._log_fields, "error": str(error), "wait": round(wait, 3)}
            )
            await asyncio.sleep(wait)

    async def _list(self) -> None:
        self._list_counter.inc()
        found = await self._client.list(self.resource, self.list_options, page_size=self._options.page_size)
        # What cannot be read is not gone: the last state that could be read stays.
        keep = [item.metadata.key for item in found.undecodable]
        for change in self.store.replace(found.items, keep):
            self._notify(change)
        self._resource_version = found.resource_version
        self._object_gauge.set(len(self.store))
        self._synced.set()

    async def _watch(self) -> None:
        self._watch_counter.inc()
        seconds = self._options.watch_timeout_seconds + random.randrange(self._options.watch_timeout_seconds)  # noqa: S311 - no secret
        opened = asyncio.get_running_loop().time()
        async with self._client.watch(
            self.resource,
            self.list_options,
            resource_version=self._resource_version,
            timeout_seconds=seconds,
            idle_timeout=self._options.watch_idle_timeout,
        ) as events:
            self._failures, self.last_error = 0, ""
            await self._apply_events(events)
        # An end in peace; but ends that come at once, again and again, must not make a busy loop.
        if asyncio.get_running_loop().time() - opened < 1:
            await asyncio.sleep(self._options.backoff.delay(1))

    async def _apply_events(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            match event:
                case Bookmark(version):
                    self._resource_version = version
                case ObjectApplied(found):
                    self._resource_version = found.metadata.resource_version
                    self._notify(self.store.put(found))
                case ObjectDeleted(found):
                    self._resource_version = found.metadata.resource_version
                    self._notify(self.store.remove(found.metadata.key, found.metadata.uid))
                case ObjectDecodeFailed(found):
                    self._resource_version = found.metadata.resource_version
            self._object_gauge.set(len(self.store))

    async def _resync(self, seconds: float) -> NoReturn:
        while True:
            await asyncio.sleep(seconds)
            for known in self.store.all():
                self._notify(ObjectChange(known, known))

    def _notify(self, change: ObjectChange[T] | None) -> None:
        if change is not None:
            for handler in self._handlers:
                handler(change)

    @property
    def _log_fields(self) -> dict[str, object]:
        return {
            "kind": self.resource.kind,
            "namespace": self.list_options.namespace or "*",
            "version": self._resource_version,
        }


def _is_newer_version(version: str, known: str) -> bool:
    return version.isdecimal() and known.isdecimal() and int(version) > int(known)
