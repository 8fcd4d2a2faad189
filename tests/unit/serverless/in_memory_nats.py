"""An in-memory NATS server with JetStream, for tests that control the order of events.

It implements the part of JetStream that the product uses: work queue streams with consumers, message IDs, conditional
writes, key-value buckets, and core NATS. tests/integration/jetstream compares it with a real server.
"""

import asyncio
import base64
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
from nats.aio.msg import Msg

from gpu_runtime.jetstream.connection import ConnectionListener, MessageCallback, Subscription
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.errors import NatsUnreachable, NoResponders
from gpu_runtime.jetstream.inbox import Inbox
from gpu_runtime.jetstream.kv import OPERATION_HEADER
from gpu_runtime.jetstream.publisher import EXPECTED_LAST_SEQUENCE_HEADER, MESSAGE_ID_HEADER

Json = dict[str, Any]
SERVER_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
NANOSECONDS = 1_000_000_000


class ServerRejection(Exception):
    """The server answers with an error."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(description)
        self.body: Json = {"code": code, "err_code": err_code, "description": description}


STREAM_FULL = (503, 10077, "maximum messages per subject exceeded")


@dataclass(frozen=True)
class StreamMessage:
    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    time: datetime


@dataclass
class PullRequest:
    connection: "InMemoryConnection"
    reply: str
    remaining: int
    expires_at: float


@dataclass
class ConsumerState:
    config: Json
    next_sequence: int = 1
    delivered: int = 0
    """The number of deliveries."""
    due: dict[int, float] = field(default_factory=dict)
    """When the server redelivers each unacknowledged message, by stream sequence."""
    delivery_counts: dict[int, int] = field(default_factory=dict)
    pulls: list[PullRequest] = field(default_factory=list)

    @property
    def ack_wait(self) -> float:
        return float(self.config["ack_wait"]) / NANOSECONDS


@dataclass
class StreamContent:
    config: Json
    created: str
    messages: dict[int, StreamMessage] = field(default_factory=dict)
    last_sequence: int = 0
    message_ids: dict[str, tuple[int, float]] = field(default_factory=dict)
    """The sequence of each message ID, and when the server forgets the ID."""
    consumers: dict[str, ConsumerState] = field(default_factory=dict)
    is_full: Callable[[], bool] = lambda: False
    """Whether the stream rejects the next message that it does not recognize as a duplicate."""

    def on_subject(self, pattern: str) -> list[StreamMessage]:
        return [each for each in self.messages.values() if subject_matches(pattern, each.subject)]

    def last_on(self, subject: str) -> StreamMessage | None:
        return max(self.on_subject(subject), key=lambda each: each.sequence, default=None)


class InMemoryNats:
    """The server. All connections of a test share it."""

    def __init__(self) -> None:
        self.streams: dict[str, StreamContent] = {}
        self.connections: list[InMemoryConnection] = []
        self.stored_listeners: list[Callable[[InMemoryConnection, StreamMessage, StreamMessage | None], None]] = []
        """Called with every stored message, its sender, and the message of the same subject that it replaces."""
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()

    def now(self) -> datetime:
        return SERVER_EPOCH + timedelta(seconds=self._loop.time() - self._started_at)

    def execute(self, sender: "InMemoryConnection", subject: str, data: bytes, headers: Mapping[str, str]) -> bytes:
        """Execute a request to JetStream and return the response. Raises NoResponders if no stream has the subject."""
        try:
            response = (
                self._execute_api(subject.removeprefix("$JS.API."), msgspec.json.decode(data or b"{}"))
                if subject.startswith("$JS.API.")
                else self._store(sender, subject, data, headers)
            )
        except ServerRejection as rejection:
            response = {"error": rejection.body}
        return msgspec.json.encode(response)

    def receive(
        self, sender: "InMemoryConnection", subject: str, data: bytes, headers: Mapping[str, str] | None, reply: str
    ) -> None:
        """Process a message that needs no response: an acknowledgement, a pull request, or a core NATS message."""
        if subject.startswith("$JS.ACK."):
            self._acknowledge(subject.split("."), data)
        elif subject.startswith("$JS.API.CONSUMER.MSG.NEXT."):
            self._add_pull(sender, subject.split(".")[-2:], msgspec.json.decode(data), reply)
        else:
            self.send_to_subscribers(subject, data, headers, reply)

    def send_to_subscribers(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> int:
        receivers = [
            (connection, each)
            for connection in self.connections
            for each in connection.subscriptions
            if subject_matches(each.subject, subject)
        ]
        for connection, subscription in receivers:
            connection.receive(subscription, subject, data, headers, reply)
        return len(receivers)

    def disconnect(self, connection: "InMemoryConnection") -> None:
        """Drop the pull requests of a connection. Its unacknowledged messages wait for their ack wait."""
        for stream in self.streams.values():
            for consumer in stream.consumers.values():
                consumer.pulls = [each for each in consumer.pulls if each.connection is not connection]

    def expire(self, stream_name: str, subject: str) -> None:
        """Delete the messages of a subject, as the server does after their maximum age."""
        stream = self.streams[stream_name]
        for each in stream.on_subject(subject):
            self._remove(stream, each.sequence)

    def has_stream(self, subject: str) -> bool:
        return any(subject_matches(each, subject) for s in self.streams.values() for each in s.config["subjects"])

    def _store(self, sender: "InMemoryConnection", subject: str, data: bytes, headers: Mapping[str, str]) -> Json:
        for name, stream in self.streams.items():
            if any(subject_matches(each, subject) for each in stream.config["subjects"]):
                return {"stream": name, **self._store_in(stream, sender, subject, data, headers)}
        raise NoResponders(f"no subscriber on {subject}")

    def _store_in(
        self,
        stream: StreamContent,
        sender: "InMemoryConnection",
        subject: str,
        data: bytes,
        headers: Mapping[str, str],
    ) -> Json:
        message_id, now = headers.get(MESSAGE_ID_HEADER, ""), self._loop.time()
        known, previous = stream.message_ids.get(message_id), stream.last_on(subject)
        _check_expected_sequence(headers, previous.sequence if previous else 0)
        if known and known[1] > now:
            return {"seq": known[0], "duplicate": True}
        limit = stream.config["max_msgs_per_subject"]
        existing = stream.on_subject(subject)
        if stream.is_full() or (stream.config.get("discard_new_per_subject") and 0 < limit <= len(existing)):
            raise ServerRejection(*STREAM_FULL)
        stream.last_sequence += 1
        message = StreamMessage(subject, stream.last_sequence, data, dict(headers), self.now())
        stream.messages[message.sequence] = message
        if message_id:
            window = stream.config["duplicate_window"] / NANOSECONDS
            stream.message_ids[message_id] = (message.sequence, now + window)
        if "Nats-Rollup" in headers or limit == 1:
            for each in existing:
                del stream.messages[each.sequence]
        for listener in self.stored_listeners:
            listener(sender, message, previous)
        self._republish(stream, message)
        for consumer in stream.consumers.values():
            self._deliver(stream, consumer)
        return {"seq": message.sequence}

    def _republish(self, stream: StreamContent, message: StreamMessage) -> None:
        if republish := stream.config.get("republish"):
            prefix = republish["src"].removesuffix(">")
            destination = republish["dest"].removesuffix(">") + message.subject.removeprefix(prefix)
            self.send_to_subscribers(destination, message.data)

    def _execute_api(self, command: str, body: Json) -> Json:  # noqa: PLR0911 - one case per command
        match command.split("."):
            case ["STREAM", "CREATE" | "UPDATE", name]:
                return self._create_stream(name, body)
            case ["STREAM", "INFO", name]:
                return self._stream_info(self._stream(name), body.get("subjects_filter", ""))
            case ["STREAM", "MSG", "GET", name]:
                return {"message": _message_json(_find_message(self._stream(name), body))}
            case ["STREAM", "MSG", "DELETE", name]:
                return self._delete_message(self._stream(name), body["seq"])
            case ["CONSUMER", "CREATE", stream, name, *_]:
                return self._create_consumer(self._stream(stream), name, body["config"])
            case ["CONSUMER", "INFO", stream, name]:
                return _consumer_info(self._stream(stream), self._consumer(stream, name))
            case ["CONSUMER", "DELETE", stream, name]:
                self._consumer(stream, name)
                del self._stream(stream).consumers[name]
                return {"success": True}
        raise NotImplementedError(command)

    def _stream(self, name: str) -> StreamContent:
        if name not in self.streams:
            raise ServerRejection(404, 10059, "stream not found")
        return self.streams[name]

    def _consumer(self, stream: str, name: str) -> ConsumerState:
        if name not in self._stream(stream).consumers:
            raise ServerRejection(404, 10014, "consumer not found")
        return self._stream(stream).consumers[name]

    def _create_stream(self, name: str, config: Json) -> Json:
        stream = self.streams.setdefault(name, StreamContent(config, f"{self.now().isoformat()}"))
        return self._stream_info(stream, "")

    def _stream_info(self, stream: StreamContent, pattern: str) -> Json:
        subjects: dict[str, int] = {}
        for each in stream.on_subject(pattern) if pattern else ():
            subjects[each.subject] = subjects.get(each.subject, 0) + 1
        state = {"subjects": subjects, "bytes": 0, "messages": len(stream.messages)}
        return {"config": stream.config, "created": stream.created, "state": state}

    def _delete_message(self, stream: StreamContent, sequence: int) -> Json:
        if sequence not in stream.messages:
            if sequence > stream.last_sequence:
                raise ServerRejection(500, 10057, "stream store EOF")
            raise ServerRejection(404, 10043, f"sequence {sequence} not found")
        self._remove(stream, sequence)
        return {"success": True}

    def _remove(self, stream: StreamContent, sequence: int) -> None:
        stream.messages.pop(sequence, None)
        for consumer in stream.consumers.values():
            consumer.due.pop(sequence, None)
            consumer.delivery_counts.pop(sequence, None)

    def _create_consumer(self, stream: StreamContent, name: str, config: Json) -> Json:
        consumer = stream.consumers.setdefault(name, ConsumerState(config))
        return _consumer_info(stream, consumer)

    def _add_pull(self, sender: "InMemoryConnection", path: list[str], pull: Json, reply: str) -> None:
        stream, name = path
        try:
            consumer = self._consumer(stream, name)
        except ServerRejection:
            sender.receive_status(reply, {"Status": "503"})
            return
        now = self._loop.time()
        request = PullRequest(sender, reply, pull["batch"], now + pull["expires"] / NANOSECONDS)
        consumer.pulls.append(request)
        self._deliver(self.streams[stream], consumer)
        self._keep_alive(consumer, request, pull["idle_heartbeat"] / NANOSECONDS)

    def _keep_alive(self, consumer: ConsumerState, request: PullRequest, interval: float) -> None:
        """Send heartbeats for an open pull request, and end the request when it expires."""
        if request not in consumer.pulls:
            return
        if self._loop.time() >= request.expires_at:
            consumer.pulls.remove(request)
            headers = {"Status": "408", "Nats-Pending-Messages": str(request.remaining)}
            request.connection.receive_status(request.reply, headers)
            return
        request.connection.receive_status(request.reply, {"Status": "100"})
        self._loop.call_later(interval, self._keep_alive, consumer, request, interval)

    def _deliver(self, stream: StreamContent, consumer: ConsumerState) -> None:
        """Deliver messages to the waiting pull requests: redeliveries that are due first, then new messages."""
        while consumer.pulls and (message := self._next_delivery(stream, consumer)) is not None:
            self._send(stream, consumer, consumer.pulls[0], message)
            if consumer.pulls[0].remaining == 0:
                consumer.pulls.pop(0)

    def _next_delivery(self, stream: StreamContent, consumer: ConsumerState) -> StreamMessage | None:
        now = self._loop.time()
        for sequence, due in sorted(consumer.due.items(), key=lambda each: each[1]):
            if due <= now and sequence in stream.messages:
                return stream.messages[sequence]
        pattern = consumer.config["filter_subject"] or ">"
        new = [each for each in stream.on_subject(pattern) if each.sequence >= consumer.next_sequence]
        if not new:
            return None
        first = min(new, key=lambda each: each.sequence)
        consumer.next_sequence = first.sequence + 1
        return first

    def _send(self, stream: StreamContent, consumer: ConsumerState, pull: PullRequest, message: StreamMessage) -> None:
        sequence = message.sequence
        consumer.delivered += 1
        count = consumer.delivery_counts[sequence] = consumer.delivery_counts.get(sequence, 0) + 1
        self._redeliver_at(stream, consumer, sequence, self._loop.time() + consumer.ack_wait)
        pull.remaining -= 1
        timestamp = round(message.time.timestamp() * 1000) * 1_000_000
        name = f"{stream.config['name']}.{consumer.config['name']}"
        ack_subject = f"$JS.ACK.{name}.{count}.{sequence}.{consumer.delivered}.{timestamp}.0"
        pull.connection.receive_delivery(pull.reply, message, ack_subject)

    def _redeliver_at(self, stream: StreamContent, consumer: ConsumerState, sequence: int, due: float) -> None:
        consumer.due[sequence] = due
        self._loop.call_at(due, self._deliver, stream, consumer)

    def _acknowledge(self, tokens: list[str], data: bytes) -> None:
        stream, sequence = self.streams[tokens[2]], int(tokens[5])
        consumer = stream.consumers.get(tokens[3])
        if consumer is None or sequence not in consumer.due:
            return
        match data[:4]:
            case b"+ACK" | b"+TER":
                self._remove(stream, sequence)
            case b"-NAK":
                delay = msgspec.json.decode(data[4:])["delay"] / NANOSECONDS if len(data) > 4 else 0.0
                self._redeliver_at(stream, consumer, sequence, self._loop.time() + delay)
            case b"+WPI":
                self._redeliver_at(stream, consumer, sequence, self._loop.time() + consumer.ack_wait)


class NoFaults:
    """A network without latency. Subclasses add latency and faults."""

    def latency(self, _connection: "InMemoryConnection") -> float:
        return 0.0

    def before_request(self, _connection: "InMemoryConnection", _subject: str) -> None:
        """Called before the server executes a request. May kill the process of the connection."""

    def loses_acknowledgement(self, _connection: "InMemoryConnection") -> bool:
        return False

    def after_acknowledgement(self, _connection: "InMemoryConnection") -> None:
        """Called after the server has received an acknowledgement. May kill the process of the connection."""

    def loses_reply(self, _connection: "InMemoryConnection", _subject: str) -> bool:
        """Called after the server has executed a request. May kill the process of the connection."""
        return False


class InMemoryConnection:
    """One process's connection. It has the methods of NatsConnection that the product uses."""

    def __init__(self, server: InMemoryNats, name: str, network: NoFaults | None = None) -> None:
        self.server, self.name, self.network = server, name, network or NoFaults()
        self.options = ConnectionOptions(("nats://in-memory",), request_timeout=5)
        self.subscriptions: list[Subscription] = []
        self.connected, self.dead = True, False
        self._listeners: list[ConnectionListener] = []
        self._inbox = Inbox()
        self._sent_until = self._received_until = 0.0
        self._loop = asyncio.get_running_loop()
        self.subscriptions.append(Subscription(self._inbox.subject, self._inbox.receive))
        server.connections.append(self)

    def problem(self) -> str | None:
        return None

    def kill(self) -> None:
        """End the connection, as the death of its process does."""
        self.dead, self.connected = True, False
        self.server.connections.remove(self)
        self.server.disconnect(self)

    def set_connected(self, connected: bool) -> None:
        """Lose or restore the connection. While it is lost, nothing arrives in either direction."""
        if self.dead or self.connected is connected:
            return
        self.connected = connected
        if connected:
            self.server.connections.append(self)
        else:
            self.server.connections.remove(self)
            self.server.disconnect(self)
            self._inbox.fail_pending("connection lost")
        for listener in tuple(self._listeners):
            listener(connected)

    def add_listener(self, listener: ConnectionListener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        await self._wait_connected(timeout_seconds or self.options.request_timeout)
        self._loop.call_at(self._arrival(), self._deliver_to_server, subject, data, headers, reply)

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Msg:
        timeout = timeout_seconds or self.options.request_timeout
        await self._wait_connected(timeout)
        with self._inbox.expect() as expected:
            self._loop.call_at(self._arrival(), self._request, subject, data, headers or {}, expected.subject)
            try:
                async with asyncio.timeout(timeout):
                    reply = await expected.reply
            except TimeoutError:
                raise NatsUnreachable(f"no reply on {subject} within {timeout:g} s", sent=True) from None
        if not reply.data and reply.headers and reply.headers.get("Status") == "503":
            raise NoResponders(f"no subscriber on {subject}")
        return reply

    async def subscribe(self, subject: str, callback: MessageCallback, queue_group: str = "") -> Subscription:
        await self._wait_connected(self.options.request_timeout)
        subscription = Subscription(subject, callback, queue_group)
        self.subscriptions.append(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self.subscriptions:
            self.subscriptions.remove(subscription)

    @asynccontextmanager
    async def subscribed(self, subject: str, callback: MessageCallback, queue_group: str = "") -> AsyncIterator[None]:
        subscription = await self.subscribe(subject, callback, queue_group)
        try:
            yield
        finally:
            await self.unsubscribe(subscription)

    def receive(
        self, subscription: Subscription, subject: str, data: bytes, headers: Mapping[str, str] | None, reply: str
    ) -> None:
        """Deliver a message to a subscription after the latency of the network."""
        message = Msg(cast(Any, None), subject, reply, data, dict(headers) if headers else None)
        self._received_until = max(
            self._received_until + 1e-9, self._loop.time() + self.network.latency(self)
        )  # in order, as in a TCP connection
        self._loop.call_at(self._received_until, self._call_back, subscription, message)

    def receive_delivery(self, inbox: str, message: StreamMessage, ack_subject: str) -> None:
        for each in self._subscriptions_on(inbox):
            received = Msg(cast(Any, None), message.subject, ack_subject, message.data, dict(message.headers))
            self._loop.call_later(self.network.latency(self), self._call_back, each, received)

    def receive_status(self, inbox: str, headers: Mapping[str, str]) -> None:
        for each in self._subscriptions_on(inbox):
            self.receive(each, inbox, b"", headers, "")

    def _subscriptions_on(self, subject: str) -> list[Subscription]:
        return [each for each in self.subscriptions if subject_matches(each.subject, subject)]

    def _call_back(self, subscription: Subscription, message: Msg) -> None:
        if self.connected and subscription in self.subscriptions:
            subscription.callback(message)

    def _arrival(self) -> float:
        self._sent_until = max(self._sent_until + 1e-9, self._loop.time() + self.network.latency(self))
        return self._sent_until

    def _deliver_to_server(self, subject: str, data: bytes, headers: Mapping[str, str] | None, reply: str) -> None:
        is_ack = subject.startswith("$JS.ACK.")
        if self.connected and not (is_ack and self.network.loses_acknowledgement(self)):
            self.server.receive(self, subject, data, headers, reply)
            if is_ack:
                self.network.after_acknowledgement(self)

    def _request(self, subject: str, data: bytes, headers: Mapping[str, str], reply: str) -> None:
        if self.connected:
            self.network.before_request(self, subject)
        if not self.connected:
            return
        if subject.startswith("$JS.API.") or self.server.has_stream(subject):
            response = self.server.execute(self, subject, data, headers)
            if not self.network.loses_reply(self, subject):
                self.server.send_to_subscribers(reply, response)
        elif not self.server.send_to_subscribers(subject, data, headers, reply):
            self.receive_status(reply, {"Status": "503"})

    async def _wait_connected(self, timeout_seconds: float) -> None:
        if self.dead:  # a dead process executes nothing more
            raise asyncio.CancelledError
        waited = 0.0
        while not self.connected:
            if waited >= timeout_seconds:
                raise NatsUnreachable("not connected to NATS", sent=False)
            await asyncio.sleep(0.1)
            waited += 0.1


def subject_matches(pattern: str, subject: str) -> bool:
    if pattern == subject:
        return True
    for part, token in itertools.zip_longest(pattern.split("."), subject.split(".")):
        if part == ">":
            return token is not None
        if part != token and (part != "*" or token is None):
            return False
    return True


def _check_expected_sequence(headers: Mapping[str, str], last: int) -> None:
    expected = headers.get(EXPECTED_LAST_SEQUENCE_HEADER)
    if expected is not None and int(expected) != last:
        raise ServerRejection(400, 10071, f"wrong last sequence: {last}")


def _find_message(stream: StreamContent, query: Json) -> StreamMessage:
    if "last_by_subj" in query:
        found = stream.last_on(query["last_by_subj"])
    else:
        later = [each for each in stream.on_subject(query["next_by_subj"]) if each.sequence >= query["seq"]]
        found = min(later, key=lambda each: each.sequence, default=None)
    if found is None:
        raise ServerRejection(404, 10037, "no message found")
    return found


def _message_json(message: StreamMessage) -> Json:
    lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
    return {
        "subject": message.subject,
        "seq": message.sequence,
        "data": base64.b64encode(message.data).decode(),
        "hdrs": base64.b64encode(f"NATS/1.0\r\n{lines}\r\n".encode()).decode(),
        "time": message.time.isoformat(),
    }


def _consumer_info(stream: StreamContent, consumer: ConsumerState) -> Json:
    pattern = consumer.config["filter_subject"] or ">"
    waiting = [each for each in stream.on_subject(pattern) if each.sequence >= consumer.next_sequence]
    unacknowledged = min(consumer.due, default=consumer.next_sequence)
    return {
        "config": consumer.config,
        "num_pending": len(waiting),
        "num_ack_pending": len(consumer.due),
        "num_waiting": len(consumer.pulls),
        "ack_floor": {"stream_seq": unacknowledged - 1},
    }


def bucket_values(server: InMemoryNats, bucket_stream: str) -> dict[str, bytes]:
    """Return the last value of each key that is not purged."""
    messages = server.streams[bucket_stream].messages.values()
    return {each.subject.rpartition(".")[2]: each.data for each in messages if OPERATION_HEADER not in each.headers}
