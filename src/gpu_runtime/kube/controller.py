"""A controller: reconciles an object after the object, or a watched object that maps to it, has changed.

A change adds keys to a workqueue. Workers get the keys from the queue and call the reconcile function. Its result
decides whether and when the controller queues the key again. Only this module contains the backoff, the metrics and the
logs of reconciliations. A reconcile function reads and writes objects. It returns a ReconcileResult or raises an
exception. The controller never calls it concurrently for the same object.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.errors import KubeConflict, KubeError
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.store import ObjectChange, Store
from gpu_runtime.kube.workqueue import WorkQueue, WorkQueueShutDown

T = TypeVar("T", bound=KubeObject)
O = TypeVar("O", bound=KubeObject)  # noqa: E741 - the other kind

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """Reconcile again only when an object changes."""


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Reconcile again after this time, even if no object changes."""

    seconds: float


class WatchSource(Protocol[T]):
    """Delivers the objects of a kind and their changes to a controller. Informer implements this protocol."""

    resource: ApiResource[T]
    store: Store[T]

    def add_event_handler(self, handler: Callable[[ObjectChange[T]], None]) -> None: ...
    async def wait_for_sync(self) -> None: ...


ReconcileResult = Done | RequeueAfter
ReconcileFunc = Callable[[T], Awaitable[ReconcileResult]]
_ResultLabel = Literal["success", "error", "requeue", "requeue_after"]
"""The label `result` of controller_runtime_reconcile_total."""


@dataclass(frozen=True)
class ControllerOptions:
    max_concurrent_reconciles: int = 8
    """How many objects the controller reconciles concurrently."""
    backoff: Backoff = field(default_factory=Backoff)
    """Delay before the next attempt after the reconciliation of an object failed."""
    reconcile_timeout: float = 60.0
    """Seconds after which the controller cancels a reconciliation and counts it as failed."""
    expected_errors: tuple[type[Exception], ...] = (KubeError,)
    """Errors that a reconcile function raises in normal operation. The controller logs them in one line. Every other
    exception except TimeoutError is a bug, and the controller logs its traceback."""


class Controller(Generic[T]):
    """Reconciles the objects of one kind.

    Create it inside a running event loop, register its sources with `watches` and `owns`, then call `run`. After
    `stop`, `run` returns when the reconciliations in progress have finished.
    """

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
        metrics = metrics or KubeMetrics()
        self._metrics = _ControllerMetrics(metrics, name, self._options)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(self._options.backoff, metrics.of_workqueue(name))
        self._sources: list[WatchSource[Any]] = []
        self.watches(primary, lambda changed: (changed.metadata.key,))

    def watches(self, source: WatchSource[O], mapper: Callable[[O], Iterable[ObjectKey]]) -> None:
        """Reconcile the keys that the mapper returns when an object of the source changes.

        The controller calls the mapper with the state before the change and with the state after the change.
        """

        def enqueue(change: ObjectChange[O]) -> None:
            for state in (change.old, change.new):
                if state is not None:
                    for key in mapper(state):
                        self._queue.add(key)

        self._sources.append(source)
        source.add_event_handler(enqueue)

    def owns(self, source: WatchSource[O]) -> None:
        """Reconcile the owner of each object of the source that changes.

        The owner is the object that the controller reference names.
        """
        owner_kind = self._primary.resource.kind
        group = self._primary.resource.group

        def owner_key(owned: O) -> Iterable[ObjectKey]:
            reference = owned.metadata.controller_ref
            if reference is None or reference.kind != owner_kind or reference.api_version.rpartition("/")[0] != group:
                return ()
            namespace = owned.metadata.namespace if self._primary.resource.namespaced else ""
            return (ObjectKey(namespace, reference.name),)

        self.watches(source, owner_key)

    def enqueue(self, key: ObjectKey, after: float = 0.0) -> None:
        """Reconcile this object now, or after the given number of seconds."""
        if after > 0:
            self._queue.add_after(key, after)
        else:
            self._queue.add(key)

    async def run(self) -> None:
        """Reconcile until `stop` is called. Start after every watched cache has synced.

        This method can run again after it was cancelled. Each run reconciles every object at its start.
        """
        for source in self._sources:
            await source.wait_for_sync()
        for cached in self._primary.store.all():
            self._queue.add(cached.metadata.key)
        workers = self._options.max_concurrent_reconciles
        logger.info("controller started", extra={"controller": self.name, "max_concurrent_reconciles": workers})
        async with asyncio.TaskGroup() as tasks:
            for _ in range(workers):
                tasks.create_task(self._process_queue())
        logger.info("controller stopped", extra={"controller": self.name})

    def stop(self) -> None:
        """Start no more reconciliations. `run` returns when those in progress have finished."""
        self._queue.shut_down()

    async def _process_queue(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except WorkQueueShutDown:
                return
            with self._metrics.active_workers.track_inprogress():
                try:
                    await self._reconcile_key(key)
                finally:
                    self._queue.done(key)

    async def _reconcile_key(self, key: ObjectKey) -> None:
        started = time.perf_counter()
        cached = self._primary.store.get(key)
        if cached is None:  # the object was deleted; controller-runtime also counts this as a success
            result = self._handle_result(key, Done())
        else:
            result = await self._reconcile_object(key, cached)
        self._metrics.observe_reconcile(result, time.perf_counter() - started)

    async def _reconcile_object(self, key: ObjectKey, cached: T) -> _ResultLabel:
        """Reconcile once, and requeue the key if necessary. Return the label `result` for the metrics."""
        timeout = asyncio.timeout(self._options.reconcile_timeout)
        try:
            async with timeout:
                result = await self._reconcile(cached)
        except KubeConflict as error:
            # Another client changed the object first. This is not an error: the watch will deliver the change.
            logger.debug(
                "reconcile failed with a write conflict; the object was requeued",
                extra=self._requeue_with_backoff(key, error),
            )
            return "requeue"
        except self._options.expected_errors as error:
            logger.warning("reconcile failed; the object was requeued", extra=self._requeue_with_backoff(key, error))
            return "error"
        except TimeoutError as error:
            fields = self._requeue_with_backoff(key, error)
            if timeout.expired():
                self._metrics.reconcile_timeouts.inc()
                fields["timeout_seconds"] = self._options.reconcile_timeout
                logger.warning("reconcile timed out; the object was requeued", extra=fields)
            else:
                logger.warning("reconcile failed; the object was requeued", extra=fields)
            return "error"
        except Exception as error:  # a bug in the reconciliation of one object must not stop the other objects
            self._metrics.reconcile_panics.inc()
            fields = self._requeue_with_backoff(key, error)
            logger.exception("reconcile raised an unexpected exception; the object was requeued", extra=fields)
            return "error"
        return self._handle_result(key, result)

    def _handle_result(self, key: ObjectKey, result: ReconcileResult) -> _ResultLabel:
        self._queue.forget(key)
        match result:
            case Done():
                return "success"
            case RequeueAfter(seconds):
                self._queue.add_after(key, seconds)
                return "requeue_after"

    def _requeue_with_backoff(self, key: ObjectKey, error: Exception) -> dict[str, object]:
        """Requeue a key whose reconciliation failed. Return the fields of the log line about the failure."""
        delay = self._queue.add_rate_limited(key)
        return {
            "controller": self.name,
            "namespace": key.namespace,
            "object_name": key.name,
            "failures": self._queue.num_requeues(key),
            "delay_seconds": round(delay, 3),
            "error": str(error),
            "error_type": type(error).__name__,
        }


class _ControllerMetrics:
    """The metrics of one controller. Every series exists from the start, with the value 0."""

    def __init__(self, metrics: KubeMetrics, name: str, options: ControllerOptions) -> None:
        self.active_workers = metrics.active_workers.labels(name)
        self.reconcile_timeouts = metrics.reconcile_timeouts.labels(name)
        self.reconcile_panics = metrics.reconcile_panics.labels(name)
        self._reconcile_errors = metrics.reconcile_errors.labels(name)
        self._reconcile_time = metrics.reconcile_time.labels(name)
        labels: tuple[_ResultLabel, ...] = ("success", "error", "requeue", "requeue_after")
        self._results = {label: metrics.reconcile_total.labels(name, label) for label in labels}
        metrics.max_concurrent_reconciles.labels(name).set(options.max_concurrent_reconciles)

    def observe_reconcile(self, result: _ResultLabel, seconds: float) -> None:
        self._results[result].inc()
        if result == "error":
            self._reconcile_errors.inc()
        self._reconcile_time.observe(seconds)
