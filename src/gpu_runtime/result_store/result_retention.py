"""Forgetting: results whose time is over, and the oldest ones where they need too much room."""

import asyncio
import logging
from dataclasses import dataclass
from typing import NoReturn

from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.repository import ResultRepository, RetentionLimits
from gpu_runtime.result_store.message_clock import now
from gpu_runtime.result_store.metrics import ResultStoreMetrics

logger = logging.getLogger(__name__)

EVICTION_INTERVAL_SECONDS = 1.0
"""Seconds from one look to the next. A look where nothing is to be done reads a few pages."""


@dataclass(frozen=True)
class ResultEvictor:
    results: ResultRepository
    limits: RetentionLimits
    metrics: ResultStoreMetrics

    async def run(self) -> NoReturn:
        while True:
            try:
                await self.run_once()
            except RepositoryUnavailable as error:
                logger.warning("old results cannot be forgotten now", extra={"error": str(error)})
            await asyncio.sleep(EVICTION_INTERVAL_SECONDS)

    async def run_once(self) -> None:
        """Forget all that is not to be kept, a few at a time: inserts come in between."""
        crowded_out = 0
        while (forgotten := await self.results.evict(self.limits, now())).nonzero:
            self.metrics.evicted.labels("expired").inc(forgotten.by_ttl)
            self.metrics.evicted.labels("crowded_out").inc(forgotten.by_size)
            crowded_out += forgotten.by_size
        if crowded_out:
            logger.warning(
                "results need more than retention.bytes: the oldest were forgotten before their time",
                extra={"forgotten": crowded_out, "bytes": self.limits.max_bytes},
            )
        size = await self.results.size()
        self.metrics.results.set(size.result_count)
        self.metrics.database_bytes.set(size.used_bytes)
        self.metrics.database_limit.set(self.limits.max_bytes)
