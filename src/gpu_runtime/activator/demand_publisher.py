"""Demand: a hint to whoever leads that work was dispatched. A lost one costs a moment: backlogs are read anyway."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError

DEMAND_INTERVAL_SECONDS = 0.05
"""Seconds between two hints for one function. The leader looks again after as long, so the last ones count, too."""


@dataclass(frozen=True)
class DemandPublisher:
    connection: NatsConnection
    subjects: Subjects
    clock: Callable[[], float]
    """In seconds, and never set back."""
    _published_at: dict[str, float] = field(default_factory=dict)

    async def publish(self, request_id: str) -> None:
        now = self.clock()
        if now - self._published_at.get(request_id, -DEMAND_INTERVAL_SECONDS) < DEMAND_INTERVAL_SECONDS:
            return
        self._published_at[request_id] = now
        with contextlib.suppress(JetStreamError):
            await self.connection.publish(self.subjects.demand(request_id))
