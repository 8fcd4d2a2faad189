"""Whatever somebody sends on any subject: every process survives, poison ends as a dead letter, and work goes on."""

import base64
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpu_runtime.contract.messages.dead_letter import DATA_LIMIT, DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import Drain
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import Message, Unreadable, decode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import Queue
from localcluster.supervisor_client import wait_until
from tests.fuzz.cases import fuzzed
from tests.fuzz.nasty import encoded, messages, texts
from tests.fuzz.processes import Watched, complaints, serverless_plane
from tests.fuzz.raw_nats import RawNats, raw_nats
from tests.fuzz.samples import (
    DISPATCH,
    EVENT,
    FIND,
    FUNCTION,
    INSTANCE,
    INVOCATION,
    LETTER,
    LIST,
    RECORD,
    RESULT,
)
from tests.integration.runtime_api.live import TOKEN, Platform

TOPOLOGY = Topology()
PREFIX = TOPOLOGY.subjects.prefix
QUEUES: dict[str, type[Message]] = {"invoke": Invocation, "dispatch": Dispatch, "result": Result}
STREAMS = {queue.value: TOPOLOGY.stream_name(queue) for queue in Queue}
AT_ONCE = 60
"""Messages of one example."""


@dataclass(frozen=True)
class Sent:
    subject: str
    data: bytes
    headers: bytes = b""

    @property
    def is_poison(self) -> bool:
        """Whether it lies in a queue and is no message of that queue."""
        model = QUEUES.get(self.subject.removeprefix(f"{PREFIX}.").split(".")[0])
        return model is not None and not _reads(self.data, model)


def _reads(data: bytes, model: type[Message]) -> bool:
    try:
        decode(data, model)
    except Unreadable:
        return False
    return True


def living(document: dict[str, object]) -> dict[str, object]:
    """With a time that is not over, so that it is not only ended at once."""
    return document | {"enqueuedAt": None, "timeoutSeconds": 5.0, "mode": "async", "replyTo": ""}


FUNCTIONS = st.sampled_from([FUNCTION, FUNCTION, FUNCTION, "nobody", "NOT-A-FUNCTION", "a$b"])
IDS = st.one_of(st.sampled_from(["inv-1", "inv-2"]), st.uuids().map(str))
NAMES = st.sampled_from(["Gpu-Runtime-Revision", "Gpu-Runtime-Record", "X", "Status", "Nats-Nothing"])
VALUES = st.one_of(
    texts().map(lambda text: text.encode(errors="replace")),
    st.sampled_from([b"1", b"-1", b"9" * 5000, b"18446744073709551616", encoded(RECORD), b"\xff\xfe", b"[" * 3000]),
)
LINES = st.tuples(NAMES, VALUES).map(lambda line: line[0].encode() + b": " + line[1].replace(b"\n", b""))
HEADERS = st.lists(LINES, max_size=3).map(lambda lines: b"\r\n".join(line.replace(b"\r", b"") for line in lines))


def on(kind: str, tokens: SearchStrategy[str], data: SearchStrategy[bytes]) -> SearchStrategy[Sent]:
    return st.builds(
        lambda token, data, headers: Sent(f"{PREFIX}.{kind}.{token}", data, headers), tokens, data, HEADERS
    )


INVOKED = messages([INVOCATION, living(INVOCATION)])
DISPATCHED = messages([DISPATCH, DISPATCH | {"invocation": living(INVOCATION)}])
LETTERS = st.tuples(st.sampled_from(list(QUEUES)), FUNCTIONS).map(".".join)
BUCKET = TOPOLOGY.state.name
FORGED = ("forged-1", "forged-2", "a=b", "x" * 128)
MESSAGES = st.one_of(
    on("invoke", FUNCTIONS, INVOKED),
    on("dispatch", FUNCTIONS, DISPATCHED),
    on("result", FUNCTIONS, messages([RESULT])),
    on("dlq", LETTERS, messages([LETTER])),
    on("events", FUNCTIONS, messages([EVENT])),
    on("demand", FUNCTIONS, st.binary(max_size=40)),
    on("cancel", FUNCTIONS, st.one_of(st.binary(max_size=40), IDS.map(str.encode))),
    # One that can be read would drain the worker, which is what it is for.
    on("control", st.just(INSTANCE), messages([{"version": 2}]).filter(lambda data: not _reads(data, Drain))),
    on("query", st.sampled_from(["result", "results", "nothing"]), messages([FIND, LIST])),
    # Not of invocations that have results: those wait until their record can be read, or its time is over.
    st.builds(lambda key, data: Sent(f"$KV.{BUCKET}.{key}", data), st.sampled_from(FORGED), messages([RECORD])),
)


@dataclass(frozen=True)
class Plane:
    platform: Platform
    nats: RawNats
    watched: list[Watched]
    sent: Counter[str]

    def send(self, message: Sent) -> None:
        self.sent[message.subject.removeprefix(f"{PREFIX}.").split(".")[0]] += 1
        self.nats.publish(message.subject, message.data, message.headers, reply="_INBOX.nobody")

    def waiting(self) -> dict[str, int]:
        return {queue: self.nats.call(f"STREAM.INFO.{name}")["state"]["messages"] for queue, name in STREAMS.items()}

    def buried(self) -> set[bytes]:
        """What the dead letters hold, which then are thrown away."""
        stream, found, number = TOPOLOGY.dead_letters.name, set(), 1
        while "message" in (
            answer := self.nats.call(f"STREAM.MSG.GET.{stream}", {"seq": number, "next_by_subj": f"{PREFIX}.dlq.>"})
        ):
            number = answer["message"]["seq"] + 1
            data = base64.b64decode(answer["message"].get("data", ""))
            if _reads(data, DeadLetter):
                found.add(decode(data, DeadLetter).data)
        self.nats.call(f"STREAM.PURGE.{stream}", {})
        return found

    def ask(self, path: str, method: str = "GET", *, forged: bool = False) -> int:
        """What is answered. That a forged record cannot be read is said with 503, since it may be a newer version's."""
        reply = self.platform.standing[0].ask(f"/api/v1/{path}", method, None, TOKEN, timeout=30)
        unread = forged and reply.status == 503 and "cannot read this" in reply.json["error"]["message"]
        assert unread or 0 < reply.status < 500, (method, path, reply.json)
        return reply.status

    def works(self) -> bool:
        call = {"invocationID": str(uuid.uuid4()), "serverlessRequestID": FUNCTION, "mode": "sync", "payload": {"n": 1}}
        reply = self.platform.standing[0].ask("/api/v1/serverless/invocations", "POST", call, TOKEN, timeout=40)
        return bool(reply.status == 200 and reply.json["data"].get("payload") == {"n": 1})


@pytest.fixture(scope="module")
def plane(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("plane")
    with serverless_plane(platform, folder) as watched, raw_nats(platform.nats) as nats:
        made = Plane(platform, nats, watched, Counter())
        wait_until(made.works, 60, lambda: f"no call is answered: {complaints(watched)}")
        yield made
        print(dict(made.sent))


POISON = [
    Sent(f"{PREFIX}.invoke.nobody", b"", b"Status: 404"),
    Sent(f"{PREFIX}.invoke.{FUNCTION}", b'{"version":1,"invocationID":"\xff"}'),
    Sent(f"{PREFIX}.invoke.{FUNCTION}", b'{"version":1,"x":' + b"[" * 5000),
    Sent(f"{PREFIX}.invoke.{FUNCTION}", encoded(INVOCATION | {"timeoutSeconds": 1e300})),
    Sent(f"{PREFIX}.invoke.{FUNCTION}", b"\xff" * 1_000_000),
    Sent(f"{PREFIX}.dispatch.{FUNCTION}", b"\xff" * 1_000_000),
    Sent(f"{PREFIX}.dispatch.{FUNCTION}", b'{"invocation":{"invocationID":"\xff"}}'),
    Sent(f"{PREFIX}.dispatch.nobody", encoded(DISPATCH | {"deadline": "9999-12-31T23:59:59-23:59"})),
    Sent(f"{PREFIX}.result.{FUNCTION}", b"\xff" * 1_000_000),
    Sent(f"{PREFIX}.invoke.{FUNCTION}", encoded(living(INVOCATION)), b"Gpu-Runtime-Revision: " + b"9" * 5000),
]


@fuzzed(240, AT_ONCE, shrinks=False)
@given(st.lists(MESSAGES, min_size=AT_ONCE, max_size=AT_ONCE))
@example(POISON)
def test_whatever_is_sent_work_goes_on(plane: Plane, batch: list[Sent]) -> None:
    for message in batch:
        plane.send(message)
    plane.nats.flush()
    wait_until(lambda: not any(plane.waiting().values()), 60, lambda: f"{plane.waiting()} {complaints(plane.watched)}")
    buried = plane.buried()
    lost = [each for each in batch if each.is_poison and each.data[:DATA_LIMIT] not in buried]
    assert lost == []
    assert plane.works()
    assert plane.ask(f"serverless/invocations?serverlessRequestID={FUNCTION}") == 200
    assert plane.ask("operator/dead-letters") == 200
    for id_ in ("inv-1", "inv-2", "forged-1", "forged-2"):
        plane.ask(f"serverless/invocations/{id_}", forged=id_ in FORGED)
        plane.ask(f"serverless/invocations/{id_}", "DELETE", forged=id_ in FORGED)
    assert complaints(plane.watched) == []


@fuzzed(180, AT_ONCE, shrinks=False)
@given(st.lists(on("dlq", LETTERS, messages([LETTER])), min_size=AT_ONCE, max_size=AT_ONCE))
@example([Sent(f"{PREFIX}.dlq.result.{FUNCTION}", encoded(LETTER | {"source": "result", "subject": "two words"}))])
@example([Sent(f"{PREFIX}.dlq.result.{FUNCTION}", encoded(LETTER | {"source": "result", "headers": {"a b": "\n"}}))])
def test_forged_dead_letters_are_looked_at_sent_again_and_thrown_away(plane: Plane, batch: list[Sent]) -> None:
    for message in batch:
        plane.send(message)
    plane.nats.flush()
    reply = plane.platform.standing[0].ask("/api/v1/operator/dead-letters?limit=500", token=TOKEN)
    assert reply.status == 200, reply.json
    for letter in {each["id"]: each for each in reply.json["data"]}.values():
        if letter["id"].isascii() and letter["id"].replace("-", "").isalnum():
            for verb, path in (("GET", ""), ("POST", "/redrive"), ("DELETE", "")):
                plane.ask(f"operator/dead-letters/{letter['id']}{path}", verb)
    wait_until(lambda: not any(plane.waiting().values()), 60, lambda: f"{plane.waiting()} {complaints(plane.watched)}")
    plane.buried()
    assert plane.works()
    assert complaints(plane.watched) == []
