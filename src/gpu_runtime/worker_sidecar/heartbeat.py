"""What the worker tells of itself: that it is there, and how much it has in hand.

A start or an end is told within moments, not each on its own: a fast function would say more than it does.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime

from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

logger = logging.getLogger(__name__)

MOMENT = 0.05
"""Seconds in which starts and ends are told together."""

SEND_SECONDS = 1.0


class Presence:
    def __init__(
        self, connection: Connection, settings: WorkerSidecarSettings, instance: str, in_flight: Callable[[], int]
    ) -> None:
        self._connection, self._settings, self._instance, self._in_flight = connection, settings, instance, in_flight
        self._subject = Subjects(settings.nats.prefix).events(settings.request_id)
        # A sidecar that is started again in its pod is the same instance, and its events are newer ones.
        self._sequence = time.time_ns() // 1_000_000
        self._resting = WorkerEventKind.HEARTBEAT
        self._news: tuple[WorkerEventKind, str] | None = None
        self._told = asyncio.Event()
        self._present = False
        self._registering = False

    def registered(self) -> None:
        """The framework answers: from now on the worker is there."""
        self._present = self._registering = True
        self._told.set()

    def absent(self) -> None:
        """The framework does not answer: the worker is not to be counted on."""
        self._present = False

    def draining(self) -> None:
        """For good: what is told from now on says so, too."""
        self._resting = WorkerEventKind.DRAINING
        self._tell(WorkerEventKind.DRAINING)

    def started(self, invocation_id: str) -> None:
        self._tell(WorkerEventKind.STARTED, invocation_id)

    def finished(self, invocation_id: str) -> None:
        """A start that was not told yet is the greater news: it tells that there was work."""
        if self._news is None:
            self._tell(WorkerEventKind.FINISHED, invocation_id)

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.heartbeat_seconds):
                    await self._told.wait()
                await asyncio.sleep(MOMENT)
            except TimeoutError:
                pass
            await self._send()

    def _tell(self, kind: WorkerEventKind, invocation_id: str = "") -> None:
        self._news = (kind, invocation_id)
        self._told.set()

    async def _send(self) -> None:
        for kind, invocation_id in self.to_be_told():
            event = self._event(kind, invocation_id)
            try:
                await self._connection.publish(self._subject, encode(event), within=SEND_SECONDS)
            except StreamError as error:
                logger.debug("an event was not told", extra={"event": kind.value, "error": str(error)})

    def to_be_told(self) -> tuple[tuple[WorkerEventKind, str], ...]:
        """What is new, or else that it is still so. Whoever drains says nothing else; whoever comes says that first."""
        news, coming = self._news, self._registering
        self._news, self._registering = None, False
        self._told.clear()
        if self._resting is WorkerEventKind.DRAINING:
            return ((self._resting, ""),)
        came = ((WorkerEventKind.REGISTERED, ""),) if coming else ()
        if news:
            return (*came, news)
        return came or (((self._resting, ""),) if self._present or self._in_flight() else ())

    def _event(self, kind: WorkerEventKind, invocation_id: str) -> WorkerEvent:
        self._sequence += 1
        return WorkerEvent(
            kind=kind,
            serverless_request_id=self._settings.request_id,
            worker=self._settings.worker,
            namespace=self._settings.namespace,
            instance=self._instance,
            sequence=self._sequence,
            at=datetime.now(UTC),
            in_flight=self._in_flight(),
            concurrency=self._settings.concurrency,
            invocation_id=invocation_id,
        )
