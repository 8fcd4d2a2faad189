"""How long operations are remembered: for their retention time, and never more than so many.

Every replica does this, without a leader: a deletion names the very version that was judged, so two replicas do no more
than one. What somebody must still end is never forgotten.
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
from gpu_runtime.runtime_api import gather_bounded
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.operations.operation_store import is_finished
from gpu_runtime.runtime_api.operations.operation_summary import OPERATION_SUMMARIES, OperationSummary
from gpu_runtime.runtime_api.settings import OperationSettings

logger = logging.getLogger(__name__)

EVICTION_INTERVAL_SECONDS = 60.0
"""Seconds from one look to the next, about."""
MAX_CONCURRENT_DELETES = 8
EVICTION_BATCH_SIZE = 500
"""How many are forgotten between two counts, so that two replicas together forget little more than needed."""
HOUR = timedelta(hours=1)
HOUR_FORMAT = "%Y-%m-%dT%H"


class OperationRetentionMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.retained = Gauge("runtime_api_operations", "Operations that are remembered, about", registry=registry)
        self.evicted = Counter(
            "runtime_api_operations_forgotten",
            "Operations forgotten by this replica: after their time (expired), or before it (too_many)",
            ["why"],
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
            await asyncio.sleep(EVICTION_INTERVAL_SECONDS * random.uniform(0.5, 1.5))  # noqa: S311 - replicas out of step
            try:
                await self.run_once()
            except kube.KubeError as error:
                logger.warning("operations could not be looked through", extra={"error": str(error)})

    async def run_once(self) -> None:
        await self._evict_expired()
        if await self._count_excess() > 0:
            await self._evict_oldest()

    async def _evict_expired(self) -> None:
        now = self._clock.now()
        selection = ListOptions(
            self._namespace,
            label_selector=f"{Label.CREATED_HOUR} notin ({','.join(retained_hours(now, self._retention))})",
        )
        async for found in self._client.pages(OPERATION_SUMMARIES, selection):
            await self._evict([each for each in found.items if is_expired(each, now, self._retention)], "expired")

    async def _evict_oldest(self) -> None:
        """Finished ones first, then those that wait for stock; hour by hour, the oldest first."""
        logger.warning(
            "more operations than are to be remembered; the oldest are forgotten before their time. Raise"
            " operations.most, or shorten operations.retentionSeconds",
            extra={"most": self._max_retained},
        )
        for may_go in (_is_finished, is_waiting_for_stock):
            for selector in selectors_oldest_first(self._clock.now(), self._retention):
                if await self._evict_excess(selector, may_go) <= 0:
                    return
        logger.warning("too many operations are not finished", extra={"most": self._max_retained})

    async def _evict_excess(self, selector: str, may_go: Callable[[OperationSummary], bool]) -> int:
        """Forget as many of one hour as needed, and tell how many are still too many."""
        found = await self._client.list(OPERATION_SUMMARIES, ListOptions(self._namespace, label_selector=selector))
        going = sort_by_age(each for each in found.items if may_go(each))
        excess = await self._count_excess()
        while going and excess > 0:
            take = min(excess, EVICTION_BATCH_SIZE)
            await self._evict(going[:take], "too_many")
            going, excess = going[take:], await self._count_excess()
        return excess

    async def _count_excess(self) -> int:
        count = await self._client.count(OPERATION_SUMMARIES, self._namespace)
        self._metrics.retained.set(count)
        return count - self._max_retained

    async def _evict(self, operations: Sequence[OperationSummary], why: str) -> None:
        results = await gather_bounded.gather_bounded(self._semaphore, self._delete, operations)
        self._metrics.evicted.labels(why).inc(sum(result is True for result in results))
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def _delete(self, operation: OperationSummary) -> bool:
        about = operation.metadata
        try:
            await self._client.delete(
                OPERATION_SUMMARIES, about.key, uid=about.uid, resource_version=about.resource_version
            )
        except (kube.KubeNotFound, kube.KubeConflict):  # forgotten by another replica, or moved on since
            return False
        return True


def retained_hours(now: datetime, kept: timedelta) -> list[str]:
    """The hours of which nothing can be old enough yet: those that began within the retention time, and the next one,
    since clocks differ."""
    first = _truncate_to_hour(now - kept) + HOUR
    count = (_truncate_to_hour(now) + HOUR - first) // HOUR + 1
    return [(first + number * HOUR).strftime(HOUR_FORMAT) for number in range(count)]


def selectors_oldest_first(now: datetime, kept: timedelta) -> list[str]:
    """Label selectors that together select everything: all that is older than the retention time, then each hour."""
    hours = retained_hours(now, kept)
    return [f"{Label.CREATED_HOUR} notin ({','.join(hours)})", *(f"{Label.CREATED_HOUR}={hour}" for hour in hours)]


def is_expired(operation: OperationSummary, now: datetime, kept: timedelta) -> bool:
    since = retention_start(operation)
    return since is not None and now - since >= kept


def retention_start(operation: OperationSummary) -> datetime | None:
    """From when its retention counts; None for what somebody must still end."""
    if _is_finished(operation):
        return parse_timestamp(operation.status.finished_at) or parse_timestamp(operation.metadata.creation_timestamp)
    return parse_timestamp(operation.metadata.creation_timestamp) if is_waiting_for_stock(operation) else None


def is_waiting_for_stock(operation: OperationSummary) -> bool:
    """Whether it waits for stock that never came: nothing is claimed, and only its caller can ask again."""
    return (
        operation.spec.type == OperationType.CREATE_UNIT.value
        and operation.progress.state == OperationState.ACCEPTED.value
        and operation.progress.stock is None
    )


def sort_by_age(operations: Iterable[OperationSummary]) -> list[OperationSummary]:
    known = [(since, each) for each in operations if (since := retention_start(each)) is not None]
    return [each for _, each in sorted(known, key=lambda pair: pair[0])]


def _is_finished(operation: OperationSummary) -> bool:
    return is_finished(operation.status)


def _truncate_to_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
