"""One controller: changes of objects become keys, keys are reconciled, and outcomes decide what happens next.

Backoff, metrics and logging live here and nowhere else. A reconciler looks, writes and returns an Outcome or raises; it
is never run twice at once for one object.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from gpu_runtime.kube.errors import Conflict, KubeError
from gpu_runtime.kube.meta import Key, Object, Resource
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.kube.store import Change, Store
from gpu_runtime.kube.workqueue import QueueClosed, WorkQueue

T = TypeVar("T", bound=Object)
O = TypeVar("O", bound=Object)  # noqa: E741 - the other kind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing to do until something changes."""


@dataclass(frozen=True, slots=True)
class RecheckIn:
    """Nothing more to do now; look again after so many seconds even if nothing changes."""

    seconds: float


class Source(Protocol[T]):
    """Where a controller learns of the objects of a kind; an Informer is one."""

    resource: Resource[T]
    store: Store[T]

    def on_change(self, handler: Callable[[Change[T]], None]) -> None: ...
    async def synced(self) -> None: ...


Outcome = Settled | RecheckIn
Reconcile = Callable[[T], Awaitable[Outcome]]


@dataclass(frozen=True)
class ControllerOptions:
    workers: int = 8
    """How many objects are reconciled at once."""
    backoff: Backoff = field(default_factory=Backoff)
    """Between attempts at an object that fails."""
    deadline: float = 60.0
    """Seconds after which one reconciliation is given up and counts as failed."""
    expected: tuple[type[Exception], ...] = (KubeError,)
    """What a reconciler may raise in the normal course of things: logged as one line, where others show their trace."""


class Controller(Generic[T]):
    """Made inside a running event loop. Say what it watches, then `run` it; `stop` lets work in progress finish."""

    def __init__(
        self,
        name: str,
        primary: Source[T],
        reconcile: Reconcile[T],
        options: ControllerOptions | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self.name = name
        self._primary = primary
        self._reconcile = reconcile
        self._options = options or ControllerOptions()
        self._measure = _Measure(metrics or KubeMetrics(), name)
        self._queue: WorkQueue[Key] = WorkQueue(self._options.backoff, self._measure)
        self._sources: list[Source[Any]] = []
        self.watches(primary, lambda found: (found.metadata.key,))

    def watches(self, source: Source[O], concerns: Callable[[O], Iterable[Key]]) -> None:
        """Reconcile the objects that a change concerns, whether it concerns them before or after it."""

        def enqueue(change: Change[O]) -> None:
            for side in (change.before, change.after):
                if side is not None:
                    for key in concerns(side):
                        self._queue.add(key)

        self._sources.append(source)
        source.on_change(enqueue)

    def owns(self, source: Source[O]) -> None:
        """Reconcile the object that an object of this kind belongs to by its controller reference."""
        owner_kind = self._primary.resource.kind
        group = self._primary.resource.group

        def owner(found: O) -> Iterable[Key]:
            reference = found.metadata.controller
            if reference is None or reference.kind != owner_kind or _group(reference.api_version) != group:
                return ()
            namespace = found.metadata.namespace if self._primary.resource.namespaced else ""
            return (Key(namespace, reference.name),)

        self.watches(source, owner)

    def enqueue(self, key: Key, after: float = 0.0) -> None:
        """Reconcile this object, now or after so many seconds."""
        if after > 0:
            self._queue.add_after(key, after)
        else:
            self._queue.add(key)

    async def run(self) -> None:
        """Reconcile until `stop`. Starts when every cache it watches has been complete once.

        Cancelled, it can be run again: every object is then looked at anew.
        """
        for source in self._sources:
            await source.synced()
        for found in self._primary.store.all():
            self._queue.add(found.metadata.key)
        logger.info("controller started", extra={"controller": self.name, "workers": self._options.workers})
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._options.workers):
                tasks.create_task(self._work())
        logger.info("controller stopped", extra={"controller": self.name})

    def stop(self) -> None:
        """Take no more work. `run` returns when the work in progress is done."""
        self._queue.close()

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.take()
            except QueueClosed:
                return
            try:
                await self._handle(key)
            finally:
                self._queue.done(key)

    async def _handle(self, key: Key) -> None:
        found = self._primary.store.get(key)
        if found is None:
            self._queue.forget(key)
            return
        started = time.perf_counter()
        with self._measure.busy.track_inprogress():
            result = await self._attempt(key, found)
        self._measure.took(result, time.perf_counter() - started)

    async def _attempt(self, key: Key, found: T) -> str:
        """Reconcile once and arrange what follows. Returns the result's name for those who count."""
        try:
            async with asyncio.timeout(self._options.deadline):
                outcome = await self._reconcile(found)
        except Conflict as lost:
            # Somebody else wrote first, which the cache will tell in a moment: nothing is wrong.
            self._log(logging.DEBUG, "lost a race", key, lost)
            return "conflict"
        except self._options.expected as error:
            self._log(logging.WARNING, "reconcile failed", key, error)
            return "error"
        except TimeoutError as error:
            self._log(logging.WARNING, f"reconcile took longer than {self._options.deadline:g} s", key, error)
            return "timeout"
        except Exception:  # a bug met by one object must not stop the others
            logger.exception("reconcile crashed", extra=self._extra(key, self._queue.retry(key)))
            return "crash"
        return self._settle(key, outcome)

    def _settle(self, key: Key, outcome: Outcome) -> str:
        self._queue.forget(key)
        match outcome:
            case Settled():
                return "settled"
            case RecheckIn(seconds):
                self._queue.add_after(key, seconds)
                return "recheck"

    def _log(self, level: int, message: str, key: Key, error: Exception) -> None:
        extra = self._extra(key, self._queue.retry(key))
        logger.log(level, message, extra={**extra, "error": str(error), "error_type": type(error).__name__})

    def _extra(self, key: Key, wait: float) -> dict[str, object]:
        return {
            "controller": self.name,
            "namespace": key.namespace,
            "object": key.name,
            "failures": self._queue.failures(key),
            "wait": round(wait, 3),
        }


class _Measure:
    """A controller's share of the metrics, with its labels looked up once."""

    def __init__(self, metrics: KubeMetrics, name: str) -> None:
        self.busy = metrics.workers_busy.labels(name)
        self._depth = metrics.queue_depth.labels(name)
        self._wait = metrics.queue_wait.labels(name)
        self._retries = metrics.queue_retries.labels(name)
        self._time = metrics.reconcile_time.labels(name)
        self._results = {
            result: metrics.reconciles.labels(name, result)
            for result in ("settled", "recheck", "conflict", "error", "timeout", "crash")
        }

    def took(self, result: str, seconds: float) -> None:
        self._results[result].inc()
        self._time.observe(seconds)

    def depth(self, waiting: int) -> None:
        self._depth.set(waiting)

    def waited(self, seconds: float) -> None:
        self._wait.observe(seconds)

    def retried(self) -> None:
        self._retries.inc()


def _group(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""
