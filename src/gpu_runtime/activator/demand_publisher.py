"""Publishes demand: a hint to the leader that an invocation of a function was dispatched.

The hint lets the leader scale up without waiting for its next poll. A lost hint costs at most one poll interval,
because the leader polls all backlogs.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError

DEMAND_INTERVAL_SECONDS = 0.05
"""Minimum number of seconds between two hints for one function.

The leader reconciles the function once more after this interval, so it also sees invocations whose hint was skipped.
"""


@dataclass(frozen=True)
class DemandPublisher:
    connection: NatsConnection
    subjects: Subjects
    clock: Callable[[], float]
    """Monotonic clock, in seconds."""
    _published_at: dict[str, float] = field(default_factory=dict)

    async def publish(self, request_id: str) -> None:
        now = self.clock()
        if now - self._published_at.get(request_id, -DEMAND_INTERVAL_SECONDS) < DEMAND_INTERVAL_SECONDS:
            return
        self._published_at[request_id] = now
        with contextlib.suppress(JetStreamError):
            await self.connection.publish(self.subjects.demand(request_id))
