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
from gpu_runtime.contract.messages.drain_request import Drain
from gpu_runtime.contract.messages.message_codec import Unreadable, decode, encode
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption, Policy
from gpu_runtime.jetstream.request_reply import answering
from gpu_runtime.process.health_server import endpoint_handlers, listening
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_of, options_of, topology_of
from gpu_runtime.worker_sidecar.cancellation import Calls
from gpu_runtime.worker_sidecar.dispatch_consumer import Terms, Work
from gpu_runtime.worker_sidecar.drain import Taking
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_health import FrameworkWatch
from gpu_runtime.worker_sidecar.heartbeat import Presence
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings

NAME = "worker-sidecar"

logger = logging.getLogger(__name__)


async def serve(settings: WorkerSidecarSettings, stopping: asyncio.Event) -> None:
    """Work until told to stop and drained. The queue and the framework may come later, and may go and come again."""
    metrics, framework = SidecarMetrics(new_registry(NAME)), settings.framework
    limit = settings.nats.streams.body_bytes
    try:
        async with (
            connection(options_of(settings.nats, NAME)) as nats,
            FrameworkClient(framework.socket_path, framework.invoke_path, framework.health_path, limit) as client,
        ):
            sidecar = Sidecar(nats, client, settings, metrics, _instance())
            async with listening(sidecar.endpoints(stopping), settings.endpoints, finish_within=1.0):
                await sidecar.run(stopping)
    except StreamError as error:
        raise fault_of(error) from error


class Sidecar:
    """The parts, put together."""

    def __init__(
        self,
        nats: Connection,
        framework: FrameworkClient,
        settings: WorkerSidecarSettings,
        metrics: SidecarMetrics,
        instance: str,
    ) -> None:
        topology, publisher = topology_of(settings.nats), Publisher(nats, settings.nats.request_timeout_seconds)
        backoff = Backoff(settings.retries.first_seconds, settings.retries.longest_seconds)
        self._nats, self._settings, self._metrics, self._instance = nats, settings, metrics, instance
        self._subjects, self._calls = topology.subjects, Calls()
        self._presence = Presence(nats, settings, instance, self._in_flight)
        self._watch = FrameworkWatch(
            framework,
            settings.framework.health_seconds,
            is_busy=lambda: self._in_flight() > 0,
            well=self._resume,
            ill=self._pause,
        )
        self._work = Work(
            publisher,
            Bucket(nats, publisher, topology.state),
            framework,
            self._watch,
            self._presence,
            self._calls,
            metrics,
            Terms(
                request_id=settings.request_id,
                worker=settings.worker,
                subjects=topology.subjects,
                attempts=settings.retries.attempts,
                backoff=backoff,
                body_limit=settings.nats.streams.body_bytes,
            ),
        )
        self._consumption = Consumption(
            publisher,
            topology.work(settings.request_id),
            self._work.handle,
            self._work.abandoned,
            Policy(at_once=settings.concurrency, attempts=settings.retries.attempts, backoff=backoff),
        )
        self._taking = Taking(self._consumption, self._presence)
        metrics.in_flight.set_function(self._in_flight)

    async def run(self, stopping: asyncio.Event) -> None:
        control = self._subjects.control(self._instance)
        async with self._hearing_cancels(), answering(self._nats, control, self._asked), asyncio.TaskGroup() as tasks:
            beside = [
                tasks.create_task(each)
                for each in (self._watch.run(), self._presence.run(), self._drain_when(stopping))
            ]
            await self._taking.run()
            await stopping.wait()
            for each in beside:
                each.cancel()

    def endpoints(self, stopping: asyncio.Event) -> web.Application:
        ready = {
            "nats": self._nats.problem,
            "framework": lambda: self._watch.problem,
            "taking work": self._taking.problem,
        }
        app = web.Application()
        for path, handler in endpoint_handlers(self._metrics.registry, stopping, ready).items():
            app.router.add_get(path, handler)
        app.router.add_get("/drain", self._drain)
        return app

    def _resume(self) -> None:
        self._taking.resume()

    def _pause(self) -> None:
        self._taking.pause()

    def _in_flight(self) -> int:
        return self._consumption.in_flight

    async def _drain(self, _request: web.Request) -> web.Response:
        """For the pod's end: answers when the user's container may go. A GET, since the kubelet knows nothing else."""
        self._taking.drain()
        try:
            async with asyncio.timeout(self._settings.drain_seconds):
                await self._taking.drained.wait()
        except TimeoutError:
            return web.Response(text=f"not drained: {self._in_flight()} invocations are still in hand\n")
        return web.Response(text="drained\n")

    async def _drain_when(self, stopping: asyncio.Event) -> None:
        await stopping.wait()
        self._taking.drain()

    async def _asked(self, question: bytes) -> bytes:
        try:
            asked = decode(question, Drain)
        except Unreadable as error:
            logger.warning("asked for something that is not known here", extra={"error": str(error)})
            return encode(self._taking.drained_so_far())
        if asked.finishing or not self._in_flight():
            self._taking.drain()
        return encode(self._taking.drained_so_far())

    @asynccontextmanager
    async def _hearing_cancels(self) -> AsyncIterator[None]:
        def heard(message: Msg) -> None:
            self._calls.abort(message.data.decode(errors="replace"))

        subscription = await self._nats.subscribe(self._subjects.cancel(self._settings.request_id), heard)
        try:
            yield
        finally:
            await self._nats.unsubscribe(subscription)


def _instance() -> str:
    """The pod's UID, as its own environment says: the worker sees nothing of Kubernetes beyond that."""
    return os.environ.get("POD_UID") or uuid.uuid4().hex
