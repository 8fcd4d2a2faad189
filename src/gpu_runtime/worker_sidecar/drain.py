"""Decides whether the worker pulls invocations.

The worker pulls invocations only while the framework is healthy. After a drain it never pulls again.

Each decision takes effect in this process immediately, without an await. The NATS server may still send a message
before it knows about the decision. The consumer naks such a message immediately.
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
        """Set when no invocation is in flight and the worker will pull no more invocations."""
        self._pull_consumer, self._heartbeat = pull_consumer, heartbeat
        self.draining = asyncio.Event()
        """Set when the worker will pull no more invocations."""
        self._started = asyncio.Event()
        """Set when the framework is healthy for the first time, or when the worker begins to drain earlier."""
        self._stop = asyncio.Event()

    def problem(self) -> str | None:
        """Return the problem for the readiness check. None if the worker is not draining."""
        return "the worker is draining" if self.draining.is_set() else None

    def resume(self) -> None:
        """Pull invocations, because the framework is healthy."""
        self._heartbeat.mark_registered()
        self._pull_consumer.set_paused(False)
        self._started.set()

    def pause(self) -> None:
        """Pull no more invocations until `resume` is called. Invocations in flight continue."""
        self._heartbeat.mark_unhealthy()
        self._pull_consumer.set_paused(True)

    def drain(self) -> None:
        """Stop pulling invocations permanently. Invocations in flight continue."""
        if not self.draining.is_set():
            logger.info(
                "worker drain started; the sidecar pulls no more invocations",
                extra={"in_flight": self._pull_consumer.in_flight},
            )
            self.draining.set()
            self._heartbeat.mark_draining()
        self._stop.set()
        self._started.set()

    def drain_status(self) -> DrainStatus:
        """Return whether the worker is draining, and how many invocations are in flight."""
        return DrainStatus(accepted=self.draining.is_set(), in_flight=self._pull_consumer.in_flight)

    async def run(self) -> None:
        """Pull invocations until the worker drains. Return when every invocation in flight has finished."""
        await self._started.wait()
        if not self.draining.is_set():
            await self._pull_consumer.run(self._stop)
        self.drained.set()
