"""Evicts results that exceed the maximum age. While the database exceeds its maximum size, it evicts more results.

These results belong to the function with the most bytes in the database. So the results of one function do not
evict the results of other functions.
"""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.repository import ResultRepository, RetentionLimits
from gpu_runtime.result_store.metrics import ResultStoreMetrics

logger = logging.getLogger(__name__)

EVICTION_INTERVAL_SECONDS = 1.0
"""Seconds between two eviction passes. A pass without evictions reads only a few database pages."""


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
                logger.warning("result eviction failed; the result store will retry", extra={"error": str(error)})
            await asyncio.sleep(EVICTION_INTERVAL_SECONDS)

    async def run_once(self) -> None:
        """Evict all results that exceed the limits, in small batches, so that inserts can run in between."""
        evicted_by_size = 0
        while (evicted := await self.results.evict(self.limits, datetime.now(UTC))).nonzero:
            self.metrics.evicted.labels("ttl").inc(evicted.by_ttl)
            self.metrics.evicted.labels("size").inc(evicted.by_size)
            evicted_by_size += evicted.by_size
        if evicted_by_size:
            logger.warning(
                "database exceeded retention.maxBytes; the result store evicted results before their TTL expired",
                extra={"evicted": evicted_by_size, "max_bytes": self.limits.max_bytes},
            )
        size = await self.results.size()
        self.metrics.results.set(size.result_count)
        self.metrics.database_bytes.set(size.used_bytes)
        self.metrics.database_limit.set(self.limits.max_bytes)
