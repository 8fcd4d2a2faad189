"""Publishes worker events: registration, heartbeats, started and finished invocations, and draining.

The publisher combines the started and finished events of a short interval into one event. Otherwise a worker would
publish two events for each invocation, which is too many for a fast function.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

logger = logging.getLogger(__name__)

EVENT_COALESCE_SECONDS = 0.05
"""Started and finished events within this interval become one event."""

PUBLISH_TIMEOUT_SECONDS = 1.0


class HeartbeatPublisher:
    """Collects the state of the worker and publishes it as events."""

    def __init__(
        self, connection: NatsConnection, settings: WorkerSidecarSettings, pod_uid: str, in_flight: Callable[[], int]
    ) -> None:
        self._connection, self._settings, self._pod_uid, self._in_flight = connection, settings, pod_uid, in_flight
        self._subject = Subjects(settings.nats.prefix).events(settings.function_id, pod_uid)
        # A restarted sidecar has the same pod UID, and its sequence numbers must be higher than before the restart.
        # So the first number is the current time.
        self._sequence = time.time_ns() // 1_000_000
        self._default_kind = WorkerEventKind.HEARTBEAT
        self._pending_event: tuple[WorkerEventKind, str] | None = None
        self._wake_up = asyncio.Event()
        self._healthy = False
        self._registration_pending = False

    def mark_registered(self) -> None:
        """Publish a registration, because the framework is healthy and the worker serves invocations."""
        self._healthy = self._registration_pending = True
        self._wake_up.set()

    def mark_unhealthy(self) -> None:
        """Stop heartbeats, because the framework is unhealthy. While invocations are in flight, heartbeats continue."""
        self._healthy = False

    def mark_draining(self) -> None:
        """Publish only draining events from now on."""
        self._default_kind = WorkerEventKind.DRAINING
        self._set_pending_event(WorkerEventKind.DRAINING)

    def invocation_started(self, invocation_id: str) -> None:
        self._set_pending_event(WorkerEventKind.STARTED, invocation_id)

    def invocation_finished(self, invocation_id: str) -> None:
        """Make a finished event the next event to publish, unless another event is pending.

        A pending started event is more important: it shows that the worker had work.
        """
        if self._pending_event is None:
            self._set_pending_event(WorkerEventKind.FINISHED, invocation_id)

    async def run(self) -> None:
        while True:
            if await is_set_within(self._wake_up, self._settings.heartbeat_seconds):
                await asyncio.sleep(EVENT_COALESCE_SECONDS)
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
                fields = {"event": kind.value, "subject": self._subject, "error": str(error)}
                logger.debug("worker event was not published", extra=fields)

    def next_events(self) -> tuple[tuple[WorkerEventKind, str], ...]:
        """Return the events to publish now, and reset the pending events.

        - If the worker is draining: only a draining event.
        - Otherwise: the pending registration, then the pending event.
        - If none is pending: a heartbeat, if the framework is healthy or an invocation is in flight.
        """
        pending, registering = self._pending_event, self._registration_pending
        self._pending_event, self._registration_pending = None, False
        self._wake_up.clear()
        if self._default_kind is WorkerEventKind.DRAINING:
            return ((self._default_kind, ""),)
        registration = ((WorkerEventKind.REGISTERED, ""),) if registering else ()
        if pending:
            return (*registration, pending)
        return registration or (((self._default_kind, ""),) if self._healthy or self._in_flight() else ())

    def _build_event(self, kind: WorkerEventKind, invocation_id: str) -> WorkerEvent:
        self._sequence += 1
        return WorkerEvent(
            kind=kind,
            function_id=self._settings.function_id,
            unit=self._settings.worker,
            namespace=self._settings.namespace,
            pod_uid=self._pod_uid,
            sequence=self._sequence,
            in_flight=self._in_flight(),
            concurrency=self._settings.concurrency,
            heartbeat_seconds=self._settings.heartbeat_seconds,
            invocation_id=invocation_id,
        )
