"""Evicts Operation objects: after their retention period, or earlier if there are more than the configured maximum.

Above the maximum, the runtime API evicts operations of the callers that have the most operations. So a flood of one
caller evicts no operation of another caller. A waiting operation has a shorter retention period, because it has created
nothing.

Every replica evicts operations; there is no leader. Each delete request has the UID and the resourceVersion of the
checked object as preconditions. So several replicas together evict the same operations as one replica would. No replica
evicts an operation that is in progress, that is younger than MIN_AGE, whose unit exists, or that has leftovers.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NoReturn

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client import Counter as CounterMetric

from gpu_runtime.contract.crd.operation import OPERATION_SUMMARIES, OperationSummary
from gpu_runtime.contract.crd.well_known import Label, created_hour
from gpu_runtime.contract.operation_rules import OperationProgress, is_finished, progress_of
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions, ListPage
from gpu_runtime.kube.meta import parse_timestamp
from gpu_runtime.process.clock import Clock
from gpu_runtime.process.gather_bounded import gather_bounded
from gpu_runtime.runtime_api.api_informers import ATTACHED_INDEX, CLAIMED_INDEX, APIInformers
from gpu_runtime.runtime_api.operations.leftovers import Leftovers, collect_leftovers, has_leftovers, has_living_unit
from gpu_runtime.runtime_api.settings import OperationSettings

logger = logging.getLogger(__name__)

EVICTION_INTERVAL_SECONDS = 60.0
"""The average time between two evictions. The time varies by 50 %, so that replicas do not evict at the same time."""
MAX_CONCURRENT_DELETES = 8
MIN_AGE = timedelta(minutes=10)
"""The minimum age of an evicted operation, counted from its last attempt or its end.

A run of an attempt is never in progress for so long, and a cache that is in use never lags so much. So the caches show
everything that the operation has left.
"""
HOUR = timedelta(hours=1)


class OperationRetentionMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.retained = Gauge(
            "gpu_runtime_operations",
            "Number of retained operations when this replica last counted them",
            registry=registry,
        )
        self.evicted = CounterMetric(
            "gpu_runtime_operations_evicted",
            "Number of operations that this replica evicted, by reason: ttl (the retention period ended), waiting (the"
            " operation waited for stock for operations.waitingRetentionSeconds) or count (there were more than"
            " operations.maxRetained)",
            ["reason"],
            registry=registry,
        )


@dataclass(frozen=True)
class OperationRetention:
    client: KubeClient
    informers: APIInformers
    stale_reason: Callable[[], str | None]
    """Returns why the caches cannot be used, or None if they can."""
    namespace: str
    settings: OperationSettings
    clock: Clock
    metrics: OperationRetentionMetrics
    _semaphore: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_DELETES))

    @property
    def _retention(self) -> timedelta:
        return timedelta(seconds=self.settings.retention_seconds)

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(EVICTION_INTERVAL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            try:
                await self.run_once()
            except kube.KubeError as error:
                logger.warning("operation eviction failed; the runtime API will retry", extra={"error": str(error)})

    async def run_once(self) -> None:
        if reason := self.stale_reason():
            logger.warning(
                "operation eviction skipped because a cache is stale; the runtime API will retry",
                extra={"error": reason},
            )
            return
        await self._evict_waiting()
        await self._evict_expired()
        if await self._count() > self.settings.max_retained:
            await self._evict_surplus()

    async def _evict_waiting(self) -> None:
        """Evict operations that wait for stock. All of them are in the cache, because they are unfinished."""
        now, retention = self.clock.now(), timedelta(seconds=self.settings.waiting_retention_seconds)
        cached = self.informers.unfinished_operations.store.all()
        waiting = [each for each in cached if progress_of(each) is OperationProgress.WAITING]
        expired = [each for each in waiting if is_expired(each, now, retention)]
        await self._evict(without_leftovers(expired, self._leftovers()), "waiting")

    async def _evict_expired(self) -> None:
        now = self.clock.now()
        list_options = ListOptions(
            self.namespace,
            label_selector=f"{Label.CREATED_HOUR} notin ({','.join(retained_hours(now, self._retention))})",
        )
        kept = 0
        async for page in self.client.pages(OPERATION_SUMMARIES, list_options):
            leftovers = self._leftovers()
            expired = [
                each
                for each in page.items
                if is_expired(each, now, self._retention) and not has_living_unit(each, leftovers)
            ]
            evictable = without_leftovers(expired, leftovers)
            kept += len(expired) - len(evictable)
            await self._evict(evictable, "ttl")
        if kept:
            logger.warning(
                "expired operations were not evicted; recovery must clean up first, and the runtime API will retry",
                extra={"operations": kept},
            )

    async def _evict_surplus(self) -> None:
        """Evict the oldest operations of the callers that have the most. Every replica chooses the same operations."""
        listed = [each async for page in self._pages() for each in page.items]
        leftovers = self._leftovers()
        counted = [each for each in listed if not has_living_unit(each, leftovers)]
        surplus = surplus_by_caller(Counter(each.spec.caller for each in counted), self.settings.max_retained)
        if not surplus:
            return
        logger.warning(
            "operation limit exceeded; the runtime API evicts the oldest operations of the callers that have the most"
            " (raise operations.maxRetained or lower operations.retentionSeconds)",
            extra={"max_retained": self.settings.max_retained, "operations": surplus.total()},
        )
        aged = [each for each in counted if is_expired(each, self.clock.now(), MIN_AGE)]
        chosen = choose_evictions(without_leftovers(aged, leftovers), surplus)
        await self._evict(chosen, "count")
        if len(chosen) < surplus.total():
            logger.warning(
                "operation limit still exceeded; the runtime API will retry, because the remaining operations are in"
                " progress, are younger than 10 minutes, or have left objects that recovery must delete first",
                extra={"max_retained": self.settings.max_retained, "operations": surplus.total() - len(chosen)},
            )

    def _pages(self) -> AsyncIterator[ListPage[OperationSummary]]:
        return self.client.pages(OPERATION_SUMMARIES, ListOptions(self.namespace))

    def _leftovers(self) -> Leftovers:
        units, storages, pools = self.informers.units.store, self.informers.storages.store, self.informers.pools.store
        return collect_leftovers(
            (
                *units.by_index(CLAIMED_INDEX, CLAIMED_INDEX),
                *self.informers.claimed_pods(),
            ),
            storages.by_index(ATTACHED_INDEX, ATTACHED_INDEX),
            (*units.all(), *pools.all()),
            units.all(),
        )

    async def _count(self) -> int:
        count = await self.client.count(OPERATION_SUMMARIES, self.namespace)
        self.metrics.retained.set(count)
        return count

    async def _evict(self, operations: Sequence[OperationSummary], reason: str) -> None:
        results = await gather_bounded(self._semaphore, self._delete, operations)
        self.metrics.evicted.labels(reason).inc(sum(result is True for result in results))
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def _delete(self, operation: OperationSummary) -> bool:
        metadata = operation.metadata
        try:
            await self.client.delete(
                OPERATION_SUMMARIES, metadata.key, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except (kube.KubeNotFound, kube.KubeConflict):  # another replica evicted or changed it
            return False
        return True


def retained_hours(now: datetime, retention: timedelta) -> list[str]:
    """Return the creation hours of operations that cannot have expired yet.

    These are the hours that began within the retention period. The next hour is included, because clocks differ.
    """
    first = _truncate_to_hour(now - retention) + HOUR
    count = (_truncate_to_hour(now) + HOUR - first) // HOUR + 1
    return [created_hour(first + number * HOUR) for number in range(count)]


def surplus_by_caller(counts: Mapping[str, int], max_retained: int) -> Counter[str]:
    """Return how many operations each caller must lose, so that at most `max_retained` remain.

    All callers have the same share. If a caller does not use its share, the other callers can use the rest. So a caller
    with few operations loses none, independent of the number of operations of other callers.
    """
    surplus: Counter[str] = Counter()
    remaining, ascending = max_retained, sorted(counts.items(), key=lambda each: (each[1], each[0]))
    for position, (caller, count) in enumerate(ascending):
        kept = min(count, remaining // (len(ascending) - position))
        remaining -= kept
        surplus[caller] = count - kept
    return +surplus


def choose_evictions(evictable: Iterable[OperationSummary], surplus: Mapping[str, int]) -> list[OperationSummary]:
    """Return the operations to evict: of each caller its surplus, waiting operations first, and the oldest first."""
    by_caller: dict[str, list[OperationSummary]] = {}
    for each in sort_by_age(evictable):
        by_caller.setdefault(each.spec.caller, []).append(each)
    return [
        each
        for caller, operations in by_caller.items()
        for each in sorted(operations, key=is_finished)[: surplus.get(caller, 0)]
    ]


def is_expired(operation: OperationSummary, now: datetime, retention: timedelta) -> bool:
    start = retention_start(operation)
    return start is not None and now - start >= max(retention, MIN_AGE)


def without_leftovers(operations: Iterable[OperationSummary], leftovers: Leftovers) -> list[OperationSummary]:
    return [each for each in operations if not has_leftovers(each, leftovers)]


def retention_start(operation: OperationSummary) -> datetime | None:
    """Return the start of the retention period, or None if the operation is in progress and must not be evicted."""
    created, status = parse_timestamp(operation.metadata.creation_timestamp), operation.status
    match progress_of(operation):
        case OperationProgress.FINISHED:
            return parse_timestamp(status.finished_at) or created
        case OperationProgress.WAITING:  # a run of its last attempt may still be in progress shortly after its start
            return parse_timestamp(status.started_at) or created
    return None


def sort_by_age(operations: Iterable[OperationSummary]) -> list[OperationSummary]:
    """Sort the operations by the start of their retention period, the oldest first. Omit operations in progress."""
    dated = [(start, each) for each in operations if (start := retention_start(each)) is not None]
    return [each for _, each in sorted(dated, key=lambda pair: pair[0])]


def _truncate_to_hour(time: datetime) -> datetime:
    return time.replace(minute=0, second=0, microsecond=0)
