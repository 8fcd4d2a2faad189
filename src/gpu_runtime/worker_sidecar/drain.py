"""Whether invocations are taken from the queue: while the framework answers, until the worker is drained.

Nothing awaits between a decision and its being in force. A message that the server sends before it hears of it is
handed back at once.
"""

import asyncio
import logging

from gpu_runtime.contract.messages.drain_request import Drained
from gpu_runtime.jetstream.pull_consumer import Consumption
from gpu_runtime.worker_sidecar.heartbeat import Presence

logger = logging.getLogger(__name__)


class Taking:
    def __init__(self, consumption: Consumption, presence: Presence) -> None:
        self.drained = asyncio.Event()
        """Set when nothing is in hand and nothing more will be."""
        self._consumption, self._presence = consumption, presence
        self._draining = False
        self._begun = asyncio.Event()
        """Set when the framework answered for the first time, or never needs to."""
        self._stop = asyncio.Event()

    def problem(self) -> str | None:
        """Why nothing is taken any more, for readiness."""
        return "the worker is drained" if self._draining else None

    def resume(self) -> None:
        self._presence.registered()
        self._consumption.resume()
        self._begun.set()

    def pause(self) -> None:
        """Take no more for now. What is in hand goes on."""
        self._presence.absent()
        self._consumption.pause()

    def drain(self) -> None:
        """Take no more for good. What is in hand goes on."""
        if not self._draining:
            logger.info("draining", extra={"inFlight": self._consumption.in_flight})
            self._draining = True
            self._presence.draining()
        self._stop.set()
        self._begun.set()

    def drained_so_far(self) -> Drained:
        return Drained(draining=self._draining, in_flight=self._consumption.in_flight)

    async def run(self) -> None:
        """Take invocations until drained, and return when all of them are settled."""
        await self._begun.wait()
        if not self._draining:
            await self._consumption.run(self._stop)
        self.drained.set()
