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

from gpu_runtime.kube.errors import KubeConflict, KubeError
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.kube.store import ObjectChange, Store
from gpu_runtime.kube.workqueue import WorkQueue, WorkQueueShutDown

T = TypeVar("T", bound=KubeObject)
O = TypeVar("O", bound=KubeObject)  # noqa: E741 - the other kind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to do until something changes."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Nothing more to do now; look again after so many seconds even if nothing changes."""

    seconds: float


class WatchSource(Protocol[T]):
    """Where a controller learns of the objects of a kind; an Informer is one."""

    resource: ApiResource[T]
    store: Store[T]

    def add_event_handler(self, handler: Callable[[ObjectChange[T]], None]) -> None: ...
    async def wait_for_sync(self) -> None: ...


ReconcileResult = Done | RequeueAfter
ReconcileFunc = Callable[[T], Awaitable[ReconcileResult]]


@dataclass(frozen=True)
class ControllerOptions:
    max_concurrent_reconciles: int = 8
    """How many objects are reconciled at once."""
    backoff: Backoff = field(default_factory=Backoff)
    """Between attempts at an object that fails."""
    reconcile_timeout: float = 60.0
    """Seconds after which one reconciliation is given up and counts as failed."""
    expected_errors: tuple[type[Exception], ...] = (KubeError,)
    """What a reconciler may raise in the normal course of things: logged as one line, where others show their trace."""


class Controller(Generic[T]):
    """Made inside a running event loop. Say what it watches, then `run` it; `stop` lets work in progress finish."""

    def __init__(
        self,
        name: str,
        primary: WatchSource[T],
        reconcile: ReconcileFunc[T],
        options: ControllerOptions | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self.name = name
        self._primary = primary
        self._reconcile = reconcile
        self._options = options or ControllerOptions()
        self._metrics = _ControllerMetrics(metrics or KubeMetrics(), name)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(self._options.backoff, self._metrics)
        self._sources: list[WatchSource[Any]] = []
        self.watches(primary, lambda found: (found.metadata.key,))

    def watches(self, source: WatchSource[O], concerns: Callable[[O], Iterable[ObjectKey]]) -> None:
        """Reconcile the objects that a change concerns, whether it concerns them before or after it."""

        def enqueue(change: ObjectChange[O]) -> None:
            for side in (change.old, change.new):
                if side is not None:
                    for key in concerns(side):
                        self._queue.add(key)

        self._sources.append(source)
        source.add_event_handler(enqueue)

    def owns(self, source: WatchSource[O]) -> None:
        """Reconcile the object that an object of this kind belongs to by its controller reference."""
        owner_kind = self._primary.resource.kind
        group = self._primary.resource.group

        def owner(found: O) -> Iterable[ObjectKey]:
            reference = found.metadata.controller_ref
            if reference is None or reference.kind != owner_kind or _api_group(reference.api_version) != group:
                return ()
            namespace = found.metadata.namespace if self._primary.resource.namespaced else ""
            return (ObjectKey(namespace, reference.name),)

        self.watches(source, owner)

    def enqueue(self, key: ObjectKey, after: float = 0.0) -> None:
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
            await source.wait_for_sync()
        for found in self._primary.store.all():
            self._queue.add(found.metadata.key)
        logger.info(
            "controller started", extra={"controller": self.name, "workers": self._options.max_concurrent_reconciles}
        )
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._options.max_concurrent_reconciles):
                tasks.create_task(self._process_queue())
        logger.info("controller stopped", extra={"controller": self.name})

    def stop(self) -> None:
        """Take no more work. `run` returns when the work in progress is done."""
        self._queue.shut_down()

    async def _process_queue(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except WorkQueueShutDown:
                return
            try:
                await self._reconcile_key(key)
            finally:
                self._queue.done(key)

    async def _reconcile_key(self, key: ObjectKey) -> None:
        found = self._primary.store.get(key)
        if found is None:
            self._queue.forget(key)
            return
        started = time.perf_counter()
        with self._metrics.active_workers.track_inprogress():
            result = await self._reconcile_object(key, found)
        self._metrics.observe_reconcile(result, time.perf_counter() - started)

    async def _reconcile_object(self, key: ObjectKey, found: T) -> str:
        """Reconcile once and arrange what follows. Returns the result's name for those who count."""
        try:
            async with asyncio.timeout(self._options.reconcile_timeout):
                outcome = await self._reconcile(found)
        except KubeConflict as lost:
            # Somebody else wrote first, which the cache will tell in a moment: nothing is wrong.
            self._log_failure(logging.DEBUG, "lost a race", key, lost)
            return "conflict"
        except self._options.expected_errors as error:
            self._log_failure(logging.WARNING, "reconcile failed", key, error)
            return "error"
        except TimeoutError as error:
            self._log_failure(
                logging.WARNING, f"reconcile took longer than {self._options.reconcile_timeout:g} s", key, error
            )
            return "timeout"
        except Exception:  # a bug met by one object must not stop the others
            logger.exception("reconcile crashed", extra=self._log_fields(key, self._queue.add_rate_limited(key)))
            return "crash"
        return self._handle_result(key, outcome)

    def _handle_result(self, key: ObjectKey, outcome: ReconcileResult) -> str:
        self._queue.forget(key)
        match outcome:
            case Done():
                return "settled"
            case RequeueAfter(seconds):
                self._queue.add_after(key, seconds)
                return "recheck"

    def _log_failure(self, level: int, message: str, key: ObjectKey, error: Exception) -> None:
        extra = self._log_fields(key, self._queue.add_rate_limited(key))
        logger.log(level, message, extra={**extra, "error": str(error), "error_type": type(error).__name__})

    def _log_fields(self, key: ObjectKey, wait: float) -> dict[str, object]:
        return {
            "controller": self.name,
            "namespace": key.namespace,
            "object": key.name,
            "failures": self._queue.num_requeues(key),
            "wait": round(wait, 3),
        }


class _ControllerMetrics:
    """A controller's share of the metrics, with its labels looked up once."""

    def __init__(self, metrics: KubeMetrics, name: str) -> None:
        self.active_workers = metrics.active_workers.labels(name)
        self._depth = metrics.workqueue_depth.labels(name)
        self._queue_duration = metrics.workqueue_queue_duration.labels(name)
        self._retries = metrics.workqueue_retries.labels(name)
        self._reconcile_time = metrics.reconcile_time.labels(name)
        self._results = {
            result: metrics.reconcile_total.labels(name, result)
            for result in ("settled", "recheck", "conflict", "error", "timeout", "crash")
        }

    def observe_reconcile(self, result: str, seconds: float) -> None:
        self._results[result].inc()
        self._reconcile_time.observe(seconds)

    def set_depth(self, waiting: int) -> None:
        self._depth.set(waiting)

    def observe_queue_duration(self, seconds: float) -> None:
        self._queue_duration.observe(seconds)

    def count_retry(self) -> None:
        self._retries.inc()


def _api_group(api_version: str) -> str:
    group, slash, _ = api_version.partition("/")
    return group if slash else ""
