"""A simulation of invocations under faults. A seed decides the order of all events, and which of them fail.

Time is virtual: every message has a random latency, and the event loop jumps to the next event.
"""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec import UNSET, Raw

from gpu_runtime.contract.errors import AlreadyFinished, InvocationReused, NotFound, SyncTimeout, Unavailable
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import OPERATION_HEADER, PURGE_HEADERS
from gpu_runtime.runtime_api.invocations.requests import InvocationState, Invoke
from gpu_runtime.runtime_api.invocations.service import InvocationService
from gpu_runtime.runtime_api.invocations.view import InvocationView
from tests.unit.serverless.in_memory_nats import (
    NANOSECONDS,
    InMemoryConnection,
    InMemoryNats,
    NoFaults,
    StreamMessage,
    bucket_values,
)
from tests.unit.serverless.simulated_processes import (
    REAPER_SETTINGS,
    TOPOLOGY,
    ServerlessPlane,
    SimulatedFramework,
    SimulatedFunctions,
    SimulatedProcess,
    simulated_function_id,
)

FAULT_SECONDS = 30.0
"""Faults happen in the first seconds of the simulation."""
SETTLE_SECONDS = 240.0
"""Every accepted invocation has a result after this time."""
TIMEOUTS_SECONDS = (1.5, 4.0, 10.0, 25.0)
MAX_QUERIED_AGE = timedelta(seconds=20)
DUPLICATE_WINDOW_SECONDS = 5.5
"""It is longer than a publisher repeats a message."""
ATTACKER = "attacker"
UNREADABLE_VALUES = (b"not json", b'{"version":9}', b'{"version":1,"state":"paused"}', b"")


@dataclass(frozen=True)
class FaultPlan:
    invocations: int = 5
    kills: int = 12
    """Maximum number of processes that are killed, each before or after the server has executed a request."""
    lost_replies: int = 4
    lost_acknowledgements: int = 6
    disconnects: int = 2
    cancels: int = 3
    rejections: int = 8
    """Maximum number of messages that a full stream rejects."""
    repeated_requests: int = 3
    """Number of invocations whose request two callers send at about the same time."""
    reused_ids: int = 1
    """Number of invocations whose ID a different request uses, too."""
    expired_records: int = 1
    """Number of accepted invocations whose record expires too early."""
    deletes_function: bool = True
    forged_results: int = 3
    """Number of results that an attacker publishes for invocations of the callers."""
    unreadable_records: int = 0
    max_latency: float = 6.0


class NoAnswer(Exception):
    """The replica died or could not reach NATS."""


class FaultyNetwork(NoFaults):
    def __init__(self, rng: random.Random, plan: FaultPlan, on_kill: Callable[[InMemoryConnection], None]) -> None:
        self._rng, self._on_kill = rng, on_kill
        self._kills, self._lost_replies, self._lost_acks = plan.kills, plan.lost_replies, plan.lost_acknowledgements
        self._kill_rate, self._ack_loss_rate = rng.choice((0.005, 0.02, 0.06)), rng.choice((0.0, 0.2, 0.5))
        self._rejections, self._rejection_rate = plan.rejections, rng.choice((0.0, 0.15, 0.4))
        self._max_latency = plan.max_latency
        self.active = True

    def latency(self, _connection: InMemoryConnection) -> float:
        chance = self._rng.random()
        if not self.active or chance < 0.9:
            return self._rng.expovariate(200)
        return self._rng.uniform(0.05, 0.5) if chance < 0.985 else self._rng.uniform(0.5, self._max_latency)

    def is_full(self) -> bool:
        """Whether a stream rejects the next message."""
        if not self.active or not self._rejections or self._rng.random() >= self._rejection_rate:
            return False
        self._rejections -= 1
        return True

    def before_request(self, connection: InMemoryConnection, subject: str) -> None:
        self._kill_sometimes(connection, self._rate(connection, subject))

    def loses_acknowledgement(self, _connection: InMemoryConnection) -> bool:
        if not self.active or not self._lost_acks or self._rng.random() >= self._ack_loss_rate:
            return False
        self._lost_acks -= 1
        return True

    def after_acknowledgement(self, connection: InMemoryConnection) -> None:
        self._kill_sometimes(connection, self._kill_rate)

    def loses_reply(self, connection: InMemoryConnection, subject: str) -> bool:
        if self.active and self._lost_replies and self._rng.random() < 0.01:
            self._lost_replies -= 1
            return True
        return self._kill_sometimes(connection, self._rate(connection, subject))

    def _rate(self, connection: InMemoryConnection, subject: str) -> float:
        """A process is killed more often at a rare request, and a result store at its write of the record."""
        is_rare = ".dlq." in subject or ".MSG.DELETE." in subject
        is_last_write = connection.name.startswith("store-") and subject.startswith("$KV.")
        return max(self._kill_rate, 0.2) if is_rare or is_last_write else self._kill_rate

    def _kill_sometimes(self, connection: InMemoryConnection, rate: float) -> bool:
        if not self.active or not self._kills or self._rng.random() > rate:
            return False
        self._kills -= 1
        self._on_kill(connection)
        return True


class InvocationSimulation:
    def __init__(self, seed: int, plan: FaultPlan) -> None:
        self.rng, self.plan = random.Random(seed), plan  # noqa: S311 - the seed makes a run reproducible
        self.server = InMemoryNats()
        self.network = FaultyNetwork(self.rng, plan, self._restart)
        framework = SimulatedFramework(self.rng, failure_rate=self.rng.choice((0.1, 0.1, 0.5, 0.9)), crash_rate=0.8)
        functions = SimulatedFunctions({"f", "g"})
        self.plane = ServerlessPlane(self.server, self.network, functions, framework, max_attempts=2)
        self._max_deliveries = self.rng.choice((2, 4, 50))
        self.history = InvocationHistory(self.plane, timedelta(seconds=plan.max_latency))
        self.server.stored_listeners.append(self.history.on_stored)
        self.processes: dict[str, SimulatedProcess] = {}
        self.services: dict[str, InvocationService] = {}
        self.accepted: dict[str, int] = {}
        """The payload of each accepted invocation."""
        self._clients: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Run the simulation. At the end, every invariant must hold."""
        await self.plane.create_streams()
        self._configure_streams()
        for name in ("api-0", "api-1", "activator-0", "activator-1", "store-0", "store-1"):
            self._start(name)
        latest_start = self.rng.choice((0, 0, 15))  # without a worker, other processes must end some invocations
        for name in ("worker-f-0", "worker-f-1", "worker-g-0", "worker-g-1"):
            asyncio.get_running_loop().call_later(self.rng.uniform(0, latest_start), self._start, name)
        self._start_clients()
        await asyncio.sleep(FAULT_SECONDS)
        self.network.active = False
        try:
            await self._settle()
        finally:
            for client in self._clients:
                client.cancel()
            for process in self.processes.values():
                process.kill()
            await asyncio.sleep(0)

    def _configure_streams(self) -> None:
        """Let the server forget message IDs early, in some runs before it redelivers an invocation to an activator."""
        for each in Stream:
            stream = self.server.streams[TOPOLOGY.stream_name(each)]
            stream.config["duplicate_window"] = int(DUPLICATE_WINDOW_SECONDS * NANOSECONDS)
            stream.is_full = self.network.is_full
        consumer = self.server.streams[TOPOLOGY.stream_name(Stream.INVOKE)].consumers[TOPOLOGY.invoke_consumer.name]
        consumer.config["ack_wait"] = self.rng.choice((3, 6)) * NANOSECONDS

    def _start(self, name: str) -> None:
        kind, *rest = name.partition("!")[0].split("-")
        match kind:
            case "api":
                self.processes[name], self.services[name] = self.plane.start_api(name)
            case "activator":
                self.processes[name] = self.plane.start_activator(
                    name, leads=rest == ["0"], max_deliveries=self._max_deliveries
                )
            case "worker":
                self.processes[name] = self.plane.start_worker(name, rest[0])
            case "store":
                self.processes[name] = self.plane.start_result_store(name)

    def _restart(self, connection: InMemoryConnection) -> None:
        """Kill a process, and start it again after some time. A new process has a new name, as a new pod has."""
        if (process := self.processes.pop(connection.name, None)) is None:
            return
        self.services.pop(connection.name, None)
        process.kill()
        base, _, generation = connection.name.partition("!")
        name = f"{base}!{int(generation or 0) + 1}"
        asyncio.get_running_loop().call_later(self.rng.uniform(0.1, 4), self._start, name)

    def _start_clients(self) -> None:
        ids = [f"i{index}" for index in range(self.plan.invocations)]
        repeated, unreadable = set(self.rng.sample(ids, self.plan.repeated_requests)), self.plan.unreadable_records
        others = [each for each in ids if each not in repeated]
        for each in ids:
            request, start = self._request(each, 1), self.rng.uniform(0, 8)
            self._clients.append(asyncio.create_task(self._invoke(request, start, 1)))
            if each in repeated:
                delay = self.rng.choice((0.0, 0.01, 0.03, 0.3, 3))
                self._clients.append(asyncio.create_task(self._invoke(request, start + self.rng.uniform(0, delay), 1)))
        for each in self.rng.sample(sorted(repeated), self.plan.reused_ids):
            reuse = self._invoke(self._request(each, 2), self.rng.uniform(0, 9), 2)
            self._clients.append(asyncio.create_task(reuse))
        for each in others[: self.plan.expired_records]:
            self._clients.append(asyncio.create_task(self._expire_record(each)))
        for each in self.rng.sample(ids, min(self.plan.cancels, len(ids))):
            self._clients.append(asyncio.create_task(self._cancel(each)))
        for each in self.rng.sample(ids, min(unreadable, len(ids))):
            self._clients.append(asyncio.create_task(self._make_unreadable(each)))
        if self.plan.deletes_function:
            asyncio.get_running_loop().call_later(self.rng.uniform(0.5, 15), self.plane.functions.existing.discard, "g")
        for each in self.rng.choices(ids, k=self.plan.forged_results):
            self._clients.append(asyncio.create_task(self._forge_result(each)))
        for _ in range(self.plan.disconnects):
            self._clients.append(asyncio.create_task(self._disconnect_one()))

    def _request(self, invocation_id: str, payload: int) -> Invoke:
        return Invoke(
            invocation_id=invocation_id,
            serverless_request_id=self.rng.choice("fg"),
            mode=self.rng.choice(("sync", "async")),
            payload=Raw(b"%d" % payload),
            timeout_seconds=self.rng.choice(TIMEOUTS_SECONDS),
        )

    async def _invoke(self, request: Invoke, start: float, payload: int) -> None:
        """Send an invocation until a replica accepts it. Then query it until it has finished."""
        invocation_id = str(request.invocation_id)
        await asyncio.sleep(start)
        try:
            view, _ = await self._call(lambda service: service.invoke(request))
            self._check_payload(view, payload)
        except SyncTimeout:
            pass
        except (LookupError, InvocationReused):  # the function is deleted, or another request has used the ID
            return
        assert self.accepted.setdefault(invocation_id, payload) == payload, f"two requests use {invocation_id}"
        self.history.check_accepted(invocation_id)
        while invocation_id not in self.plane.results.rows:
            await asyncio.sleep(self.rng.uniform(1, 6))
            if self._must_end_without_queries(invocation_id):
                continue
            try:
                self._check_payload(await self._call(lambda service: service.get(invocation_id)), payload)
            except NotFound:
                assert invocation_id in self.history.deleted

    def _check_payload(self, view: InvocationView, payload: int) -> None:
        """The output of a function contains its input."""
        if view.state is InvocationState.SUCCEEDED and view.payload is not UNSET:
            assert bytes(view.payload).startswith(b"[%d," % payload), f"{view.invocation_id} has a foreign result"

    async def _expire_record(self, invocation_id: str) -> None:
        """Let the record expire after the invocation was accepted. Its caller does not send the request again."""
        await asyncio.sleep(self.rng.uniform(0, 15))
        # Without a message, the record is the only trace of the invocation.
        if invocation_id in self.accepted and self._has_message(invocation_id):
            self.history.deleted.add(invocation_id)
            bucket = TOPOLOGY.record_bucket
            self.server.expire(bucket.stream_name, bucket.subject(invocation_id))

    async def _forge_result(self, invocation_id: str) -> None:
        """Publish a result without a ticket, or with the ticket of another invocation."""
        await asyncio.sleep(self.rng.uniform(0, 20))
        function, dispatched = self.rng.choice("fg"), self.server.streams[TOPOLOGY.stream_name(Stream.DISPATCH)]
        result = Result(
            invocation_id=invocation_id,
            serverless_request_id=function,
            function_id=simulated_function_id(function),
            state=self.rng.choice((ResultState.SUCCEEDED, ResultState.CANCELLED)),
            timings=Timings(finished_at=self.plane.now()),
        )
        forged = with_body(result, "application/json", b"[9,0]")
        others = [each for each in dispatched.messages.values() if f'"{invocation_id}"'.encode() not in each.data]
        headers = {TICKET_HEADER: self.rng.choice(others).headers[TICKET_HEADER]} if others else {}
        subject, attacker = TOPOLOGY.subjects.result(result.function_id), InMemoryConnection(self.server, ATTACKER)
        self.server.execute(attacker, subject, encode(forged), headers)

    def _must_end_without_queries(self, invocation_id: str) -> bool:
        """Whether the client stops its queries: a query long after the deadline would end a lost invocation.

        Only an invocation whose message was never published needs such a query.
        """
        published_at = self.history.published_at.get(invocation_id)
        return published_at is not None and self.plane.now() > published_at + MAX_QUERIED_AGE

    async def _cancel(self, invocation_id: str) -> None:
        await asyncio.sleep(self.rng.uniform(0, 14))
        self.history.cancelled.add(invocation_id)
        # Some callers do not repeat a request whose replica dies. Other processes must complete the cancellation.
        with contextlib.suppress(AlreadyFinished, NotFound, NoAnswer):
            await self._call(lambda service: service.cancel(invocation_id), repeats=self.rng.random() < 0.3)

    async def _call(self, work: Callable[[InvocationService], Any], *, repeats: bool = True) -> Any:
        """Call random replicas of the API until one of them answers. Raise NoAnswer if the caller does not repeat."""
        while True:
            if self.services:
                name = self.rng.choice(sorted(self.services))
                task = self.processes[name].spawn(work(self.services[name]))
                await asyncio.wait({task})
                if not task.cancelled():
                    try:
                        return task.result()
                    except SyncTimeout:
                        raise
                    except (JetStreamError, Unavailable):
                        pass
                if not repeats:
                    raise NoAnswer
            await asyncio.sleep(self.rng.uniform(0.1, 1))

    async def _disconnect_one(self) -> None:
        """Disconnect a process for longer than the ack waits. Its handlers continue to run."""
        await asyncio.sleep(self.rng.uniform(0, FAULT_SECONDS - 10))
        if self.processes:
            connection = self.processes[self.rng.choice(sorted(self.processes))].connection
            connection.set_connected(False)
            await asyncio.sleep(self.rng.uniform(1, 8))
            connection.set_connected(True)

    async def _make_unreadable(self, invocation_id: str) -> None:
        """Overwrite a record with a value that no process can decode. Repair it later."""
        await asyncio.sleep(self.rng.uniform(1, 10))
        for _ in range(self.rng.choice((0, 100))):  # some records become unreadable while a worker runs the invocation
            if (record := self.history.stored_record(invocation_id)) and record.running:
                break
            await asyncio.sleep(0.1)
        operator, subject = InMemoryConnection(self.server, "operator"), TOPOLOGY.record_bucket.subject(invocation_id)
        before = bucket_values(self.server, TOPOLOGY.record_bucket.stream_name).get(invocation_id)
        if before is None:
            return
        self.history.unreadable[invocation_id] = decode(before, InvocationRecord)
        self.history.unreadable_since[invocation_id] = self.plane.now()
        self.server.execute(operator, subject, self.rng.choice(UNREADABLE_VALUES), {})
        await asyncio.sleep(self.rng.uniform(1, 40))
        del self.history.unreadable[invocation_id]
        # Without a message, the record is the only trace of the invocation: an operator must not delete it.
        if self._has_message(invocation_id) and self.rng.random() < 0.5:
            self.history.deleted.add(invocation_id)
            self.server.execute(operator, subject, b"", PURGE_HEADERS)
        else:
            self.server.execute(operator, subject, before, {})

    def _has_message(self, invocation_id: str) -> bool:
        streams = [self.server.streams[TOPOLOGY.stream_name(each)] for each in Stream]
        messages = [message for each in streams for message in each.messages.values()]
        return any(f'"{invocation_id}"'.encode() in message.data for message in messages)

    async def _settle(self) -> None:
        for _ in range(int(SETTLE_SECONDS)):
            if self.history.violations or not self._unsettled():
                break
            await asyncio.sleep(1)
        unsettled = self._unsettled()
        for client in self._clients:
            if client.done():
                client.result()
        assert not self.history.violations, self.history.violations
        assert not unsettled, unsettled
        self.history.check_records(self.accepted.keys() | self.history.published_at.keys())
        self.history.check_dead_letters()
        for invocation_id, payload in self.accepted.items():
            result = self.plane.results.result(invocation_id)
            if result and result.state is ResultState.SUCCEEDED:
                assert result.body.startswith(b"[%d," % payload), f"{invocation_id} has a foreign result"

    def _unsettled(self) -> list[str]:
        """Return what is missing: clients that wait, results, and messages that are still in a stream."""
        stored = self.plane.results.rows
        return [
            *(f"client {index} waits" for index, each in enumerate(self._clients) if not each.done()),
            *(f"invocation {each} has no result" for each in sorted(self.accepted) if each not in stored),
            *(
                f"message {message.subject} {message.sequence} is still in its stream"
                for stream in Stream
                for message in self.server.streams[TOPOLOGY.stream_name(stream)].messages.values()
            ),
        ]


@dataclass
class InvocationHistory:
    """Watches everything that the server stores, and collects violations of the invariants."""

    plane: ServerlessPlane
    max_latency: timedelta
    """The longest time that a request or its response takes."""
    violations: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    """Invocations for which a caller has sent a cancel request."""
    unreadable: dict[str, InvocationRecord] = field(default_factory=dict)
    """The last readable record of each invocation whose record is unreadable now."""
    deleted: set[str] = field(default_factory=set)
    """Invocations whose record has expired, or whose unreadable record an operator has deleted."""
    unreadable_since: dict[str, datetime] = field(default_factory=dict)
    letters: defaultdict[str, list[DeadLetter]] = field(default_factory=lambda: defaultdict(list))
    """The dead letters of each invocation."""
    published_at: dict[str, datetime] = field(default_factory=dict)
    """When the message of each invocation was stored."""
    workers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The workers that marked the invocation as running."""
    running_since: dict[str, datetime] = field(default_factory=dict)
    """When the current record of each running invocation was stored."""
    results: defaultdict[str, list[tuple[str, Result]]] = field(default_factory=lambda: defaultdict(list))

    def on_stored(self, sender: InMemoryConnection, message: StreamMessage, previous: StreamMessage | None) -> None:
        if sender.name == ATTACKER:
            return
        if message.subject.startswith("$KV."):
            self._on_record(sender, message, previous)
        elif message.subject.startswith(f"{TOPOLOGY.subjects.prefix}.{Stream.RESULT}."):
            self._on_result(sender, decode(message.data, Result))
        elif message.subject.startswith(f"{TOPOLOGY.subjects.prefix}.{Stream.INVOKE}."):
            self.published_at.setdefault(decode(message.data, Invocation).invocation_id, self.plane.now())
        elif message.subject.startswith(f"{TOPOLOGY.subjects.prefix}.{Stream.DISPATCH}."):
            self._on_dispatch(sender, decode(message.data, Dispatch))
        elif ".dlq." in message.subject:
            self._on_dead_letter(sender, decode(message.data, DeadLetter))

    def _on_record(self, sender: InMemoryConnection, message: StreamMessage, previous: StreamMessage | None) -> None:
        invocation_id = message.subject.rpartition(".")[2]
        before, after = (_record(previous.data) if previous else None), _record(message.data)
        is_purge = OPERATION_HEADER in message.headers and sender.name != "operator"
        # A replica may purge the record that it created after an operator had deleted the record of the message.
        if is_purge and invocation_id in self.published_at and invocation_id not in self.deleted:
            self._violate(sender, f"the record of {invocation_id} was purged although its message was published")
        if after is not None and after.state == "running":
            self.workers[invocation_id].add(after.worker)
            self.running_since[invocation_id] = self.plane.now()
        if before and after and before.termination and after.attempts > before.attempts:
            self._violate(sender, f"{invocation_id} was started although it has a termination")
        if before is not None and before.state == "terminal" and sender.name != "operator":
            self._violate(sender, f"the terminal record of {invocation_id} changed")
        if sender.name != "operator" and previous is not None and invocation_id in self.unreadable:
            self._violate(sender, f"the unreadable record of {invocation_id} was overwritten")

    def _on_result(self, sender: InMemoryConnection, result: Result) -> None:
        invocation_id, now = result.invocation_id, self.plane.now()
        self.results[invocation_id].append((sender.name, result))
        record = self.stored_record(invocation_id)
        failure_class = result.failure.failure_class if result.failure else None
        if result.state is ResultState.CANCELLED and invocation_id not in self.cancelled:
            self._violate(sender, f"{invocation_id} ended as cancelled without a cancel request")
        last_readable = self.unreadable.get(invocation_id)
        if last_readable and not last_readable.termination and sender.name not in self.workers[invocation_id]:
            self._violate(sender, f"{invocation_id} ended as {result.state} while its record was unreadable")
        if record is None or record.state != "running" or sender.name in self.workers[invocation_id]:
            return
        grace = timedelta(seconds=REAPER_SETTINGS.deadline_grace_seconds)
        is_worker = sender.name.startswith("worker-")  # it holds the delivery: the other worker has lost it
        if failure_class is FailureClass.FUNCTION_GONE:
            self._violate(sender, f"{invocation_id} ended as function_gone while {record.worker} runs it")
        if result.state is ResultState.CANCELLED and not is_worker and now < record.deadline + grace:
            self._violate(sender, f"{invocation_id} ended as cancelled while {record.worker} runs it")
        if result.state is ResultState.EXPIRED and now < record.deadline + grace:
            self._violate(sender, f"{invocation_id} ended as expired while {record.worker} runs it")

    def _on_dispatch(self, sender: InMemoryConnection, dispatch: Dispatch) -> None:
        """A dispatch and a start may cross. But no activator dispatches after it could read that a worker runs it."""
        invocation_id = dispatch.invocation.invocation_id
        record = self.stored_record(invocation_id)
        if not record or not record.running:
            return
        if dispatch.dispatched_at > self.running_since[invocation_id] + self.max_latency:
            self._violate(sender, f"{invocation_id} was dispatched while {record.worker} runs it")

    def _on_dead_letter(self, sender: InMemoryConnection, letter: DeadLetter) -> None:
        id_, now = letter.invocation_id, self.plane.now()
        self.letters[id_].append(letter)
        if id_ in self.unreadable and now - self.unreadable_since[id_] > 2 * self.max_latency:
            self._violate(sender, f"{id_} was dead-lettered while its record was unreadable: {letter.reason}")

    def check_accepted(self, invocation_id: str) -> None:
        """An accepted invocation has a record. It has a message, unless it ended before."""
        if invocation_id in self.deleted or invocation_id in self.unreadable:
            return
        record = self.stored_record(invocation_id)
        assert record is not None, f"{invocation_id} was accepted without a record"
        ended = record.finished or record.termination is not None
        assert invocation_id in self.published_at or ended, f"{invocation_id} was accepted without a message"

    def check_dead_letters(self) -> None:
        """Each result `dead_lettered` has a dead letter. A dead letter of the activator has such a result."""
        rows = self.plane.results.rows
        dead_lettered = {each for each, row in rows.items() if row.state == ResultState.DEAD_LETTERED}
        assert dead_lettered <= self.letters.keys(), f"{dead_lettered - self.letters.keys()} have no dead letter"
        by_activator = {
            each
            for each, letters in self.letters.items()
            if any(TOPOLOGY.subjects.parse(letter.subject).kind == Stream.INVOKE for letter in letters)
        }
        assert by_activator - self.deleted <= dead_lettered, f"{by_activator - dead_lettered} have a dead letter"

    def stored_record(self, invocation_id: str) -> InvocationRecord | None:
        return _record(bucket_values(self.plane.server, TOPOLOGY.record_bucket.stream_name).get(invocation_id, b""))

    def check_records(self, invocation_ids: set[str]) -> None:
        """Each invocation has a stored result and a terminal record with the state of this result."""
        for invocation_id in invocation_ids:
            assert invocation_id in self.plane.results.rows, f"{invocation_id} has no result"
            record, row = self.stored_record(invocation_id), self.plane.results.rows[invocation_id]
            if invocation_id in self.deleted:
                continue
            assert record is not None, f"{invocation_id} has no record"
            assert (record.state, record.result_state) == ("terminal", row.state), f"{invocation_id}: {record}"

    def _violate(self, sender: InMemoryConnection, violation: str) -> None:
        self.violations.append(f"{self.plane.now():%M:%S.%f} {sender.name}: {violation}")


def _record(value: bytes) -> InvocationRecord | None:
    try:
        return decode(value, InvocationRecord)
    except MessageDecodeError:
        return None
