"""Evicts Operation objects: after their retention period, or earlier if there are more than the configured maximum.

Every replica evicts operations; there is no leader. Each delete request has the UID and the resourceVersion of the
checked object as preconditions. So several replicas together evict the same operations as one replica would. No replica
evicts an operation that is in progress.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NoReturn

from prometheus_client import CollectorRegistry, Counter, Gauge

from gpu_runtime.contract.crd.operation import OperationState, OperationType
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.meta import parse_timestamp
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.gather_bounded import gather_bounded
from gpu_runtime.runtime_api.operations.operation_store import is_finished
from gpu_runtime.runtime_api.operations.operation_summary import OPERATION_SUMMARIES, OperationSummary
from gpu_runtime.runtime_api.settings import OperationSettings

logger = logging.getLogger(__name__)

EVICTION_INTERVAL_SECONDS = 60.0
"""The average time between two evictions. The time varies by 50 %, so that replicas do not evict at the same time."""
MAX_CONCURRENT_DELETES = 8
EVICTION_BATCH_SIZE = 500
"""The maximum number of evictions between two counts of the operations. Because of this limit, replicas that evict at
the same time evict only slightly more operations than necessary."""
HOUR = timedelta(hours=1)
HOUR_FORMAT = "%Y-%m-%dT%H"


class OperationRetentionMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.retained = Gauge(
            "gpu_runtime_operations",
            "Number of retained operations when this replica last counted them",
            registry=registry,
        )
        self.evicted = Counter(
            "gpu_runtime_operations_evicted",
            "Number of operations that this replica evicted, by reason: ttl (the retention period ended) or count"
            " (there were more than operations.maxRetained)",
            ["reason"],
            registry=registry,
        )


class OperationRetention:
    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        *,
        settings: OperationSettings,
        clock: Clock,
        metrics: OperationRetentionMetrics,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._retention = timedelta(seconds=settings.retention_seconds)
        self._max_retained = settings.max_retained
        self._clock = clock
        self._metrics = metrics
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_DELETES)

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(EVICTION_INTERVAL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - jitter
            try:
                await self.run_once()
            except kube.KubeError as error:
                logger.warning("operation eviction failed: retrying", extra={"error": str(error)})

    async def run_once(self) -> None:
        await self._evict_expired()
        if await self._count_excess() > 0:
            await self._evict_oldest()

    async def _evict_expired(self) -> None:
        now = self._clock.now()
        list_options = ListOptions(
            self._namespace,
            label_selector=f"{Label.CREATED_HOUR} notin ({','.join(retained_hours(now, self._retention))})",
        )
        async for page in self._client.pages(OPERATION_SUMMARIES, list_options):
            await self._evict([each for each in page.items if is_expired(each, now, self._retention)], "ttl")

    async def _evict_oldest(self) -> None:
        """Evict finished operations first, then operations that wait for stock. In both groups, start with the oldest
        hour."""
        logger.warning(
            "operation limit exceeded: evicting the oldest operations"
            " (raise operations.maxRetained or lower operations.retentionSeconds)",
            extra={"max_retained": self._max_retained},
        )
        for is_evictable in (_is_finished, is_waiting_for_stock):
            for selector in selectors_oldest_first(self._clock.now(), self._retention):
                if await self._evict_excess(selector, is_evictable) <= 0:
                    return
        logger.warning(
            "operation limit still exceeded: unfinished operations cannot be evicted",
            extra={"max_retained": self._max_retained},
        )

    async def _evict_excess(self, selector: str, is_evictable: Callable[[OperationSummary], bool]) -> int:
        """Evict as many of the selected operations as necessary. Return how many operations still exceed the limit."""
        listed = await self._client.list(OPERATION_SUMMARIES, ListOptions(self._namespace, label_selector=selector))
        candidates = sort_by_age(each for each in listed.items if is_evictable(each))
        excess = await self._count_excess()
        while candidates and excess > 0:
            batch_size = min(excess, EVICTION_BATCH_SIZE)
            await self._evict(candidates[:batch_size], "count")
            candidates, excess = candidates[batch_size:], await self._count_excess()
        return excess

    async def _count_excess(self) -> int:
        count = await self._client.count(OPERATION_SUMMARIES, self._namespace)
        self._metrics.retained.set(count)
        return count - self._max_retained

    async def _evict(self, operations: Sequence[OperationSummary], reason: str) -> None:
        results = await gather_bounded(self._semaphore, self._delete, operations)
        self._metrics.evicted.labels(reason).inc(sum(result is True for result in results))
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def _delete(self, operation: OperationSummary) -> bool:
        metadata = operation.metadata
        try:
            await self._client.delete(
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
    return [(first + number * HOUR).strftime(HOUR_FORMAT) for number in range(count)]


def selectors_oldest_first(now: datetime, retention: timedelta) -> list[str]:
    """Return label selectors that together select all operations.

    The first one selects the hours before the retention period. Each of the others selects one hour.
    """
    hours = retained_hours(now, retention)
    return [f"{Label.CREATED_HOUR} notin ({','.join(hours)})", *(f"{Label.CREATED_HOUR}={hour}" for hour in hours)]


def is_expired(operation: OperationSummary, now: datetime, retention: timedelta) -> bool:
    start = retention_start(operation)
    return start is not None and now - start >= retention


def retention_start(operation: OperationSummary) -> datetime | None:
    """Return the start of the retention period, or None if the operation is in progress and must not be evicted."""
    if _is_finished(operation):
        return parse_timestamp(operation.status.finished_at) or parse_timestamp(operation.metadata.creation_timestamp)
    return parse_timestamp(operation.metadata.creation_timestamp) if is_waiting_for_stock(operation) else None


def is_waiting_for_stock(operation: OperationSummary) -> bool:
    """Whether the operation waits for stock. Such an operation has claimed nothing, and only a repeated request of its
    caller resumes it."""
    return (
        operation.spec.type == OperationType.CREATE_UNIT.value
        and operation.progress.state == OperationState.ACCEPTED.value
        and operation.progress.stock is None
    )


def sort_by_age(operations: Iterable[OperationSummary]) -> list[OperationSummary]:
    """Sort the operations by the start of their retention period, the oldest first. Omit operations in progress."""
    dated = [(start, each) for each in operations if (start := retention_start(each)) is not None]
    return [each for _, each in sorted(dated, key=lambda pair: pair[0])]


def _is_finished(operation: OperationSummary) -> bool:
    return is_finished(operation.status)


def _truncate_to_hour(time: datetime) -> datetime:
    return time.replace(minute=0, second=0, microsecond=0)
