"""Crashes and refusals that random interleavings of the invocation record reach too rarely."""

import asyncio
import dataclasses
import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from msgspec import Raw

from gpu_runtime.contract.messages.invocation_record import Dispatched, record_from_headers
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import StreamFull
from gpu_runtime.jetstream.kv import KeyValueBucket, KeyValueEntry
from gpu_runtime.runtime_api.invocations.enqueue import prepare_enqueue
from gpu_runtime.runtime_api.invocations.invocation_admission import admit_invocation
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.invocations.service import InvocationService
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.in_memory_nats import InMemoryConnection, InMemoryNats, NoFaults
from tests.unit.serverless.simulated_processes import (
    TOPOLOGY,
    ServerlessPlane,
    SimulatedFramework,
    SimulatedFunctions,
    SimulatedProcess,
    simulated_function_id,
)
from tests.unit.serverless.test_warm_invocation import FreeWorkers


class KillBeforeWrite(NoFaults):
    """Calls `kill` before the server executes the n-th request of a process that changes a stream."""

    def __init__(self, process: str, number: int) -> None:
        self.process, self.remaining = process, number
        self.kill: Callable[[], None] = lambda: None

    def before_request(self, connection: InMemoryConnection, subject: str) -> None:
        is_write = not subject.startswith("$JS.API.") or ".MSG.DELETE." in subject
        if connection.name == self.process and is_write:
            self.remaining -= 1
            if self.remaining == 0:
                self.kill()


class LostAcknowledgements(NoFaults):
    """Loses every acknowledgement of a process."""

    def __init__(self, process: str) -> None:
        self.process = process

    def loses_acknowledgement(self, connection: InMemoryConnection) -> bool:
        return connection.name == self.process


async def new_plane(network: NoFaults, framework: SimulatedFramework | None = None) -> ServerlessPlane:
    framework = framework or SimulatedFramework(random.Random(1))  # noqa: S311
    plane = ServerlessPlane(InMemoryNats(), network, SimulatedFunctions({"f"}), framework)
    await plane.create_streams()
    return plane


def invoke(seconds: float) -> Invoke:
    return Invoke(
        invocation_id="i", serverless_request_id="f", mode="async", payload=Raw(b"1"), timeout_seconds=seconds
    )


async def kill_all(*processes: SimulatedProcess) -> None:
    for process in processes:
        process.kill()
    await asyncio.sleep(0)


@pytest.mark.parametrize("number", range(1, 9))
@on_fake_time
async def test_leader_killed_before_any_write_loses_no_result(number: int) -> None:
    """No worker exists and no caller asks for the result. So only the reaper can end the invocation."""
    network = KillBeforeWrite("activator-0", number)
    plane = await new_plane(network)
    (api, service), store = plane.start_api("api-0"), plane.start_result_store("store-0")
    leaders = [plane.start_activator("activator-0", leads=True)]

    def replace_leader() -> None:
        leaders.pop().kill()
        asyncio.get_running_loop().call_later(
            1, lambda: leaders.append(plane.start_activator("activator-1", leads=True))
        )

    network.kill = replace_leader
    await api.spawn(service.invoke(invoke(1.5)))
    await asyncio.sleep(120)
    stored = set(plane.results.rows)
    await kill_all(api, store, *leaders)
    assert stored == {"i"}


@pytest.mark.parametrize("number", range(1, 13))
@on_fake_time
async def test_worker_killed_before_any_write_loses_no_dead_letter(number: int) -> None:
    """Every call crashes the framework. Without a dead letter, no operator could redrive the invocation."""
    network = KillBeforeWrite("worker-0", number)
    plane = await new_plane(
        network, SimulatedFramework(FreeWorkers(1), durations=(0.1,), failure_rate=1.0, crash_rate=1.0)
    )
    subjects: list[str] = []
    plane.server.stored_listeners.append(lambda _sender, message, _previous: subjects.append(message.subject))
    (api, service), store = plane.start_api("api-0"), plane.start_result_store("store-0")
    activator, workers = plane.start_activator("activator-0", leads=True), [plane.start_worker("worker-0", "f")]

    def replace_worker() -> None:
        workers.pop().kill()
        asyncio.get_running_loop().call_later(1, lambda: workers.append(plane.start_worker("worker-1", "f")))

    network.kill = replace_worker
    await api.spawn(service.invoke(invoke(100)))
    await asyncio.sleep(120)
    states = [row.state for row in plane.results.rows.values()]
    await kill_all(api, store, activator, *workers)
    assert states == ["dead_lettered"]
    assert [each for each in subjects if ".dlq." in each]


@on_fake_time
async def test_redelivered_invocation_that_a_worker_runs_is_not_dispatched_again() -> None:
    """A worker has reported free concurrency, and a restart of the server has deleted the message IDs. So only the
    record shows that the invocation was dispatched."""
    framework = SimulatedFramework(FreeWorkers(1), durations=(8.0,), failure_rate=0.0)
    plane = await new_plane(LostAcknowledgements("activator-0"), framework)
    subjects: list[str] = []
    plane.server.stored_listeners.append(lambda _sender, message, _previous: subjects.append(message.subject))
    api, service = plane.start_api("api-0")
    others = plane.start_activator("activator-0", leads=False), plane.start_worker("worker-0", "f")
    await asyncio.sleep(3)  # the activator observes the free worker
    await api.spawn(service.invoke(invoke(25)))
    await asyncio.sleep(1)
    plane.server.streams[TOPOLOGY.stream_name(Stream.DISPATCH)].message_ids.clear()
    await asyncio.sleep(6)  # INVOKE redelivers the message while the worker runs the invocation
    await kill_all(api, *others)
    assert subjects.count(TOPOLOGY.subjects.dispatch(simulated_function_id("f"))) == 1


@on_fake_time
async def test_rejected_publish_does_not_purge_a_record_that_has_changed() -> None:
    """While INVOKE rejects the message, a replay on another replica publishes it, and the activator dispatches it."""
    plane = await new_plane(NoFaults())
    api, service = plane.start_api("api-0")
    await asyncio.sleep(1)
    records = service.enqueuer.records

    class RejectingPublisher:
        async def publish(self, _message: OutgoingMessage) -> None:
            await records.apply("i", Dispatched(plane.now()), await records.read("i"))
            raise StreamFull("full")

    with pytest.raises(StreamFull):
        await with_publisher(service, RejectingPublisher()).invoke(invoke(5))
    stored = await records.read("i")
    await kill_all(api)
    assert stored is not None


@pytest.mark.parametrize("delay", [0, 6])
@on_fake_time
async def test_rejected_publish_does_not_purge_the_record_of_a_replay(delay: float) -> None:
    """While INVOKE rejects the message, another replica publishes it. Nothing else changes the record."""
    plane = await new_plane(NoFaults())
    (api, service), (other_api, other_service) = plane.start_api("api-0"), plane.start_api("api-1")
    await asyncio.sleep(1)

    class RejectingPublisher:
        async def publish(self, _message: OutgoingMessage) -> None:
            await asyncio.sleep(delay)  # the replay may come after the deadline
            await other_service.invoke(invoke(5))
            raise StreamFull("full")

    with pytest.raises(StreamFull):
        await with_publisher(service, RejectingPublisher()).invoke(invoke(5))
    stored = await service.enqueuer.records.read("i")
    messages = plane.server.streams[TOPOLOGY.stream_name(Stream.INVOKE)].messages
    await kill_all(api, other_api)
    assert len(messages) == 1
    assert stored is not None


@on_fake_time
async def test_record_that_is_purged_before_the_replay_publishes_is_created_again() -> None:
    """A different request could otherwise take the ID while the message of the replay is in the stream."""
    plane = await new_plane(NoFaults())
    api, service = plane.start_api("api-0")
    await asyncio.sleep(1)
    enqueuer, purged = service.enqueuer, asyncio.Event()

    class PurgingBucket:
        """Purges the record after the replay has read it."""

        async def get(self, key: str) -> KeyValueEntry | None:
            entry = await enqueuer.records.bucket.get(key)
            if entry is not None and not purged.is_set():
                purged.set()
                await enqueuer.records.bucket.purge(key, entry.revision)
            return entry

        def __getattr__(self, name: str) -> Any:
            return getattr(enqueuer.records.bucket, name)

    _, record = prepare_enqueue(admit_invocation(invoke(5), service.limits), plane.now())
    await enqueuer.records.create("i", record)
    records = InvocationRecordStore(cast(KeyValueBucket, PurgingBucket()))
    replaying = dataclasses.replace(service, enqueuer=dataclasses.replace(enqueuer, records=records))
    await replaying.invoke(invoke(5))
    stored = await enqueuer.records.read("i")
    (message,) = plane.server.streams[TOPOLOGY.stream_name(Stream.INVOKE)].messages.values()
    await kill_all(api)
    assert record_from_headers(message.headers) == stored


@on_fake_time
async def test_no_worker_starts_a_dispatched_invocation_that_the_activator_dead_letters() -> None:
    """The last delivery dispatched the invocation, but its acknowledgement was lost."""
    plane = await new_plane(LostAcknowledgements("activator-0"))
    subjects: list[str] = []
    plane.server.stored_listeners.append(lambda _sender, message, _previous: subjects.append(message.subject))
    api, service = plane.start_api("api-0")
    activator = plane.start_activator("activator-0", leads=False, max_deliveries=1)
    await api.spawn(service.invoke(invoke(60)))
    await asyncio.sleep(5)  # the dispatch waits for a worker, and the second delivery dead-letters the invocation
    worker = plane.start_worker("worker-0", "f")
    await asyncio.sleep(5)
    stored = await service.records.read("i")
    store = plane.start_result_store("store-0")
    await asyncio.sleep(5)
    states = [row.state for row in plane.results.rows.values()]
    await kill_all(api, store, activator, worker)
    assert stored is not None
    assert (stored.record.attempts, states) == (0, ["dead_lettered"])
    assert [each for each in subjects if ".dlq." in each]


@on_fake_time
async def test_invocation_that_a_worker_runs_is_not_dead_lettered_by_the_activator() -> None:
    framework = SimulatedFramework(FreeWorkers(1), durations=(8.0,), failure_rate=0.0)
    plane = await new_plane(LostAcknowledgements("activator-0"), framework)
    subjects: list[str] = []
    plane.server.stored_listeners.append(lambda _sender, message, _previous: subjects.append(message.subject))
    (api, service), store = plane.start_api("api-0"), plane.start_result_store("store-0")
    others = plane.start_activator("activator-0", leads=False, max_deliveries=1), plane.start_worker("worker-0", "f")
    await api.spawn(service.invoke(invoke(60)))
    await asyncio.sleep(20)
    states = [row.state for row in plane.results.rows.values()]
    await kill_all(api, store, *others)
    assert states == ["succeeded"]
    assert [each for each in subjects if ".dlq." in each] == []


@pytest.mark.parametrize("max_deliveries", [1, 50])
@pytest.mark.parametrize("number", range(1, 6))
@on_fake_time
async def test_activator_killed_before_any_write_loses_no_dead_letter(number: int, max_deliveries: int) -> None:
    """DISPATCH is full, and the first delivery is the last one. The next activator may allow more deliveries."""
    network = KillBeforeWrite("activator-0", number)
    plane = await new_plane(network)
    dispatch_stream = plane.server.streams[TOPOLOGY.stream_name(Stream.DISPATCH)]
    dispatch_stream.is_full = lambda: True
    subjects: list[str] = []
    plane.server.stored_listeners.append(lambda _sender, message, _previous: subjects.append(message.subject))
    (api, service), store = plane.start_api("api-0"), plane.start_result_store("store-0")
    activators = [plane.start_activator("activator-0", leads=False, max_deliveries=1)]

    def replace_activator() -> None:
        activators.pop().kill()
        start = partial(plane.start_activator, "activator-1", leads=False, max_deliveries=max_deliveries)
        asyncio.get_running_loop().call_later(1, lambda: activators.append(start()))

    network.kill = replace_activator
    await api.spawn(service.invoke(invoke(10)))
    await asyncio.sleep(60)
    states = [row.state for row in plane.results.rows.values()]
    await kill_all(api, store, *activators)
    letters = [each for each in subjects if ".dlq." in each]
    assert (states, len(letters)) in ((["dead_lettered"], 1), (["expired"], 0))
    assert states == ["dead_lettered"] or max_deliveries > 1


def with_publisher(service: InvocationService, publisher: Any) -> InvocationService:
    return dataclasses.replace(service, enqueuer=dataclasses.replace(service.enqueuer, publisher=publisher))


@on_fake_time
async def test_unreadable_record_is_not_dead_lettered_after_the_last_delivery() -> None:
    plane = await new_plane(NoFaults())
    subjects: list[str] = []
    plane.server.stored_listeners.append(lambda _stream, message, _publisher: subjects.append(message.subject))
    (api, service), store = plane.start_api("api-0"), plane.start_result_store("store-0")
    await api.spawn(service.invoke(invoke(5)))
    operator = InMemoryConnection(plane.server, "operator")
    plane.server.execute(operator, TOPOLOGY.record_bucket.subject("i"), b"not json", {})
    await asyncio.sleep(6)  # past the deadline, so that the activator must read the record
    activator = plane.start_activator("activator-0", leads=False, max_deliveries=2)
    await asyncio.sleep(200)
    await kill_all(api, store, activator)
    assert [each for each in subjects if ".dlq." in each] == []


@on_fake_time
async def test_cancelled_invocation_of_a_dead_worker_is_ended_by_the_next_worker() -> None:
    """The worker dies before the caller cancels. The next worker gets the message long before the deadline."""
    plane = await new_plane(NoFaults(), SimulatedFramework(FreeWorkers(1), durations=(90.0,)))
    (api, service), store = plane.start_api("api-0"), plane.start_result_store("store-0")
    activator, dying = plane.start_activator("activator-0", leads=True), plane.start_worker("worker-0", "f")
    await api.spawn(service.invoke(invoke(300)))
    await asyncio.sleep(2)
    dying.kill()
    await api.spawn(service.cancel("i"))
    worker = plane.start_worker("worker-1", "f")
    await asyncio.sleep(60)
    result, dispatched = plane.results.result("i"), plane.server.streams[TOPOLOGY.stream_name(Stream.DISPATCH)].messages
    await kill_all(api, store, activator, worker)
    assert result is not None
    assert (result.state, dispatched) == (ResultState.CANCELLED, {})
