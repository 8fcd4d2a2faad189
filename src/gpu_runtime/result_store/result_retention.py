"""Forgetting: results whose time is over, and the oldest ones where they need too much room."""

import asyncio
import logging
from dataclasses import dataclass
from typing import NoReturn

from gpu_runtime.result_repository.errors import Unusable
from gpu_runtime.result_repository.repository import Keeping, Results
from gpu_runtime.result_store.message_clock import now
from gpu_runtime.result_store.metrics import StoreMetrics

logger = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds from one look to the next. A look where nothing is to be done reads a few pages."""


@dataclass(frozen=True)
class Forgetting:
    results: Results
    keeping: Keeping
    metrics: StoreMetrics

    async def run(self) -> NoReturn:
        while True:
            try:
                await self.once()
            except Unusable as error:
                logger.warning("old results cannot be forgotten now", extra={"error": str(error)})
            await asyncio.sleep(PAUSE)

    async def once(self) -> None:
        """Forget all that is not to be kept, a few at a time: inserts come in between."""
        crowded_out = 0
        while (forgotten := await self.results.forget(self.keeping, now())).any:
            self.metrics.forgotten.labels("expired").inc(forgotten.expired)
            self.metrics.forgotten.labels("crowded_out").inc(forgotten.crowded_out)
            crowded_out += forgotten.crowded_out
        if crowded_out:
            logger.warning(
                "results need more than retention.bytes: the oldest were forgotten before their time",
                extra={"forgotten": crowded_out, "bytes": self.keeping.bytes},
            )
        size = await self.results.size()
        self.metrics.results.set(size.results)
        self.metrics.database_bytes.set(size.bytes)
        self.metrics.database_limit.set(self.keeping.bytes)
