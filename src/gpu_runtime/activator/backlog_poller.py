"""Polls the backlogs of all functions and enqueues the functions whose workers may need scaling.

The poller runs only on the leader. It also handles demand messages. If a demand message is lost, the next poll enqueues
the function.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.activator.backlog import Backlog
from gpu_runtime.activator.demand_publisher import DEMAND_INTERVAL_SECONDS
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.kube.meta import ObjectKey

Enqueue = Callable[[ObjectKey, float], None]
"""Adds the key of a function to the work queue after a delay in seconds."""


@dataclass
class BacklogPoller:
    backlog: Backlog
    functions: FunctionLister
    enqueue: Enqueue
    poll_interval_seconds: float
    on_stopped_leading: Callable[[], None]
    """Called when this process stops being the leader."""
    _counts: dict[str, int] = field(default_factory=dict)
    _demand_at: dict[str, float] = field(default_factory=dict)
    """When the last demand message took effect immediately, by functionID."""
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        try:
            while not self._stopped.is_set():
                await self._poll()
                await is_set_within(self._stopped, self.poll_interval_seconds)
        finally:
            self.on_stopped_leading()

    def stop(self) -> None:
        self._stopped.set()

    def on_demand(self, function_id: str) -> None:
        """Enqueue the function of a demand message now, and a second time after the demand interval.

        The second reconciliation also sees the invocations of the same burst whose demand messages were skipped. Within
        the interval, further messages cause no other reconciliation, because a forged flood would keep the leader busy.
        """
        function, now = self.functions.by_id(function_id), self.backlog.clock()
        if function is None:
            return
        self.backlog.invalidate(function_id)
        if now - self._demand_at.get(function_id, -DEMAND_INTERVAL_SECONDS) >= DEMAND_INTERVAL_SECONDS:
            self._demand_at[function_id] = now
            self.enqueue(function.metadata.key, 0.0)
        self.enqueue(function.metadata.key, 1.5 * DEMAND_INTERVAL_SECONDS)

    async def _poll(self) -> None:
        self._demand_at = {each: at for each, at in self._demand_at.items() if self.functions.by_id(each) is not None}
        counts = await self.backlog.read_all()
        if counts is None:
            return
        changed = {each for each in counts.keys() | self._counts.keys() if counts.get(each) != self._counts.get(each)}
        self._counts = counts
        for function_id in changed | {each for each, count in counts.items() if count}:
            function = self.functions.by_id(function_id)
            if function is not None:
                self.enqueue(function.metadata.key, 0.0)
