"""Whether invocations are taken from the queue: while the framework answers, until the worker is drained.

Nothing awaits between a decision and its being in force. A message that the server sends before it hears of it is
handed back at once.
"""

import asyncio
import logging

from gpu_runtime.contract.messages.drain_request import DrainStatus
from gpu_runtime.jetstream.pull_consumer import PullConsumer
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher

logger = logging.getLogger(__name__)


class DrainableConsumer:
    def __init__(self, consumption: PullConsumer, presence: HeartbeatPublisher) -> None:
        self.drained = asyncio.Event()
        """Set when nothing is in hand and nothing more will be."""
        self._pull_consumer, self._heartbeat = consumption, presence
        self._draining = False
        self._started = asyncio.Event()
        """Set when the framework answered for the first time, or never needs to."""
        self._stop = asyncio.Event()

    def problem(self) -> str | None:
        """Why nothing is taken any more, for readiness."""
        return "the worker is drained" if self._draining else None

    def resume(self) -> None:
        self._heartbeat.mark_registered()
        self._pull_consumer.resume()
        self._started.set()

    def pause(self) -> None:
        """Take no more for now. What is in hand goes on."""
        self._heartbeat.mark_unhealthy()
        self._pull_consumer.pause()

    def drain(self) -> None:
        """Take no more for good. What is in hand goes on."""
        if not self._draining:
            logger.info("draining", extra={"inFlight": self._pull_consumer.in_flight})
            self._draining = True
            self._heartbeat.mark_draining()
        self._stop.set()
        self._started.set()

    def drain_status(self) -> DrainStatus:
        return DrainStatus(accepted=self._draining, in_flight=self._pull_consumer.in_flight)

    async def run(self) -> None:
        """Take invocations until drained, and return when all of them are settled."""
        await self._started.wait()
        if not self._draining:
            await self._pull_consumer.run(self._stop)
        self.drained.set()
