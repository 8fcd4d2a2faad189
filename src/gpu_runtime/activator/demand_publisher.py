"""Publishes demand: a hint to the leader that an activator dispatched an invocation of a function.

The leader reacts to the hint immediately and does not wait for its next poll. If the hint is lost, the leader scales up
at most one poll interval later, because it polls all backlogs.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError

DEMAND_INTERVAL_SECONDS = 0.05
"""Minimum number of seconds between two hints for one function.

Within this interval the publisher skips further hints. The leader reconciles the function a second time after the
interval, so it also sees the invocations whose hints were skipped.
"""


@dataclass(frozen=True)
class DemandPublisher:
    connection: NatsConnection
    subjects: Subjects
    clock: Callable[[], float]
    """Monotonic clock, in seconds."""
    _published_at: dict[str, float] = field(default_factory=dict)

    async def publish(self, function_id: str) -> None:
        now = self.clock()
        if now - self._published_at.get(function_id, -DEMAND_INTERVAL_SECONDS) < DEMAND_INTERVAL_SECONDS:
            return
        self._published_at[function_id] = now
        with contextlib.suppress(JetStreamError):
            await self.connection.publish(self.subjects.demand(function_id))
