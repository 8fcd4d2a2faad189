"""An informer: a cache of the objects of one kind. A list fills the cache, and watches update it.

The informer is level-triggered: it reports that an object changed, and the current state of the object. It does not
report every intermediate state. After every interruption, the informer completes the cache again. It then also reports
the objects that were deleted during the interruption.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from gpu_runtime.backoff import Backoff
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
from gpu_runtime.kube.retry import NO_RETRY
from gpu_runtime.kube.store import ObjectChange, Store

T = TypeVar("T", bound=KubeObject)
ChangeHandler = Callable[[ObjectChange[T]], None]

logger = logging.getLogger(__name__)
_RELIST_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)


@dataclass(frozen=True)
class InformerOptions:
    """Timeouts and limits of an informer. Times are in seconds."""

    watch_timeout_seconds: int = 300
    """Minimum lifetime of a watch. The actual lifetime is random, up to twice the minimum, so that not all watches end
    at the same time. When a watch ends, the informer opens a new one."""
    watch_idle_timeout: float = 90.0
    """Time without data after which the client closes a watch. A healthy server sends a bookmark about every minute."""
    resync_period: float | None = None
    """Interval at which the informer reports every object as if it had changed. None: the informer never does this."""
    backoff: Backoff = _RELIST_BACKOFF
    """Delay between attempts while the list or the watch fails."""
    page_size: int = 500
    """Objects per page of a list."""


class Informer(Generic[T]):
    """Caches the selected objects in `store` and reports changes to event handlers while `run` runs."""

    def __init__(
        self,
        client: KubeClient,
        resource: ApiResource[T],
        list_options: ListOptions = ALL_OBJECTS,
        *,
        options: InformerOptions | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        # No retries in the client: `run` has its own backoff and must see every failure.
        self._client = client.with_options(timeout=30.0, retries=NO_RETRY)
        self.resource = resource
        self.list_options = list_options
        self.store: Store[T] = Store()
        self._options = options or InformerOptions()
        metrics = metrics or KubeMetrics()
        self._list_counter = metrics.reflector_lists.labels(resource.kind)
        self._watch_counter = metrics.reflector_watches.labels(resource.kind)
        self._object_gauge = metrics.informer_objects.labels(resource.kind)
        self._handlers: list[ChangeHandler[T]] = []
        self._synced = asyncio.Event()
        self._resource_version = ""
        self._failures = 0
        self.last_error = ""
        """Why the cache may be stale. Empty while a watch is open."""
        self.failing_since = 0.0
        """When the first failure since the last open watch happened, on the clock of the event loop."""

    @property
    def has_synced(self) -> bool:
        """Whether the cache has been complete at least once."""
        return self._synced.is_set()

    async def wait_for_sync(self) -> None:
        """Wait until the cache has been complete at least once."""
        await self._synced.wait()

    def add_event_handler(self, handler: ChangeHandler[T]) -> None:
        """Call the handler with every change from now on.

        The handler must not block. If it raises an exception, `run` ends.
        """
        self._handlers.append(handler)

    def record_write(self, written: T) -> None:
        """Put the object that a write returned into the cache, so that the next read sees the write.

        If the watch has already passed the resource version of the write, it has delivered the write, and perhaps a
        later deletion of the object. In this case, an object that is not in the cache is not added.
        """
        ahead_of_watch = _is_newer_version(written.metadata.resource_version, self._resource_version)
        self._notify(self.store.put(written) if ahead_of_watch else self.store.record_write(written))

    def record_delete(self, key: ObjectKey, uid: str) -> None:
        """Remove an object from the cache after the response to a write showed that the object no longer exists."""
        self._notify(self.store.remove(key, uid))

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as tasks:
            if self._options.resync_period is not None:
                tasks.create_task(self._resync(self._options.resync_period))
            while True:
                await self._list_and_watch()
        raise AssertionError("an informer ends only by being cancelled")

    async def _list_and_watch(self) -> None:
        """List if there is no resource version to watch from, then watch. After a failure, wait for the backoff."""
        try:
            if not self._resource_version:
                await self._list()
            await self._watch()
        except KubeResourceExpired:
            logger.info(
                "informer resource version expired; the informer will list all objects again", extra=self._log_fields
            )
            self._resource_version = ""
            await asyncio.sleep(self._options.backoff.delay(1))
        except KubeError as error:
            self._failures += 1
            self.failing_since = self.failing_since if self.last_error else asyncio.get_running_loop().time()
            self.last_error = f"{self.resource.plural} cannot be watched: {error}"
            retry_after = error.retry_after if isinstance(error, KubeApiError) else None
            delay = max(retry_after or 0.0, self._options.backoff.delay(self._failures))
            logger.warning(
                "informer list or watch failed; the informer will retry",
                extra={**self._log_fields, "error": str(error), "delay_seconds": round(delay, 3)},
            )
            await asyncio.sleep(delay)

    async def _list(self) -> None:
        self._list_counter.inc()
        listed = await self._client.list(self.resource, self.list_options, page_size=self._options.page_size)
        # An object that cannot be decoded still exists, so its last decodable state stays in the cache.
        keep = [item.metadata.key for item in listed.undecodable]
        for change in self.store.replace(listed.items, keep):
            self._notify(change)
        self._resource_version = listed.resource_version
        self._object_gauge.set(len(self.store))
        self._synced.set()

    async def _watch(self) -> None:
        self._watch_counter.inc()
        shortest = self._options.watch_timeout_seconds
        seconds = shortest + random.randrange(shortest)  # noqa: S311 - no secret
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
        # The server ended the watch normally. If the server ends every watch immediately, the pause prevents a busy
        # loop.
        if asyncio.get_running_loop().time() - opened < 1:
            await asyncio.sleep(self._options.backoff.delay(1))

    async def _apply_events(self, events: AsyncIterator[WatchEvent[T]]) -> None:
        async for event in events:
            match event:
                case Bookmark(version):
                    self._resource_version = version
                case ObjectApplied(changed):
                    self._resource_version = changed.metadata.resource_version
                    self._notify(self.store.put(changed))
                case ObjectDeleted(deleted):
                    self._resource_version = deleted.metadata.resource_version
                    self._notify(self.store.remove(deleted.metadata.key, deleted.metadata.uid))
                case ObjectDecodeFailed(undecodable):
                    self._resource_version = undecodable.metadata.resource_version
            self._object_gauge.set(len(self.store))

    async def _resync(self, seconds: float) -> NoReturn:
        while True:
            await asyncio.sleep(seconds)
            for cached in self.store.all():
                self._notify(ObjectChange(cached, cached))

    def _notify(self, change: ObjectChange[T] | None) -> None:
        if change is not None:
            for handler in self._handlers:
                handler(change)

    @property
    def _log_fields(self) -> dict[str, object]:
        return {
            "kind": self.resource.kind,
            "namespace": self.list_options.namespace or "*",
            "resource_version": self._resource_version,
        }


def _is_newer_version(version: str, other: str) -> bool:
    return version.isdecimal() and other.isdecimal() and int(version) > int(other)
