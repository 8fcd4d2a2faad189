"""Decides whether the worker pulls invocations: only while the framework is healthy, and never again after a drain.

Each decision takes effect without an await in between. The server may still send a message before it learns of the
decision. The consumer returns such a message with a nak immediately.
"""

import asyncio
import logging

from gpu_runtime.contract.messages.drain_request import DrainStatus
from gpu_runtime.jetstream.pull_consumer import PullConsumer
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher

logger = logging.getLogger(__name__)


class DrainableConsumer:
    """Pauses, resumes and drains the pull consumer, and reports each change through heartbeats."""

    def __init__(self, pull_consumer: PullConsumer, heartbeat: HeartbeatPublisher) -> None:
        self.drained = asyncio.Event()
        """Set when no invocation is in flight and the worker will not pull another one."""
        self._pull_consumer, self._heartbeat = pull_consumer, heartbeat
        self._draining = False
        self._started = asyncio.Event()
        """Set when the framework is healthy for the first time, or when a drain begins before that."""
        self._stop = asyncio.Event()

    def problem(self) -> str | None:
        """Return why the worker pulls no invocations, for the readiness check. None while it is not draining."""
        return "the worker is draining" if self._draining else None

    def resume(self) -> None:
        """Pull invocations: the framework is healthy."""
        self._heartbeat.mark_registered()
        self._pull_consumer.resume()
        self._started.set()

    def pause(self) -> None:
        """Pull no more invocations until `resume`. Invocations in flight continue."""
        self._heartbeat.mark_unhealthy()
        self._pull_consumer.pause()

    def drain(self) -> None:
        """Pull no more invocations, permanently. Invocations in flight continue."""
        if not self._draining:
            logger.info("worker draining", extra={"in_flight": self._pull_consumer.in_flight})
            self._draining = True
            self._heartbeat.mark_draining()
        self._stop.set()
        self._started.set()

    def drain_status(self) -> DrainStatus:
        """Return whether the worker is draining, and how many invocations are in flight."""
        return DrainStatus(accepted=self._draining, in_flight=self._pull_consumer.in_flight)

    async def run(self) -> None:
        """Pull invocations until the worker drains. Return when every invocation in flight has finished."""
        await self._started.wait()
        if not self._draining:
            await self._pull_consumer.run(self._stop)
        self.drained.set()
