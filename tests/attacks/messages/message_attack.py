"""A platform with the functions `own` and `other`, and an attacker that has everything that a worker of `own` has."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from msgspec import Raw

from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import MESSAGE_ID_HEADER, PubAck, Publisher
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.invocations.service import InvocationService
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.in_memory_nats import (
    InMemoryConnection,
    InMemoryNats,
    NoFaults,
    StreamMessage,
    bucket_values,
)
from tests.unit.serverless.simulated_processes import (
    TOPOLOGY,
    ServerlessPlane,
    SimulatedFramework,
    SimulatedFunctions,
    SimulatedProcess,
)
from tests.unit.serverless.simulated_processes import simulated_function_id as ids

OWN, OTHER = "own", "other"
FINISHED_AT = datetime(2026, 1, 1, tzinfo=UTC)


class RecordedSubjects(NoFaults):
    """Records the subjects of all requests of the platform."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def before_request(self, _connection: InMemoryConnection, subject: str) -> None:
        self.subjects.append(subject)


@dataclass
class MessageAttack:
    plane: ServerlessPlane
    service: InvocationService
    processes: list[SimulatedProcess]
    network: "RecordedSubjects"
    stored: list[StreamMessage] = field(default_factory=list)
    """Every message that a stream has stored."""

    @property
    def attacker(self) -> NatsConnection:
        return cast(NatsConnection, InMemoryConnection(self.plane.server, "attacker"))

    async def publish(
        self, subject: str, data: bytes, message_id: str = "", headers: Mapping[str, str] | None = None
    ) -> PubAck:
        return await Publisher(self.attacker).publish(OutgoingMessage(subject, data, message_id, headers or {}))

    async def publish_result(
        self, result: Result, message_id: str = "", headers: Mapping[str, str] | None = None
    ) -> PubAck:
        """Publish a result on the only result subject that a worker of `own` may use."""
        return await self.publish(TOPOLOGY.subjects.result(ids(OWN)), encode(result), message_id, headers)

    def start_worker(self, function: str) -> None:
        self.processes.append(self.plane.start_worker(f"worker-{function}", function))

    async def invoke(self, function: str, invocation_id: str, mode: str = "async") -> None:
        await self.service.invoke(request(function, invocation_id, mode))
        await asyncio.sleep(1)

    def record(self, invocation_id: str) -> InvocationRecord:
        values = bucket_values(self.plane.server, TOPOLOGY.record_bucket.stream_name)
        return decode(values[invocation_id], InvocationRecord)

    def revision(self, invocation_id: str) -> int:
        bucket = TOPOLOGY.record_bucket
        last = self.plane.server.streams[bucket.stream_name].last_on(bucket.subject(invocation_id))
        assert last
        return last.sequence

    def result(self, invocation_id: str) -> Result | None:
        return self.plane.results.result(invocation_id)

    def dispatched(self, function: str) -> StreamMessage:
        """The last dispatch of a function, as one of its workers receives it."""
        subject = TOPOLOGY.subjects.dispatch(ids(function))
        return [each for each in self.stored if each.subject == subject][-1]

    def dispatched_headers(self, function: str) -> dict[str, str]:
        """The headers of the last dispatch of a function, without its message ID."""
        headers = dict(self.dispatched(function).headers)
        del headers[MESSAGE_ID_HEADER]
        return headers

    @property
    def dead_letters(self) -> DeadLetterService:
        service = self.service
        return DeadLetterService(service.nats_client, service.enqueuer, service.functions, service.message_reads)

    def identity(self, function: str) -> dict[str, Any]:
        """The fields of an invocation that name its function."""
        return {"serverless_request_id": function, "function_id": ids(function)}

    @property
    def requested_subjects(self) -> list[str]:
        return self.network.subjects

    def messages(self, stream: Stream) -> list[StreamMessage]:
        return list(self.plane.server.streams[TOPOLOGY.stream_name(stream)].messages.values())


def request(function: str, invocation_id: str, mode: str = "async") -> Invoke:
    return Invoke(
        invocation_id=invocation_id,
        serverless_request_id=function,
        mode="sync" if mode == "sync" else "async",
        payload=Raw(b"1"),
        timeout_seconds=30.0,
    )


def forged_result(function: str, invocation_id: str) -> Result:
    plain = Result(
        invocation_id=invocation_id,
        serverless_request_id=function,
        function_id=ids(function),
        state=ResultState.SUCCEEDED,
        timings=Timings(finished_at=FINISHED_AT),
    )
    return with_body(plain, "application/json", b'"forged"')


def under_attack(test: Callable[[MessageAttack], Awaitable[None]]) -> Callable[[], None]:
    """Run a test on fake time, with a platform of its own."""

    @on_fake_time
    async def run() -> None:
        async with message_attack() as attack:
            await test(attack)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@asynccontextmanager
async def message_attack(*, with_result_store: bool = True) -> AsyncIterator[MessageAttack]:
    """Run an API, an activator and a result store. Workers start only when the test starts them."""
    random.seed(1)
    framework = SimulatedFramework(random.Random(1), durations=(0.01,), failure_rate=0.0)  # noqa: S311
    network = RecordedSubjects()
    plane = ServerlessPlane(InMemoryNats(), network, SimulatedFunctions({OWN, OTHER}), framework)
    await plane.create_streams()
    api, service = plane.start_api("api")
    attack = MessageAttack(plane, service, [api, plane.start_activator("activator", leads=True)], network)
    plane.server.stored_listeners.append(lambda _sender, message, _previous: attack.stored.append(message))
    if with_result_store:
        attack.processes.append(plane.start_result_store("store"))
    await asyncio.sleep(1)
    try:
        yield attack
    finally:
        for process in attack.processes:
            process.kill()
        await asyncio.sleep(0)
