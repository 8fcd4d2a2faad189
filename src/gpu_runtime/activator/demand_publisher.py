"""Demand: a hint to whoever leads that work was dispatched. A lost one costs a moment: backlogs are read anyway."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import StreamError

EVERY = 0.05
"""Seconds between two hints for one function. The leader looks again after as long, so the last ones count, too."""


@dataclass(frozen=True)
class Demand:
    connection: Connection
    subjects: Subjects
    clock: Callable[[], float]
    """In seconds, and never set back."""
    _told: dict[str, float] = field(default_factory=dict)

    async def tell(self, request_id: str) -> None:
        now = self.clock()
        if now - self._told.get(request_id, -EVERY) < EVERY:
            return
        self._told[request_id] = now
        with contextlib.suppress(StreamError):
            await self.connection.publish(self.subjects.demand(request_id))
