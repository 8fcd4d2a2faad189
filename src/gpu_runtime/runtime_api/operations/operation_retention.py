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
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.codec import Selection
from gpu_runtime.kube.meta import moment_of
from gpu_runtime.runtime_api import gather_bounded
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.operations.operation_store import is_finished
from gpu_runtime.runtime_api.operations.operation_summary import PENDING_OPERATIONS, PendingOperation
from gpu_runtime.runtime_api.settings import Operations

logger = logging.getLogger(__name__)

PAUSE = 60.0
"""Seconds from one look to the next, about."""
AT_ONCE = 8
CHUNK = 500
"""How many are forgotten between two counts, so that two replicas together forget little more than needed."""
HOUR = timedelta(hours=1)
HOUR_FORMAT = "%Y-%m-%dT%H"


class RetentionMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.remembered = Gauge("runtime_api_operations", "Operations that are remembered, about", registry=registry)
        self.forgotten = Counter(
            "runtime_api_operations_forgotten",
            "Operations forgotten by this replica: after their time (expired), or before it (too_many)",
            ["why"],
            registry=registry,
        )


class Retention:
    def __init__(
        self, client: Client, namespace: str, *, settings: Operations, clock: Clock, metrics: RetentionMetrics
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._kept = timedelta(seconds=settings.retention_seconds)
        self._most = settings.most
        self._clock = clock
        self._metrics = metrics
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> NoReturn:
        while True:
            await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))  # noqa: S311 - replicas out of step
            try:
                await self.once()
            except kube.KubeError as error:
                logger.warning("operations could not be looked through", extra={"error": str(error)})

    async def once(self) -> None:
        await self._forget_expired()
        if await self._excess() > 0:
            await self._forget_oldest()

    async def _forget_expired(self) -> None:
        now = self._clock.now()
        selection = Selection(self._namespace, labels=f"{Label.RECORDED} notin ({','.join(recent(now, self._kept))})")
        async for found in self._client.pages(PENDING_OPERATIONS, selection):
            await self._forget([each for each in found.items if is_expired(each, now, self._kept)], "expired")

    async def _forget_oldest(self) -> None:
        """Finished ones first, then those that wait for stock; hour by hour, the oldest first."""
        logger.warning(
            "more operations than are to be remembered; the oldest are forgotten before their time. Raise"
            " operations.most, or shorten operations.retentionSeconds",
            extra={"most": self._most},
        )
        for may_go in (_is_finished, is_waiting):
            for selector in oldest_first(self._clock.now(), self._kept):
                if await self._thin_out(selector, may_go) <= 0:
                    return
        logger.warning("too many operations are not finished", extra={"most": self._most})

    async def _thin_out(self, selector: str, may_go: Callable[[PendingOperation], bool]) -> int:
        """Forget as many of one hour as needed, and tell how many are still too many."""
        found = await self._client.list(PENDING_OPERATIONS, Selection(self._namespace, labels=selector))
        going = by_age(each for each in found.items if may_go(each))
        excess = await self._excess()
        while going and excess > 0:
            take = min(excess, CHUNK)
            await self._forget(going[:take], "too_many")
            going, excess = going[take:], await self._excess()
        return excess

    async def _excess(self) -> int:
        count = await self._client.count(PENDING_OPERATIONS, self._namespace)
        self._metrics.remembered.set(count)
        return count - self._most

    async def _forget(self, operations: Sequence[PendingOperation], why: str) -> None:
        results = await gather_bounded.each(self._turns, self._delete, operations)
        self._metrics.forgotten.labels(why).inc(sum(result is True for result in results))
        for failure in results:
            if isinstance(failure, BaseException):
                raise failure

    async def _delete(self, operation: PendingOperation) -> bool:
        about = operation.metadata
        try:
            await self._client.delete(
                PENDING_OPERATIONS, about.key, uid=about.uid, resource_version=about.resource_version
            )
        except (kube.NotFound, kube.Conflict):  # forgotten by another replica, or moved on since
            return False
        return True


def recent(now: datetime, kept: timedelta) -> list[str]:
    """The hours of which nothing can be old enough yet: those that began within the retention time, and the next one,
    since clocks differ."""
    first = _hour(now - kept) + HOUR
    count = (_hour(now) + HOUR - first) // HOUR + 1
    return [(first + number * HOUR).strftime(HOUR_FORMAT) for number in range(count)]


def oldest_first(now: datetime, kept: timedelta) -> list[str]:
    """Label selectors that together select everything: all that is older than the retention time, then each hour."""
    hours = recent(now, kept)
    return [f"{Label.RECORDED} notin ({','.join(hours)})", *(f"{Label.RECORDED}={hour}" for hour in hours)]


def is_expired(operation: PendingOperation, now: datetime, kept: timedelta) -> bool:
    since = forgettable_since(operation)
    return since is not None and now - since >= kept


def forgettable_since(operation: PendingOperation) -> datetime | None:
    """From when its retention counts; None for what somebody must still end."""
    if _is_finished(operation):
        return moment_of(operation.status.finished_at) or moment_of(operation.metadata.creation_timestamp)
    return moment_of(operation.metadata.creation_timestamp) if is_waiting(operation) else None


def is_waiting(operation: PendingOperation) -> bool:
    """Whether it waits for stock that never came: nothing is claimed, and only its caller can ask again."""
    return (
        operation.spec.type == OperationType.CREATE_UNIT.value
        and operation.progress.state == OperationState.ACCEPTED.value
        and operation.progress.stock is None
    )


def by_age(operations: Iterable[PendingOperation]) -> list[PendingOperation]:
    known = [(since, each) for each in operations if (since := forgettable_since(each)) is not None]
    return [each for _, each in sorted(known, key=lambda pair: pair[0])]


def _is_finished(operation: PendingOperation) -> bool:
    return is_finished(operation.status)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
