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

from msgspec import Raw

from gpu_runtime.contract.errors import AlreadyFinished, NotFound, SyncTimeout, Unavailable
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Result, ResultState
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import PURGE_HEADERS
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.invocations.service import InvocationService
from tests.unit.serverless.in_memory_nats import (
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
)

FAULT_SECONDS = 30.0
"""Faults happen in the first seconds of the simulation."""
SETTLE_SECONDS = 240.0
"""Every accepted invocation has a result after this time."""
TIMEOUTS_SECONDS = (1.5, 4.0, 10.0, 25.0)
MAX_QUERIED_AGE = timedelta(seconds=20)
UNREADABLE_VALUES = (b"not json", b'{"version":9}', b'{"version":1,"state":"paused"}', b"")


@dataclass(frozen=True)
class FaultPlan:
    invocations: int = 5
    kills: int = 8
    """Maximum number of processes that are killed, each before or after the server has executed a request."""
    lost_replies: int = 4
    lost_acknowledgements: int = 4
    disconnects: int = 2
    cancels: int = 2
    deletes_function: bool = True
    unreadable_records: int = 0


class NoAnswer(Exception):
    """The replica died or could not reach NATS."""


class FaultyNetwork(NoFaults):
    def __init__(self, rng: random.Random, plan: FaultPlan, on_kill: Callable[[InMemoryConnection], None]) -> None:
        self._rng, self._on_kill = rng, on_kill
        self._kills, self._lost_replies, self._lost_acks = plan.kills, plan.lost_replies, plan.lost_acknowledgements
        self._kill_rate, self._ack_loss_rate = rng.choice((0.005, 0.02, 0.06)), rng.choice((0.0, 0.2, 0.5))
        self.active = True

    def latency(self, _connection: InMemoryConnection) -> float:
        chance = self._rng.random()
        if not self.active or chance < 0.9:
            return self._rng.expovariate(200)
        return self._rng.uniform(0.05, 0.5) if chance < 0.985 else self._rng.uniform(0.5, 6)

    def before_request(self, connection: InMemoryConnection, _subject: str) -> None:
        self._kill_sometimes(connection)

    def loses_acknowledgement(self, _connection: InMemoryConnection) -> bool:
        if not self.active or not self._lost_acks or self._rng.random() >= self._ack_loss_rate:
            return False
        self._lost_acks -= 1
        return True

    def after_acknowledgement(self, connection: InMemoryConnection) -> None:
        self._kill_sometimes(connection)

    def loses_reply(self, connection: InMemoryConnection, _subject: str) -> bool:
        if self.active and self._lost_replies and self._rng.random() < 0.01:
            self._lost_replies -= 1
            return True
        return self._kill_sometimes(connection)

    def _kill_sometimes(self, connection: InMemoryConnection) -> bool:
        if not self.active or not self._kills or self._rng.random() > self._kill_rate:
            return False
        self._kills -= 1
        self._on_kill(connection)
        return True


class InvocationSimulation:
    def __init__(self, seed: int, plan: FaultPlan) -> None:
        self.rng, self.plan = random.Random(seed), plan  # noqa: S311 - the seed makes a run reproducible
        self.server = InMemoryNats()
        self.network = FaultyNetwork(self.rng, plan, self._restart)
        framework = SimulatedFramework(self.rng)
        self.plane = ServerlessPlane(self.server, self.network, SimulatedFunctions({"f", "g"}), framework)
        self.history = InvocationHistory(self.plane)
        self.server.stored_listeners.append(self.history.on_stored)
        self.processes: dict[str, SimulatedProcess] = {}
        self.services: dict[str, InvocationService] = {}
        self.accepted: set[str] = set()
        self._clients: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Run the simulation. At the end, every invariant must hold."""
        await self.plane.create_streams()
        for name in ("api-0", "api-1", "activator-0", "activator-1", "store-0", "store-1"):
            self._start(name)
        for name in ("worker-f-0", "worker-f-1", "worker-g-0", "worker-g-1"):
            self._start(name)
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

    def _start(self, name: str) -> None:
        kind, *rest = name.partition("!")[0].split("-")
        match kind:
            case "api":
                self.processes[name], self.services[name] = self.plane.start_api(name)
            case "activator":
                self.processes[name] = self.plane.start_activator(name, leads=rest == ["0"])
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
        for each in ids:
            self._clients.append(asyncio.create_task(self._invoke(each)))
        for each in self.rng.sample(ids, min(self.plan.cancels, len(ids))):
            self._clients.append(asyncio.create_task(self._cancel(each)))
        for each in self.rng.sample(ids, min(self.plan.unreadable_records, len(ids))):
            self._clients.append(asyncio.create_task(self._make_unreadable(each)))
        if self.plan.deletes_function:
            asyncio.get_running_loop().call_later(self.rng.uniform(0.5, 15), self.plane.functions.existing.discard, "g")
        for _ in range(self.plan.disconnects):
            self._clients.append(asyncio.create_task(self._disconnect_one()))

    async def _invoke(self, invocation_id: str) -> None:
        """Send an invocation until a replica accepts it. Then query it until it has finished."""
        await asyncio.sleep(self.rng.uniform(0, 8))
        request = Invoke(
            invocation_id=invocation_id,
            serverless_request_id=self.rng.choice("fg"),
            mode=self.rng.choice(("sync", "async")),
            payload=Raw(b"1"),
            timeout_seconds=self.rng.choice(TIMEOUTS_SECONDS),
        )
        try:
            await self._call(lambda service: service.invoke(request))
        except SyncTimeout:
            pass
        except LookupError:  # the function is deleted
            return
        self.accepted.add(invocation_id)
        while invocation_id not in self.plane.results.rows:
            await asyncio.sleep(self.rng.uniform(1, 6))
            if self._must_end_without_queries(invocation_id):
                continue
            try:
                await self._call(lambda service: service.get(invocation_id))
            except NotFound:
                assert invocation_id in self.history.deleted

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
        operator, subject = InMemoryConnection(self.server, "operator"), TOPOLOGY.record_bucket.subject(invocation_id)
        before = bucket_values(self.server, TOPOLOGY.record_bucket.stream_name).get(invocation_id)
        if before is None:
            return
        self.history.unreadable[invocation_id] = decode(before, InvocationRecord)
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
        self.history.check_records(self.accepted)

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
    violations: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    """Invocations for which a caller has sent a cancel request."""
    unreadable: dict[str, InvocationRecord] = field(default_factory=dict)
    """The last readable record of each invocation whose record is unreadable now."""
    ever_unreadable: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    """Invocations whose unreadable record an operator has deleted."""
    published_at: dict[str, datetime] = field(default_factory=dict)
    """When the message of each invocation was stored."""
    workers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The workers that marked the invocation as running."""
    results: defaultdict[str, list[tuple[str, Result]]] = field(default_factory=lambda: defaultdict(list))

    def on_stored(self, sender: InMemoryConnection, message: StreamMessage, previous: StreamMessage | None) -> None:
        if message.subject.startswith("$KV."):
            self._on_record(sender, message, previous)
        elif message.subject.startswith(f"{TOPOLOGY.subjects.prefix}.{Stream.RESULT}."):
            self._on_result(sender, decode(message.data, Result))
        elif message.subject.startswith(f"{TOPOLOGY.subjects.prefix}.{Stream.INVOKE}."):
            self.published_at.setdefault(decode(message.data, Invocation).invocation_id, self.plane.now())
        elif ".dlq." in message.subject:
            self._on_dead_letter(sender, decode(message.data, DeadLetter))

    def _on_record(self, sender: InMemoryConnection, message: StreamMessage, previous: StreamMessage | None) -> None:
        invocation_id = message.subject.rpartition(".")[2]
        before, after = (_record(previous.data) if previous else None), _record(message.data)
        self.ever_unreadable |= self.unreadable.keys()
        if after is not None and after.state == "running":
            self.workers[invocation_id].add(after.worker)
        if before and after and before.termination and after.attempts > before.attempts:
            self._violate(sender, f"{invocation_id} was started although it has a termination")
        if before is not None and before.state == "terminal" and sender.name != "operator":
            self._violate(sender, f"the terminal record of {invocation_id} changed")
        if sender.name != "operator" and previous is not None and invocation_id in self.unreadable:
            self._violate(sender, f"the unreadable record of {invocation_id} was overwritten")

    def _on_result(self, sender: InMemoryConnection, result: Result) -> None:
        invocation_id, now = result.invocation_id, self.plane.now()
        self.results[invocation_id].append((sender.name, result))
        record = self._stored_record(invocation_id)
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

    def _on_dead_letter(self, sender: InMemoryConnection, letter: DeadLetter) -> None:
        if letter.invocation_id in self.ever_unreadable | self.unreadable.keys():
            self._violate(sender, f"{letter.invocation_id} was dead-lettered: {letter.reason}")

    def _stored_record(self, invocation_id: str) -> InvocationRecord | None:
        return _record(bucket_values(self.plane.server, TOPOLOGY.record_bucket.stream_name).get(invocation_id, b""))

    def check_records(self, accepted: set[str]) -> None:
        """Each accepted invocation has a terminal record with the state of its stored result."""
        for invocation_id in accepted:
            record, row = self._stored_record(invocation_id), self.plane.results.rows[invocation_id]
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
