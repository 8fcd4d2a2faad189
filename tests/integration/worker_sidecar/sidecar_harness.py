"""Runs a sidecar for tests, publishes dispatches to it, and collects its results, dead letters, events and replies."""

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
from gpu_runtime.contract.messages.drain_request import DrainRequest, DrainStatus
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import new_record
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    Termination,
    record_headers,
)
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.process.nats_setup import nats_options, stream_topology
from gpu_runtime.process.shared_settings import BindAddressSettings, NatsSettings, StreamSettings
from gpu_runtime.worker_sidecar.main import run_worker_sidecar
from gpu_runtime.worker_sidecar.settings import FrameworkSettings, RetrySettings, WorkerSidecarSettings
from localcluster.free_ports import free_port
from localcluster.nats_server import NatsAccount
from tests.integration.framework.framework_process import FrameworkProcess
from tests.integration.kube.polling import eventually

FUNCTION_ID = "fn-1"
REPLY_SUBJECT = Subjects().reply(FUNCTION_ID, "a" * 32, "b" * 32)
POD_UID = "pod-1"


def sidecar_settings(account: NatsAccount, socket: str, **changes: Any) -> WorkerSidecarSettings:
    """Build settings with small streams, short intervals and three attempts."""
    streams = StreamSettings(
        storage="memory",
        dispatch_ack_wait_seconds=3,
        max_stream_bytes=1024 * 1024,
        max_dead_letter_bytes=1024 * 1024,
        max_payload_bytes=64 * 1024,
    )
    defaults: dict[str, Any] = {
        "nats": NatsSettings(urls=(account.url,), streams=streams),
        "function_id": FUNCTION_ID,
        "request_id": "double",
        "worker": "worker-1",
        "namespace": "runtime-instance",
        "framework": FrameworkSettings(socket_path=socket, health_check_interval_seconds=0.2),
        "retries": RetrySettings(max_attempts=3, initial_backoff_seconds=0.05, max_backoff_seconds=0.1),
        "heartbeat_seconds": 0.2,
        "drain_timeout_seconds": 60,
        "health": BindAddressSettings(bind_address=f"127.0.0.1:{free_port()}"),
    }
    return WorkerSidecarSettings(**(defaults | changes))


@dataclass
class SidecarHarness:
    """Replaces the other processes: it publishes dispatches and requests, and records what the sidecar publishes."""

    nats: NatsConnection
    topology: StreamTopology
    function_id: str = FUNCTION_ID
    results: dict[str, Result] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    events: list[WorkerEvent] = field(default_factory=list)
    replies: list[Result] = field(default_factory=list)

    @property
    def publisher(self) -> Publisher:
        return Publisher(self.nats)

    @property
    def records(self) -> KeyValueBucket:
        return KeyValueBucket(self.nats, self.publisher, self.topology.record_bucket)

    async def publish_dispatch(
        self,
        payload: Any,
        invocation_id: str = "inv-1",
        timeout_seconds: float = 600,
        *,
        seconds_ago: float = 0,
        cancelled: bool = False,
        **fields: Any,
    ) -> None:
        """Publish a dispatch and its record, as the activator does.

        `seconds_ago` sets the age of the dispatch. With `cancelled`, the caller cancels the invocation before the
        dispatch is published, the dispatch has the older revision of the record, and the worker gets no cancel message.
        """
        now = datetime.now(UTC)
        invocation = Invocation(
            invocation_id=invocation_id,
            serverless_request_id="double",
            function_id=self.function_id,
            body=msgspec.json.encode(payload),
            enqueued_at=now,
            timeout_seconds=abs(timeout_seconds),
            **fields,
        )
        deadline = now + timedelta(seconds=timeout_seconds)
        record = msgspec.structs.replace(new_record(invocation, now, deadline), state=RecordState.DISPATCHED)
        revision = await self.records.create(invocation_id, encode(record))
        assert revision
        if cancelled:
            await self.cancel_invocation(invocation_id, publish_hint=False)
        message = Dispatch(invocation=invocation, deadline=deadline, dispatched_at=now - timedelta(seconds=seconds_ago))
        subject = self.topology.subjects.dispatch(self.function_id)
        headers = record_headers(RecordAtRevision(record, revision)) | ticket_headers(f"ticket of {invocation_id}")
        await self.publisher.publish(OutgoingMessage(subject, encode(message), headers=headers))

    async def cancel_invocation(self, invocation_id: str = "inv-1", publish_hint: bool = True) -> None:
        """Cancel the record, as the runtime API does. `publish_hint` also notifies the worker."""
        while True:
            entry = await self.records.get(invocation_id)
            assert entry is not None
            record = msgspec.structs.replace(decode(entry.value, InvocationRecord), termination=Termination.CANCELLED)
            if await self.records.update(invocation_id, encode(record), entry.revision):
                break
        if publish_hint:
            await self.nats.publish(self.topology.subjects.cancel(self.function_id), invocation_id.encode())

    async def record(self, invocation_id: str = "inv-1") -> InvocationRecord:
        entry = await self.records.get(invocation_id)
        assert entry is not None
        return decode(entry.value, InvocationRecord)

    async def request_drain(self, *, force: bool = False) -> DrainStatus:
        request = encode(DrainRequest(force=force))
        reply = await self.nats.request(self.topology.subjects.control(POD_UID), request, timeout_seconds=60)
        return decode(reply.data, DrainStatus)

    async def backlog(self) -> int:
        """Return the number of messages in the dispatch stream."""
        stream = self.topology.dispatch_consumer(self.function_id).stream
        count: int = (await api_request(self.nats, f"STREAM.INFO.{stream}"))["state"]["messages"]
        return count

    async def wait_result(self, invocation_id: str = "inv-1") -> Result:
        await eventually(lambda: invocation_id in self.results, f"{invocation_id} has a result")
        return self.results[invocation_id]

    async def wait_event(self, kind: WorkerEventKind, in_flight: int) -> None:
        def is_last_event() -> bool:
            return bool(self.events) and (self.events[-1].kind, self.events[-1].in_flight) == (kind, in_flight)

        await eventually(is_last_event, f"the last event is {kind} with {in_flight} in flight")

    async def wait_backlog(self, count: int) -> None:
        """Wait until the dispatch stream has `count` messages. An acknowledged message stays for a moment."""
        async with asyncio.timeout(60):
            while await self.backlog() != count:  # noqa: ASYNC110 - JetStream sends no event for this
                await asyncio.sleep(0.02)


@asynccontextmanager
async def sidecar_harness(settings: WorkerSidecarSettings) -> AsyncIterator[SidecarHarness]:
    """Create the streams and subscribe to everything that the sidecar publishes."""
    topology = stream_topology(settings.nats)
    async with connect_nats(nats_options(settings.nats, "test")) as nats:
        await ensure_with_retry(nats, topology.streams, [topology.record_bucket])
        harness = SidecarHarness(nats, topology, settings.function_id)
        results = topology.subjects.result(settings.function_id)
        await nats.subscribe(results, lambda message: _record_result(harness, message))
        await nats.subscribe(
            topology.subjects.all_dead_letters,
            lambda message: harness.dead_letters.append(decode(message.data, DeadLetter)),
        )
        await nats.subscribe(
            topology.subjects.all_events,
            lambda message: harness.events.append(decode(message.data, WorkerEvent)),
        )
        await nats.subscribe(REPLY_SUBJECT, lambda message: harness.replies.append(decode(message.data, Result)))
        yield harness


def _record_result(harness: SidecarHarness, message: Msg) -> None:
    result = decode(message.data, Result)
    harness.results.setdefault(result.invocation_id, result)


@dataclass(frozen=True)
class RunningSidecar:
    settings: WorkerSidecarSettings
    stopping: asyncio.Event
    task: "asyncio.Task[None]"

    async def get(self, path: str) -> tuple[int, str]:
        url = f"http://{self.settings.health.bind_address}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def is_ready(self) -> bool:
        try:
            return (await self.get("/readyz"))[0] == 200
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def running_sidecar(settings: WorkerSidecarSettings) -> AsyncIterator[RunningSidecar]:
    """Run a sidecar in this process until the block ends."""
    stopping = asyncio.Event()
    task = asyncio.create_task(run_worker_sidecar(settings, stopping))
    try:
        yield RunningSidecar(settings, stopping, task)
        stopping.set()
        await asyncio.wait_for(task, 60)
    finally:
        task.cancel()
        await asyncio.wait({task})


@dataclass(frozen=True)
class SidecarScene:
    """A harness, and a framework process that several tests share."""

    account: NatsAccount
    harness: SidecarHarness
    framework: FrameworkProcess
    socket_dir: Path

    def sidecar(self, **changes: Any) -> AbstractAsyncContextManager[RunningSidecar]:
        return running_sidecar(self.settings(**changes))

    def settings(self, **changes: Any) -> WorkerSidecarSettings:
        return sidecar_settings(self.account, self.framework.socket, **changes)

    @property
    def handler_calls(self) -> list[str]:
        log = self.socket_dir / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def release_call(self) -> None:
        """Let the waiting handler call return."""
        (self.socket_dir / "release").touch()

    async def wait_call_started(self) -> None:
        await eventually(lambda: self.handler_calls == ["wait 1"], "the handler call has started")


@contextmanager
def sidecar_process(settings: WorkerSidecarSettings, directory: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a sidecar as a separate process, so that the test can kill it."""
    config = directory / "settings.yaml"
    config.write_bytes(msgspec.json.encode(settings))
    command = [str(Path(sys.executable).with_name("gpu-runtime")), "worker-sidecar", "--config", str(config)]
    with subprocess.Popen(command, env={**os.environ, "POD_UID": "pod-killed"}) as process:
        try:
            yield process
        finally:
            process.kill()
