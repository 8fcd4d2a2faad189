"""Random messages on every subject: no process fails, undecodable ones become dead letters, and invocations work."""

import base64
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpu_runtime.contract.messages.dead_letter import MAX_DEAD_LETTER_DATA_BYTES, DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import DrainRequest
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER
from gpu_runtime.contract.messages.message_codec import Message, MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from localcluster.supervisor_client import wait_until
from tests.fuzz.fuzz_settings import fuzzed
from tests.fuzz.raw_nats import RawNats, raw_nats
from tests.fuzz.seed_corpus import (
    DEAD_LETTER,
    DISPATCH,
    EVENT,
    FUNCTION,
    FUNCTION_ID,
    GET_RESULT,
    INVOCATION,
    LIST_RESULTS,
    POD_UID,
    RECORD,
    RESULT,
    TICKET,
)
from tests.fuzz.serverless_processes import WatchedProcess, new_failures, running_serverless
from tests.fuzz.strategies import encode_json, message_bytes, texts
from tests.integration.runtime_api.live_platform import TOKEN, LivePlatform

TOPOLOGY = StreamTopology()
PREFIX = TOPOLOGY.subjects.prefix
MESSAGE_TYPES: dict[str, type[Message]] = {"invoke": Invocation, "dispatch": Dispatch, "result": Result}
STREAMS = {stream.value: TOPOLOGY.stream_name(stream) for stream in Stream}
TICKET_LINE = f"{TICKET_HEADER}: {TICKET}".encode()
BATCH_SIZE = 60
"""The number of messages in one example."""


@dataclass(frozen=True)
class PublishedMessage:
    subject: str
    data: bytes
    headers: bytes = b""

    def with_function_id(self, function_id: str) -> "PublishedMessage":
        """The message with this functionID instead of FUNCTION_ID."""
        data = self.data.replace(FUNCTION_ID.encode(), function_id.encode())
        return PublishedMessage(self.subject.replace(FUNCTION_ID, function_id), data, self.headers)

    @property
    def is_poison(self) -> bool:
        """Whether a stream stores it and its consumer dead-letters it, because it cannot be decoded.

        The result store ignores messages without a valid ticket.
        """
        kind = self.subject.removeprefix(f"{PREFIX}.").split(".")[0]
        if kind == "result" and not self.headers.endswith(TICKET_LINE):
            return False
        model = MESSAGE_TYPES.get(kind)
        return model is not None and not _is_decodable(self.data, model)


def _is_decodable(data: bytes, model: type[Message]) -> bool:
    try:
        decode(data, model)
    except MessageDecodeError:
        return False
    return True


def with_future_deadline(document: dict[str, object]) -> dict[str, object]:
    """The invocation with a deadline in the future, so that it is processed and does not only expire."""
    return document | {"enqueuedAt": None, "timeoutSeconds": 5.0, "mode": "async", "replyTo": ""}


FUNCTIONS = st.sampled_from([FUNCTION_ID, FUNCTION_ID, FUNCTION_ID, "absent", "NOT-A-FUNCTION", "a$b"])
IDS = st.one_of(st.sampled_from(["inv-1", "inv-2"]), st.uuids().map(str))
NAMES = st.sampled_from(["Gpu-Runtime-Revision", "Gpu-Runtime-Record", "X", "Status", "Nats-Nothing"])
VALUES = st.one_of(
    texts().map(lambda text: text.encode(errors="replace")),
    st.sampled_from([b"1", b"-1", b"9" * 5000, b"18446744073709551616", encode_json(RECORD), b"\xff\xfe", b"[" * 3000]),
)
LINES = st.tuples(NAMES, VALUES).map(lambda line: line[0].encode() + b": " + line[1].replace(b"\n", b""))
TICKET_LINES = st.sampled_from([[], [TICKET_LINE]])
HEADERS = st.builds(
    lambda lines, ticket: b"\r\n".join([*(line.replace(b"\r", b"") for line in lines), *ticket]),
    st.lists(LINES, max_size=3),
    TICKET_LINES,
)


def messages_on_subject(
    kind: str, tokens: SearchStrategy[str], data: SearchStrategy[bytes]
) -> SearchStrategy[PublishedMessage]:
    return st.builds(
        lambda token, data, headers: PublishedMessage(f"{PREFIX}.{kind}.{token}", data, headers), tokens, data, HEADERS
    )


INVOKED = message_bytes([INVOCATION, with_future_deadline(INVOCATION)])
DISPATCHED = message_bytes([DISPATCH, DISPATCH | {"invocation": with_future_deadline(INVOCATION)}])
DEAD_LETTER_SUBJECTS = st.tuples(st.sampled_from(list(MESSAGE_TYPES)), FUNCTIONS).map(".".join)
EVENT_SUBJECTS = st.tuples(FUNCTIONS, st.sampled_from(["unknown-pod", POD_UID, "A$b"])).map(".".join)
BUCKET = TOPOLOGY.record_bucket.name
FORGED_IDS = ("forged-1", "forged-2", "a=b", "x" * 128)
MESSAGES = st.one_of(
    messages_on_subject("invoke", FUNCTIONS, INVOKED),
    messages_on_subject("dispatch", FUNCTIONS, DISPATCHED),
    messages_on_subject("result", FUNCTIONS, message_bytes([RESULT])),
    messages_on_subject("dlq", DEAD_LETTER_SUBJECTS, message_bytes([DEAD_LETTER])),
    messages_on_subject("events", EVENT_SUBJECTS, message_bytes([EVENT])),
    messages_on_subject("demand", FUNCTIONS, st.binary(max_size=40)),
    messages_on_subject("cancel", FUNCTIONS, st.one_of(st.binary(max_size=40), IDS.map(str.encode))),
    # Only undecodable drain requests: a valid one would drain the worker.
    messages_on_subject(
        "control",
        st.just(POD_UID),
        message_bytes([{"version": 2}]).filter(lambda data: not _is_decodable(data, DrainRequest)),
    ),
    messages_on_subject(
        "query", st.sampled_from(["result", "results", "nothing"]), message_bytes([GET_RESULT, LIST_RESULTS])
    ),
    # Only records of invocations without results: a result waits until its record is decodable or expires.
    st.builds(
        lambda key, data: PublishedMessage(f"$KV.{BUCKET}.{key}", data),
        st.sampled_from(FORGED_IDS),
        message_bytes([RECORD]),
    ),
)


@dataclass(frozen=True)
class ServerlessTarget:
    platform: LivePlatform
    nats: RawNats
    watched: list[WatchedProcess]
    function_id: str
    sent: Counter[str]

    def send_all(self, batch: list[PublishedMessage]) -> list[PublishedMessage]:
        """Send the messages with the functionID of the running function, and return them."""
        real = [each.with_function_id(self.function_id) for each in batch]
        for message in real:
            self.send(message)
        self.nats.flush()
        return real

    def send(self, message: PublishedMessage) -> None:
        self.sent[message.subject.removeprefix(f"{PREFIX}.").split(".")[0]] += 1
        self.nats.publish(message.subject, message.data, message.headers, reply="_INBOX.unused")

    def backlogs(self) -> dict[str, int]:
        return {
            stream: self.nats.jetstream_request(f"STREAM.INFO.{name}")["state"]["messages"]
            for stream, name in STREAMS.items()
        }

    def pop_dead_letters(self) -> set[bytes]:
        """Return the original data of all dead letters, and purge their stream."""
        stream, originals, sequence = TOPOLOGY.dead_letter_stream.name, set(), 1
        while "message" in (
            response := self.nats.jetstream_request(
                f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": f"{PREFIX}.dlq.>"}
            )
        ):
            sequence = response["message"]["seq"] + 1
            data = base64.b64decode(response["message"].get("data", ""))
            if _is_decodable(data, DeadLetter):
                originals.add(decode(data, DeadLetter).data)
        self.nats.jetstream_request(f"STREAM.PURGE.{stream}", {})
        return originals

    def request(self, path: str, method: str = "GET", *, forged: bool = False) -> int:
        """Send a request and return its status, which must not be 5xx.

        The API returns 503 for an undecodable record, because a newer version may have written it.
        """
        reply = self.platform.shared_replicas[0].request(f"/api/v1/{path}", method, None, TOKEN, timeout=30)
        undecodable = forged and reply.status == 503 and "cannot read this" in reply.json["error"]["message"]
        assert undecodable or 0 < reply.status < 500, (method, path, reply.json)
        return reply.status

    def can_invoke(self) -> bool:
        call = {"invocationID": str(uuid.uuid4()), "serverlessRequestID": FUNCTION, "mode": "sync", "payload": {"n": 1}}
        reply = self.platform.shared_replicas[0].request(
            "/api/v1/serverless/invocations", "POST", call, TOKEN, timeout=40
        )
        return bool(reply.status == 200 and reply.json["data"].get("payload") == {"n": 1})


@pytest.fixture(scope="module")
def serverless_target(platform: LivePlatform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerlessTarget]:
    folder = tmp_path_factory.mktemp("serverless")
    with running_serverless(platform, folder) as (watched, function_id), raw_nats(platform.nats_account) as nats:
        target = ServerlessTarget(platform, nats, watched, function_id, Counter())
        wait_until(target.can_invoke, 60, lambda: f"no invocation succeeds: {new_failures(watched)}")
        yield target
        print(dict(target.sent))


POISON = [
    PublishedMessage(f"{PREFIX}.invoke.absent", b"", b"Status: 404"),
    PublishedMessage(f"{PREFIX}.invoke.{FUNCTION_ID}", b'{"version":1,"invocationID":"\xff"}'),
    PublishedMessage(f"{PREFIX}.invoke.{FUNCTION_ID}", b'{"version":1,"x":' + b"[" * 5000),
    PublishedMessage(f"{PREFIX}.invoke.{FUNCTION_ID}", encode_json(INVOCATION | {"timeoutSeconds": 1e300})),
    PublishedMessage(f"{PREFIX}.invoke.{FUNCTION_ID}", b"\xff" * 1_000_000),
    PublishedMessage(f"{PREFIX}.dispatch.{FUNCTION_ID}", b"\xff" * 1_000_000),
    PublishedMessage(f"{PREFIX}.dispatch.{FUNCTION_ID}", b'{"invocation":{"invocationID":"\xff"}}'),
    PublishedMessage(f"{PREFIX}.dispatch.absent", encode_json(DISPATCH | {"deadline": "9999-12-31T23:59:59-23:59"})),
    PublishedMessage(f"{PREFIX}.result.{FUNCTION_ID}", b"\xff" * 1_000_000),
    PublishedMessage(f"{PREFIX}.result.{FUNCTION_ID}", b"\xff" * 1_000_000, TICKET_LINE),
    PublishedMessage(
        f"{PREFIX}.invoke.{FUNCTION_ID}",
        encode_json(with_future_deadline(INVOCATION)),
        b"Gpu-Runtime-Revision: " + b"9" * 5000,
    ),
]


@fuzzed(240, BATCH_SIZE, shrinks=False)
@given(st.lists(MESSAGES, min_size=BATCH_SIZE, max_size=BATCH_SIZE))
@example(POISON)
def test_processing_continues_after_any_message(
    serverless_target: ServerlessTarget, batch: list[PublishedMessage]
) -> None:
    batch = serverless_target.send_all(batch)
    wait_until(
        lambda: not any(serverless_target.backlogs().values()),
        60,
        lambda: f"{serverless_target.backlogs()} {new_failures(serverless_target.watched)}",
    )
    dead_lettered = serverless_target.pop_dead_letters()
    lost = [each for each in batch if each.is_poison and each.data[:MAX_DEAD_LETTER_DATA_BYTES] not in dead_lettered]
    assert lost == []
    assert serverless_target.can_invoke()
    assert serverless_target.request(f"serverless/invocations?serverlessRequestID={FUNCTION}") == 200
    assert serverless_target.request("operator/dead-letters") == 200
    for id_ in ("inv-1", "inv-2", "forged-1", "forged-2"):
        serverless_target.request(f"serverless/invocations/{id_}", forged=id_ in FORGED_IDS)
        serverless_target.request(f"serverless/invocations/{id_}", "DELETE", forged=id_ in FORGED_IDS)
    assert new_failures(serverless_target.watched) == []


@fuzzed(180, BATCH_SIZE, shrinks=False)
@given(
    st.lists(
        messages_on_subject("dlq", DEAD_LETTER_SUBJECTS, message_bytes([DEAD_LETTER])),
        min_size=BATCH_SIZE,
        max_size=BATCH_SIZE,
    )
)
@example(
    [
        PublishedMessage(
            f"{PREFIX}.dlq.result.{FUNCTION_ID}",
            encode_json(DEAD_LETTER | {"source": "result", "subject": "two words"}),
        )
    ]
)
@example(
    [
        PublishedMessage(
            f"{PREFIX}.dlq.result.{FUNCTION_ID}",
            encode_json(DEAD_LETTER | {"source": "result", "headers": {"a b": "\n"}}),
        )
    ]
)
def test_forged_dead_letters_can_be_read_redriven_and_deleted(
    serverless_target: ServerlessTarget, batch: list[PublishedMessage]
) -> None:
    serverless_target.send_all(batch)
    reply = serverless_target.platform.shared_replicas[0].request(
        "/api/v1/operator/dead-letters?limit=500", token=TOKEN
    )
    assert reply.status == 200, reply.json
    for letter in {each["id"]: each for each in reply.json["data"]}.values():
        for verb, path in (("GET", ""), ("POST", "/redrive"), ("DELETE", "")):
            serverless_target.request(f"operator/dead-letters/{letter['id']}{path}", verb)
    wait_until(
        lambda: not any(serverless_target.backlogs().values()),
        60,
        lambda: f"{serverless_target.backlogs()} {new_failures(serverless_target.watched)}",
    )
    serverless_target.pop_dead_letters()
    assert serverless_target.can_invoke()
    assert new_failures(serverless_target.watched) == []
