"""Starts the worker sidecar: connects to NATS and the framework, and serves the health, metrics and drain endpoints.

The HTTP endpoints also respond while NATS or the framework is unavailable.
"""

import asyncio
import logging
import os
import uuid
from pathlib import Path

from aiohttp import web
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.drain_request import DrainRequest
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.invocation_records.record_store import DirectWorkerRecords, InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import ResultPublisher
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.process.health_server import health_handlers, serve_app
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import connect_nats_or_fault, nats_options, stream_topology
from gpu_runtime.process.runner import run_process
from gpu_runtime.worker_sidecar.dispatch_handler import CancellationRegistry, DispatchHandler, DispatchHandlerOptions
from gpu_runtime.worker_sidecar.drain import DrainableConsumer
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_health import FrameworkHealthMonitor
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

PROCESS_NAME = "worker-sidecar"

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
        async with serve_app(sidecar.health_application(stopping), settings.health, shutdown_timeout=1.0):
            await sidecar.run(stopping)


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
        self._subjects, self._cancellations = topology.subjects, CancellationRegistry()
        self._heartbeat = HeartbeatPublisher(nats, settings, pod_uid, self._in_flight)
        self._framework_health = FrameworkHealthMonitor(
            framework,
            settings.framework.health_check_interval_seconds,
            is_busy=lambda: self._in_flight() > 0,
            on_healthy=lambda: self._consumer.resume(),  # noqa: PLW0108 - the consumer is created later
            on_unhealthy=lambda: self._consumer.pause(),  # noqa: PLW0108
        )
        records = InvocationRecordStore(KeyValueBucket(nats, publisher, topology.record_bucket))
        self._dispatch_handler = DispatchHandler(
            ResultPublisher(topology.subjects, publisher),
            DirectWorkerRecords(records, settings.worker),
            framework,
            self._framework_health,
            self._heartbeat,
            self._cancellations,
            metrics,
            DispatchHandlerOptions(
                request_id=settings.request_id,
                worker=settings.worker,
                subjects=topology.subjects,
                max_attempts=settings.retries.max_attempts,
                backoff=backoff,
                max_body_bytes=settings.nats.streams.max_payload_bytes,
            ),
        )
        self._pull_consumer = PullConsumer(
            nats,
            topology.dispatch_consumer(settings.request_id),
            self._dispatch_handler.handle,
            self._dispatch_handler.on_dead_letter,
            # The handler limits the attempts. A delivery that starts no attempt does not count.
            ConsumeOptions(max_in_flight=settings.concurrency, max_deliveries=None, backoff=backoff),
        )
        self._consumer = DrainableConsumer(self._pull_consumer, self._heartbeat)
        metrics.in_flight.set_function(self._in_flight)

    async def run(self, stopping: asyncio.Event) -> None:
        """Pull invocations until the worker is drained, then wait for `stopping`."""
        control = self._subjects.control(self._pod_uid)
        async with (
            self._nats.subscribed(self._subjects.cancel(self._settings.request_id), self._on_cancel),
            serve_requests(self._nats, control, self._handle_drain_request),
            asyncio.TaskGroup() as tasks,
        ):
            background = [
                tasks.create_task(each)
                for each in (self._framework_health.run(), self._heartbeat.run(), self._drain_on_stop(stopping))
            ]
            await self._consumer.run()
            await stopping.wait()
            for each in background:
                each.cancel()

    def health_application(self, stopping: asyncio.Event) -> web.Application:
        """Build the HTTP application with /healthz, /readyz, /metrics and /drain."""
        ready = {
            "nats": self._nats.problem,
            "framework": lambda: self._framework_health.problem,
            "consumer": self._consumer.problem,
        }
        app = web.Application()
        for path, handler in health_handlers(self._metrics.registry, stopping, ready).items():
            app.router.add_get(path, handler)
        app.router.add_get("/drain", self._handle_drain_endpoint)
        return app

    def _in_flight(self) -> int:
        return self._pull_consumer.in_flight

    async def _handle_drain_endpoint(self, _request: web.Request) -> web.Response:
        """Drain the worker, and respond when it is drained or when the drain timeout has passed.

        The preStop hook of the user's container calls this endpoint, and the kubelet stops the container after the
        response. The method is GET, because the kubelet uses no other method for preStop hooks.
        """
        self._consumer.drain()
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
        self._cancellations.cancel(message.data.decode(errors="replace"))
