"""Starts the worker sidecar: connects to NATS and the framework, and serves the health and metrics endpoints.

The HTTP endpoints also respond while NATS or the framework is unavailable. No HTTP request can change the state of the
worker, because the user's container and other pods can send HTTP requests to the sidecar, too.
"""

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aiohttp import web
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.drain_request import DrainRequest
from gpu_runtime.contract.messages.invocation_ticket import worker_message_id
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.invocation_records.record_store import DirectWorkerRecords, InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import ResultPublisher
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.process.health_server import health_handlers, metrics_handlers, serve_app
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import connect_nats_or_fault, nats_options, stream_topology
from gpu_runtime.process.runner import run_process
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry
from gpu_runtime.worker_sidecar.dispatch_handler import DispatchHandler, DispatchHandlerOptions
from gpu_runtime.worker_sidecar.drain import DrainableConsumer
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_health import FrameworkHealthMonitor
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import ServedFunction
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

PROCESS_NAME = "worker-sidecar"

MAX_BYTES_IN_FLIGHT = 32 * 1024 * 1024
"""Maximum size of the messages of all invocations that the sidecar runs concurrently. For each message, the sidecar
needs about three times its size. With this limit, the sidecar stays below its memory limit of 384 MiB."""

DRAIN_SIGNAL = signal.SIGUSR1
"""The preStop hook of the sidecar container sends this signal. Only a process in this container can
send it: the containers of a pod share one network, but no processes."""

DRAIN_START_SECONDS = 10.0
"""How long /drained waits for the start of a drain. When a pod ends, the kubelet runs the hooks of all containers at
the same time. When only the user's container ends, for example after a failed probe, no drain starts."""

logger = logging.getLogger(__name__)


def main(config: Path) -> int:
    return run_process(config, WorkerSidecarSettings, run_worker_sidecar)


async def run_worker_sidecar(settings: WorkerSidecarSettings, stopping: asyncio.Event) -> None:
    """Run the sidecar until `stopping` is set and the worker is drained.

    NATS and the framework need not be available at the start. Each of them may fail and recover at any time.
    """
    metrics, framework = SidecarMetrics(new_registry(PROCESS_NAME)), settings.framework
    # The sidecar has no access to the Kubernetes API, so the environment contains the UID of its pod.
    pod_uid = os.environ.get("POD_UID") or uuid.uuid4().hex
    paths = (framework.socket_path, framework.invoke_path, framework.health_path)
    async with (
        connect_nats_or_fault(nats_options(settings.nats, PROCESS_NAME)) as nats,
        FrameworkClient(*paths, settings.nats.streams.max_payload_bytes) as client,
    ):
        sidecar = WorkerSidecar(nats, client, settings, metrics, pod_uid)
        app = sidecar.health_application(stopping)
        with _on_drain_signal(sidecar.drain):
            async with serve_app(app, settings.health, shutdown_timeout=1.0):
                await sidecar.run(stopping)


@contextmanager
def _on_drain_signal(drain: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(DRAIN_SIGNAL, drain)
    try:
        yield
    finally:
        loop.remove_signal_handler(DRAIN_SIGNAL)


class WorkerSidecar:
    """Creates the components of the sidecar, connects them to each other, and runs their tasks."""

    def __init__(
        self,
        nats: NatsConnection,
        framework: FrameworkClient,
        settings: WorkerSidecarSettings,
        metrics: SidecarMetrics,
        pod_uid: str,
    ) -> None:
        topology, publisher = stream_topology(settings.nats), Publisher(nats, settings.nats.request_timeout_seconds)
        backoff = Backoff(settings.retries.initial_backoff_seconds, settings.retries.max_backoff_seconds)
        self._nats, self._settings, self._metrics, self._pod_uid = nats, settings, metrics, pod_uid
        self._subjects = topology.subjects
        self._heartbeat = HeartbeatPublisher(nats, settings, pod_uid, self._in_flight)
        self._framework_health = FrameworkHealthMonitor(
            framework,
            settings.framework.health_check_interval_seconds,
            is_busy=lambda: self._in_flight() > 0,
            on_healthy=lambda: self._consumer.resume(),  # noqa: PLW0108 - the consumer is created later
            on_unhealthy=lambda: self._consumer.pause(),  # noqa: PLW0108
        )
        store = InvocationRecordStore(KeyValueBucket(nats, publisher, topology.record_bucket))
        records = DirectWorkerRecords(store, settings.worker)
        self._cancellations = CancellationRegistry(records)
        self._dispatch_handler = DispatchHandler(
            ResultPublisher(topology.subjects, publisher, worker_message_id),
            records,
            framework,
            self._framework_health,
            self._heartbeat,
            self._cancellations,
            metrics,
            DispatchHandlerOptions(
                function=ServedFunction(settings.function_id, settings.request_id),
                worker=settings.worker,
                subjects=topology.subjects,
                max_attempts=settings.retries.max_attempts,
                backoff=backoff,
                max_body_bytes=settings.nats.streams.max_payload_bytes,
            ),
        )
        self._pull_consumer = PullConsumer(
            nats,
            topology.dispatch_consumer(settings.function_id),
            self._dispatch_handler.handle,
            self._dispatch_handler.on_dead_letter,
            # The handler limits the attempts. A delivery that starts no attempt does not count.
            ConsumeOptions(
                max_in_flight=settings.concurrency,
                max_bytes_in_flight=MAX_BYTES_IN_FLIGHT,
                max_deliveries=None,
                backoff=backoff,
            ),
        )
        self._consumer = DrainableConsumer(self._pull_consumer, self._heartbeat)
        metrics.in_flight.set_function(self._in_flight)

    async def run(self, stopping: asyncio.Event) -> None:
        """Pull invocations until the worker is drained, then wait for `stopping`."""
        control = self._subjects.control(self._pod_uid)
        async with (
            self._nats.subscribed(self._subjects.cancel(self._settings.function_id), self._on_cancel),
            serve_requests(self._nats, control, self._handle_drain_request),
            asyncio.TaskGroup() as tasks,
        ):
            background = [
                tasks.create_task(each)
                for each in (
                    self._framework_health.run(),
                    self._heartbeat.run(),
                    self._cancellations.run(),
                    self._drain_on_stop(stopping),
                )
            ]
            await self._consumer.run()
            await stopping.wait()
            for each in background:
                each.cancel()

    def health_application(self, stopping: asyncio.Event) -> web.Application:
        """Build the HTTP application with /healthz, /readyz, /metrics and /drained."""
        ready = {
            "nats": self._nats.problem,
            "framework": self._framework_health.reported_problem,
            "consumer": self._consumer.problem,
        }
        app = web.Application()
        handlers = health_handlers(stopping, ready) | metrics_handlers(self._metrics.registry)
        for path, handler in handlers.items():
            app.router.add_get(path, handler)
        app.router.add_get("/drained", self._wait_drained)
        return app

    def drain(self) -> None:
        """Stop pulling invocations permanently. Invocations in flight continue."""
        self._consumer.drain()

    def _in_flight(self) -> int:
        return self._pull_consumer.in_flight

    async def _wait_drained(self, _request: web.Request) -> web.Response:
        """Respond when the worker is drained, when the drain timeout has passed, or when no drain starts.

        The preStop hook of the user's container calls this endpoint, and the kubelet stops the container after the
        response. The endpoint only waits, so every client may call it.
        """
        if not await is_set_within(self._consumer.draining, DRAIN_START_SECONDS):
            return web.Response(text="not draining\n")
        if await is_set_within(self._consumer.drained, self._settings.drain_timeout_seconds):
            return web.Response(text="drained\n")
        return web.Response(text=f"not drained: {self._in_flight()} invocations in flight\n")

    async def _drain_on_stop(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._consumer.drain()

    async def _handle_drain_request(self, data: bytes) -> bytes:
        """Drain if the worker is idle or if the request has `force`. Respond with the drain status."""
        try:
            request = decode(data, DrainRequest)
        except MessageDecodeError as error:
            logger.warning(
                "drain request could not be decoded; the sidecar does not drain", extra={"error": str(error)}
            )
            return encode(self._consumer.drain_status())
        if request.force or not self._in_flight():
            self._consumer.drain()
        return encode(self._consumer.drain_status())

    def _on_cancel(self, message: Msg) -> None:
        self._cancellations.on_cancel(message.data.decode(errors="replace"))
