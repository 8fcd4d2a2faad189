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
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

logger = logging.getLogger(__name__)

EVENT_COALESCE_SECONDS = 0.05
"""Seconds in which starts and ends are told together."""

PUBLISH_TIMEOUT_SECONDS = 1.0


class HeartbeatPublisher:
    def __init__(
        self, connection: NatsConnection, settings: WorkerSidecarSettings, instance: str, in_flight: Callable[[], int]
    ) -> None:
        self._connection, self._settings, self._pod_uid, self._in_flight = connection, settings, instance, in_flight
        self._subject = Subjects(settings.nats.prefix).events(settings.request_id)
        # A sidecar that is started again in its pod is the same instance, and its events are newer ones.
        self._sequence = time.time_ns() // 1_000_000
        self._default_kind = WorkerEventKind.HEARTBEAT
        self._pending_event: tuple[WorkerEventKind, str] | None = None
        self._wake_up = asyncio.Event()
        self._healthy = False
        self._registration_pending = False

    def mark_registered(self) -> None:
        """The framework answers: from now on the worker is there."""
        self._healthy = self._registration_pending = True
        self._wake_up.set()

    def mark_unhealthy(self) -> None:
        """The framework does not answer: the worker is not to be counted on."""
        self._healthy = False

    def mark_draining(self) -> None:
        """For good: what is told from now on says so, too."""
        self._default_kind = WorkerEventKind.DRAINING
        self._set_pending_event(WorkerEventKind.DRAINING)

    def invocation_started(self, invocation_id: str) -> None:
        self._set_pending_event(WorkerEventKind.STARTED, invocation_id)

    def invocation_finished(self, invocation_id: str) -> None:
        """A start that was not told yet is the greater news: it tells that there was work."""
        if self._pending_event is None:
            self._set_pending_event(WorkerEventKind.FINISHED, invocation_id)

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.heartbeat_seconds):
                    await self._wake_up.wait()
                await asyncio.sleep(EVENT_COALESCE_SECONDS)
            except TimeoutError:
                pass
            await self._publish()

    def _set_pending_event(self, kind: WorkerEventKind, invocation_id: str = "") -> None:
        self._pending_event = (kind, invocation_id)
        self._wake_up.set()

    async def _publish(self) -> None:
        for kind, invocation_id in self.next_events():
            event = self._build_event(kind, invocation_id)
            try:
                await self._connection.publish(self._subject, encode(event), timeout_seconds=PUBLISH_TIMEOUT_SECONDS)
            except JetStreamError as error:
                logger.debug("an event was not told", extra={"event": kind.value, "error": str(error)})

    def next_events(self) -> tuple[tuple[WorkerEventKind, str], ...]:
        """What is new, or else that it is still so. Whoever drains says nothing else; whoever comes says that first."""
        news, coming = self._pending_event, self._registration_pending
        self._pending_event, self._registration_pending = None, False
        self._wake_up.clear()
        if self._default_kind is WorkerEventKind.DRAINING:
            return ((self._default_kind, ""),)
        came = ((WorkerEventKind.REGISTERED, ""),) if coming else ()
        if news:
            return (*came, news)
        return came or (((self._default_kind, ""),) if self._healthy or self._in_flight() else ())

    def _build_event(self, kind: WorkerEventKind, invocation_id: str) -> WorkerEvent:
        self._sequence += 1
        return WorkerEvent(
            kind=kind,
            serverless_request_id=self._settings.request_id,
            unit=self._settings.worker,
            namespace=self._settings.namespace,
            pod_uid=self._pod_uid,
            sequence=self._sequence,
            sent_at=datetime.now(UTC),
            in_flight=self._in_flight(),
            concurrency=self._settings.concurrency,
            invocation_id=invocation_id,
        )
