"""A sidecar for tests: the queue that it serves, the function beside it, and everything that it says."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from nats.aio.msg import Msg

from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import Drain, Drained
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_hash
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Known, Stage, headers_of, taken_back
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.request_reply import ask
from gpu_runtime.jetstream.stream_admin import ensure_until_done
from gpu_runtime.process.nats_setup import options_of, topology_of
from gpu_runtime.process.shared_settings import Endpoints, Nats, Streams
from gpu_runtime.worker_sidecar.main import serve
from gpu_runtime.worker_sidecar.settings import Framework, Retries, WorkerSidecarSettings
from localcluster.control_plane import free_port
from localcluster.nats_server import Account
from tests.integration.framework.worker import Worker
from tests.integration.kube.waiting import eventually

FUNCTION = "fn-1"
INSTANCE = "pod-1"


def settings_for(account: Account, socket: str, **changes: Any) -> WorkerSidecarSettings:
    """Impatient ones."""
    small = {"queue_bytes": 1024 * 1024, "dead_letter_bytes": 1024 * 1024, "body_bytes": 64 * 1024}
    streams = Streams(storage="memory", dispatch_ack_wait_seconds=3, **small)
    given: dict[str, Any] = {
        "nats": Nats(urls=(account.url,), streams=streams),
        "request_id": FUNCTION,
        "worker": "worker-1",
        "namespace": "runtime-instance",
        "framework": Framework(socket_path=socket, health_seconds=0.2),
        "retries": Retries(attempts=3, first_seconds=0.05, longest_seconds=0.1),
        "heartbeat_seconds": 0.2,
        "drain_seconds": 60,
        "endpoints": Endpoints(bind=f"127.0.0.1:{free_port()}"),
    }
    return WorkerSidecarSettings(**(given | changes))


@dataclass
class Plane:
    """Everything around the sidecar: what the other processes of the plane would do and hear."""

    nats: Connection
    topology: Topology
    results: dict[str, Result] = field(default_factory=dict)
    letters: list[DeadLetter] = field(default_factory=list)
    events: list[WorkerEvent] = field(default_factory=list)
    replies: list[Result] = field(default_factory=list)

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.nats)

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.nats, self.publisher, self.topology.state)

    async def dispatch(
        self,
        payload: Any,
        invocation_id: str = "inv-1",
        lasting: float = 600,
        *,
        ago: float = 0,
        cancelled: bool = False,
        **about: Any,
    ) -> None:
        """As the activator does it, so many seconds ago; or taken back by its caller in between."""
        now = datetime.now(UTC)
        invocation = Invocation(
            invocation_id=invocation_id,
            serverless_request_id=FUNCTION,
            body=msgspec.json.encode(payload),
            enqueued_at=now,
            timeout_seconds=abs(lasting),
            **about,
        )
        deadline = now + timedelta(seconds=lasting)
        record = InvocationRecord(
            request_hash=invocation_hash(invocation),
            serverless_request_id=FUNCTION,
            stage=Stage.DISPATCHED,
            enqueued_at=now,
            deadline=deadline,
            updated_at=now,
        )
        revision = await self.bucket.create(invocation_id, encode(record))
        assert revision
        if cancelled:
            await self.cancel(invocation_id, tell=False)
        message = Dispatch(invocation=invocation, deadline=deadline, dispatched_at=now - timedelta(seconds=ago))
        subject = self.topology.subjects.dispatch(FUNCTION)
        headers = headers_of(Known(record, revision))
        await self.publisher.publish(Outgoing(subject, encode(message), message.message_id, headers))

    async def cancel(self, invocation_id: str = "inv-1", tell: bool = True) -> None:
        while True:
            entry = await self.bucket.get(invocation_id)
            assert entry is not None
            record = taken_back(decode(entry.value, InvocationRecord), datetime.now(UTC))
            if await self.bucket.update(invocation_id, encode(record), entry.revision):
                break
        if tell:
            await self.nats.publish(self.topology.subjects.cancel(FUNCTION), invocation_id.encode())

    async def record(self, invocation_id: str = "inv-1") -> InvocationRecord:
        entry = await self.bucket.get(invocation_id)
        assert entry is not None
        return decode(entry.value, InvocationRecord)

    async def drain(self, *, finishing: bool = False) -> Drained:
        question = encode(Drain(finishing=finishing))
        return decode(await ask(self.nats, self.topology.subjects.control(INSTANCE), question, 60), Drained)

    async def waiting(self) -> int:
        """How much the queue still holds."""
        stream = self.topology.work(FUNCTION).stream
        count: int = (await call(self.nats, f"STREAM.INFO.{stream}"))["state"]["messages"]
        return count

    async def result(self, invocation_id: str = "inv-1") -> Result:
        await eventually(lambda: invocation_id in self.results, f"{invocation_id} has a result")
        return self.results[invocation_id]

    async def told(self, kind: WorkerEventKind, in_flight: int) -> None:
        def last() -> bool:
            return bool(self.events) and (self.events[-1].kind, self.events[-1].in_flight) == (kind, in_flight)

        await eventually(last, f"it tells of {kind} with {in_flight} in flight")

    async def until_empty(self) -> None:
        async with asyncio.timeout(60):
            while await self.waiting():  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.02)


@asynccontextmanager
async def plane_of(settings: WorkerSidecarSettings) -> AsyncIterator[Plane]:
    topology = topology_of(settings.nats)
    async with connection(options_of(settings.nats, "test")) as nats:
        await ensure_until_done(nats, topology.streams, [topology.state])
        plane = Plane(nats, topology)
        await nats.subscribe(topology.subjects.result(FUNCTION), lambda each: _note(plane, each))
        await nats.subscribe(
            topology.subjects.all_dead_letters, lambda m: plane.letters.append(decode(m.data, DeadLetter))
        )
        await nats.subscribe(topology.subjects.all_events, lambda m: plane.events.append(decode(m.data, WorkerEvent)))
        await nats.subscribe("replies", lambda m: plane.replies.append(decode(m.data, Result)))
        yield plane


def _note(plane: Plane, message: Msg) -> None:
    result = decode(message.data, Result)
    plane.results.setdefault(result.invocation_id, result)


@dataclass(frozen=True)
class Running:
    settings: WorkerSidecarSettings
    stopping: asyncio.Event
    task: "asyncio.Task[None]"

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://{self.settings.endpoints.bind}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def ready(self) -> bool:
        try:
            return (await self.get("/readyz"))[0] == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def sidecar(settings: WorkerSidecarSettings) -> AsyncIterator[Running]:
    """In this process, until the block ends."""
    stopping = asyncio.Event()
    task = asyncio.create_task(serve(settings, stopping))
    try:
        yield Running(settings, stopping, task)
        stopping.set()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()
        await asyncio.wait({task})


@dataclass(frozen=True)
class Scene:
    """A queue, and a framework that several tests share."""

    account: Account
    plane: Plane
    framework: Worker
    place: Path

    def sidecar(self, **changes: Any) -> AbstractAsyncContextManager[Running]:
        return sidecar(self.settings(**changes))

    def settings(self, **changes: Any) -> WorkerSidecarSettings:
        return settings_for(self.account, self.framework.socket, **changes)

    @property
    def calls(self) -> list[str]:
        log = self.place / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def go(self) -> None:
        """Let the call return that waits."""
        (self.place / "go").touch()

    async def begun(self) -> None:
        await eventually(lambda: self.calls == ["wait 1"], "it runs")


@contextmanager
def sidecar_process(settings: WorkerSidecarSettings, place: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """As it runs in a pod, so that it can be killed."""
    config = place / "settings.yaml"
    config.write_bytes(msgspec.json.encode(settings))
    command = [str(Path(sys.executable).with_name("gpu-runtime")), "worker-sidecar", "--config", str(config)]
    with subprocess.Popen(command, env={**os.environ, "POD_UID": "pod-killed"}) as process:
        try:
            yield process
        finally:
            process.kill()
