"""The worker sidecar: a queue on one side, the user's framework on the other, and endpoints that wait for neither."""

import asyncio
import logging
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.drain_request import DrainRequest
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.process.health_server import health_handlers, serve_app
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_from_nats_error, nats_options, stream_topology
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry
from gpu_runtime.worker_sidecar.dispatch_handler import DispatchConsumer, DispatchConsumerOptions
from gpu_runtime.worker_sidecar.drain import DrainableConsumer
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_health import FrameworkHealthMonitor
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

PROCESS_NAME = "worker-sidecar"

logger = logging.getLogger(__name__)


async def serve(settings: WorkerSidecarSettings, stopping: asyncio.Event) -> None:
    """Work until told to stop and drained. The queue and the framework may come later, and may go and come again."""
    metrics, framework = SidecarMetrics(new_registry(PROCESS_NAME)), settings.framework
    limit = settings.nats.streams.max_payload_bytes
    try:
        async with (
            connect_nats(nats_options(settings.nats, PROCESS_NAME)) as nats,
            FrameworkClient(framework.socket_path, framework.invoke_path, framework.health_path, limit) as client,
        ):
            sidecar = WorkerSidecar(nats, client, settings, metrics, _pod_uid())
            async with serve_app(sidecar.health_application(stopping), settings.health, shutdown_timeout=1.0):
                await sidecar.run(stopping)
    except JetStreamError as error:
        raise fault_from_nats_error(error) from error


class WorkerSidecar:
    """The parts, put together."""

    def __init__(
        self,
        nats: NatsConnection,
        framework: FrameworkClient,
        settings: WorkerSidecarSettings,
        metrics: SidecarMetrics,
        instance: str,
    ) -> None:
        topology, publisher = stream_topology(settings.nats), Publisher(nats, settings.nats.request_timeout_seconds)
        backoff = Backoff(settings.retries.initial_backoff_seconds, settings.retries.max_backoff_seconds)
        self._nats, self._settings, self._metrics, self._pod_uid = nats, settings, metrics, instance
        self._subjects, self._cancellations = topology.subjects, CancellationRegistry()
        self._heartbeat = HeartbeatPublisher(nats, settings, instance, self._in_flight)
        self._framework_health = FrameworkHealthMonitor(
            framework,
            settings.framework.health_check_interval_seconds,
            is_busy=lambda: self._in_flight() > 0,
            on_healthy=self._resume,
            on_unhealthy=self._pause,
        )
        self._dispatch_consumer = DispatchConsumer(
            publisher,
            KeyValueBucket(nats, publisher, topology.record_bucket),
            framework,
            self._framework_health,
            self._heartbeat,
            self._cancellations,
            metrics,
            DispatchConsumerOptions(
                request_id=settings.request_id,
                worker=settings.worker,
                subjects=topology.subjects,
                max_deliveries=settings.retries.max_deliveries,
                backoff=backoff,
                max_body_bytes=settings.nats.streams.max_payload_bytes,
            ),
        )
        self._pull_consumer = PullConsumer(
            publisher,
            topology.dispatch_consumer(settings.request_id),
            self._dispatch_consumer.handle,
            self._dispatch_consumer.dead_letter_messages,
            ConsumeOptions(
                max_in_flight=settings.concurrency, max_deliveries=settings.retries.max_deliveries, backoff=backoff
            ),
        )
        self._consumer = DrainableConsumer(self._pull_consumer, self._heartbeat)
        metrics.in_flight.set_function(self._in_flight)

    async def run(self, stopping: asyncio.Event) -> None:
        control = self._subjects.control(self._pod_uid)
        async with (
            self._subscribed_to_cancels(),
            serve_requests(self._nats, control, self._handle_drain_request),
            asyncio.TaskGroup() as tasks,
        ):
            beside = [
                tasks.create_task(each)
                for each in (self._framework_health.run(), self._heartbeat.run(), self._drain_on_stop(stopping))
            ]
            await self._consumer.run()
            await stopping.wait()
            for each in beside:
                each.cancel()

    def health_application(self, stopping: asyncio.Event) -> web.Application:
        ready = {
            "nats": self._nats.problem,
            "framework": lambda: self._framework_health.problem,
            "taking work": self._consumer.problem,
        }
        app = web.Application()
        for path, handler in health_handlers(self._metrics.registry, stopping, ready).items():
            app.router.add_get(path, handler)
        app.router.add_get("/drain", self._handle_drain_endpoint)
        return app

    def _resume(self) -> None:
        self._consumer.resume()

    def _pause(self) -> None:
        self._consumer.pause()

    def _in_flight(self) -> int:
        return self._pull_consumer.in_flight

    async def _handle_drain_endpoint(self, _request: web.Request) -> web.Response:
        """For the pod's end: answers when the user's container may go. A GET, since the kubelet knows nothing else."""
        self._consumer.drain()
        try:
            async with asyncio.timeout(self._settings.drain_timeout_seconds):
                await self._consumer.drained.wait()
        except TimeoutError:
            return web.Response(text=f"not drained: {self._in_flight()} invocations are still in hand\n")
        return web.Response(text="drained\n")

    async def _drain_on_stop(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._consumer.drain()

    async def _handle_drain_request(self, question: bytes) -> bytes:
        try:
            asked = decode(question, DrainRequest)
        except MessageDecodeError as error:
            logger.warning("asked for something that is not known here", extra={"error": str(error)})
            return encode(self._consumer.drain_status())
        if asked.force or not self._in_flight():
            self._consumer.drain()
        return encode(self._consumer.drain_status())

    @asynccontextmanager
    async def _subscribed_to_cancels(self) -> AsyncIterator[None]:
        def heard(message: Msg) -> None:
            self._cancellations.cancel(message.data.decode(errors="replace"))

        subscription = await self._nats.subscribe(self._subjects.cancel(self._settings.request_id), heard)
        try:
            yield
        finally:
            await self._nats.unsubscribe(subscription)


def _pod_uid() -> str:
    """The pod's UID, as its own environment says: the worker sees nothing of Kubernetes beyond that."""
    return os.environ.get("POD_UID") or uuid.uuid4().hex
