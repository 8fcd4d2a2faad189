"""Messages survive encoding and decoding, and undecodable messages are rejected with a reason."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import Rejected, TooLarge
from gpu_runtime.contract.messages.dead_letter import UNKNOWN_ID, DeadLetter, DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, invocation_id_errors
from gpu_runtime.contract.messages.invocation_messages import dead_lettered_result, invocation_hash
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
)
from gpu_runtime.contract.messages.invocation_ticket import worker_message_id
from gpu_runtime.contract.messages.limits import (
    MAX_METADATA_BYTES,
    MAX_PAYLOAD_BYTES,
    check_body,
    metadata_errors,
    truncate_text,
)
from gpu_runtime.contract.messages.message_codec import Message, MessageDecodeError, decode, encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.delivery import Delivery

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
BROKEN = Failure(failure_class=FailureClass.INTERNAL, message="no")


def invocation(**changes: Any) -> Invocation:
    defaults: dict[str, Any] = {
        "invocation_id": "i-1",
        "serverless_request_id": "doubling",
        "function_id": "doubling",
        "body": b'{"n": 1, "m": [1, 2]}',
        "enqueued_at": NOW,
        "timeout_seconds": 60,
    }
    return Invocation(**defaults | changes)


def delivery(data: bytes = b"x", subject: str = "runtime.serverless.dispatch.doubling", count: int = 5) -> Delivery:
    return Delivery(subject, data, {"Nats-Msg-Id": "i-1"}, "S", 7, count, NOW)


MESSAGES: dict[str, Message] = {
    "invocation": invocation(headers={"a": "b"}, attributes={"c": "d"}, reply_to="_INBOX.x", mode="sync"),
    "binary invocation": invocation(body=bytes(range(256)), content_type="application/octet-stream"),
    "dispatch": Dispatch(invocation=invocation(), deadline=LATER, dispatched_at=NOW, attempt=2),
    "result": with_body(
        Result(
            invocation_id="i-1",
            serverless_request_id="doubling",
            function_id="doubling",
            state=ResultState.SUCCEEDED,
            timings=Timings(enqueued_at=NOW, finished_at=LATER),
        ),
        "image/png",
        b"\x89PNG",
    ),
    "failed result": dead_lettered_result(invocation(), BROKEN, LATER),
    "event": WorkerEvent(kind=WorkerEventKind.STARTED, function_id="doubling", unit="w"),
    "dead letter": DeadLetterBuilder(Subjects(), Stream.DISPATCH, worker_message_id).build(
        delivery(bytes(range(256))), BROKEN, LATER
    ),
    "record": InvocationRecord(
        request_hash="h",
        serverless_request_id="doubling",
        function_id="doubling",
        enqueued_at=NOW,
        deadline=LATER,
        updated_at=NOW,
    ),
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_message_round_trip(kind: str) -> None:
    message = MESSAGES[kind]
    assert decode(encode(message), type(message)) == message


@pytest.mark.parametrize("kind", MESSAGES)
def test_every_message_has_a_version_and_camel_case_fields(kind: str) -> None:
    document = msgspec.json.decode(encode(MESSAGES[kind]))
    assert document["version"] == 1
    assert not [name for name in document if "_" in name]


def test_unknown_field_is_ignored() -> None:
    document = msgspec.json.decode(encode(invocation())) | {"colour": "green"}
    assert decode(msgspec.json.encode(document), Invocation) == invocation()


def test_higher_version_is_rejected_with_the_remedy() -> None:
    document = msgspec.json.decode(encode(invocation())) | {"version": 2}
    with pytest.raises(
        MessageDecodeError,
        match="this Invocation has version 2; this process reads up to version 1: upgrade the process",
    ):
        decode(msgspec.json.encode(document), Invocation)


UNDECODABLE = {
    "not JSON": (b"\x00", "cannot read this Invocation"),
    "not an object": (b"[]", "cannot read this Invocation: Expected `object`"),
    "a missing field": (b'{"version":1}', "missing required field `invocationID`"),
    "a wrong type": (encode(invocation()).replace(b'"i-1"', b"7"), r"invocationID"),
    "a time without a zone": (encode(invocation()).replace(b"12:00:00Z", b"12:00:00"), "timezone"),
    "not base64": (encode(invocation()).replace(b'"body":"', b'"body":"!'), r"body"),
}


@pytest.mark.parametrize("case", UNDECODABLE)
def test_undecodable_message_is_rejected_with_a_reason(case: str) -> None:
    data, reason = UNDECODABLE[case]
    with pytest.raises(Rejected, match=reason):
        decode(data, Invocation)


def test_json_body_keeps_the_notation_of_numbers() -> None:
    body = b'{"n": 12345678901234567890.10, "big": 1e400}'
    assert decode(encode(invocation(body=body)), Invocation).body == body


def test_deadline_is_enqueued_at_plus_timeout() -> None:
    assert invocation(timeout_seconds=1.5).deadline == NOW + timedelta(seconds=1.5)


def test_timestamps_are_utc_with_milliseconds() -> None:
    time = datetime.fromisoformat("2026-11-16T13:00:00.123456+01:00")
    assert to_utc_milliseconds(time) == NOW + timedelta(milliseconds=123)


SAME: dict[str, dict[str, Any]] = {
    "another id": {"invocation_id": "i-2"},
    "the same function after it was created again": {"function_id": "tripling"},
    "another time": {"enqueued_at": LATER},
    "another mode": {"mode": "sync", "reply_to": "_INBOX.y"},
    "another order of names, other whitespace": {"body": b'{"m":[1,2],"n":1}'},
}
OTHER: dict[str, dict[str, Any]] = {
    "another function": {"serverless_request_id": "tripling"},
    "another value": {"body": b'{"n": 2, "m": [1, 2]}'},
    "another order of elements": {"body": b'{"n": 1, "m": [2, 1]}'},
    "another timeout": {"timeout_seconds": 61},
    "a header": {"headers": {"a": "b"}},
    "an attribute": {"attributes": {"a": "b"}},
    "another type": {"content_type": "text/plain"},
    "no body": {"body": b""},
    "invalid JSON": {"body": b"{"},
}


@pytest.mark.parametrize("case", SAME)
def test_equivalent_invocations_have_the_same_hash(case: str) -> None:
    assert invocation_hash(invocation(**SAME[case])) == invocation_hash(invocation())


@pytest.mark.parametrize("case", OTHER)
def test_different_invocations_have_different_hashes(case: str) -> None:
    assert invocation_hash(invocation(**OTHER[case])) != invocation_hash(invocation())


def test_whitespace_in_a_non_json_body_changes_the_hash() -> None:
    one = invocation(content_type="text/plain", body=b"1 ")
    assert invocation_hash(one) != invocation_hash(invocation(content_type="text/plain", body=b"1"))


@pytest.mark.parametrize("good", ["a", "0190b1b0-7e5c-7000-8000-000000000000", "A_b-9", "x" * 128])
def test_valid_invocation_ids_are_accepted(good: str) -> None:
    assert list(invocation_id_errors(good)) == []


@pytest.mark.parametrize("bad", ["", "a.b", "a b", "a*", ">", "ä", "a\n", "x" * 129])
def test_invalid_invocation_id_is_reported_by_field(bad: str) -> None:
    (error,) = invocation_id_errors(bad)
    assert error.path == "invocationID"


def test_size_limit_error_states_the_limit() -> None:
    check_body(b"x" * MAX_PAYLOAD_BYTES)
    with pytest.raises(TooLarge, match=f"payload: has {MAX_PAYLOAD_BYTES + 1} bytes; send at most {MAX_PAYLOAD_BYTES}"):
        check_body(b"x" * (MAX_PAYLOAD_BYTES + 1))
    (error,) = metadata_errors({"a": "x" * MAX_METADATA_BYTES}, "headers")
    assert str(MAX_METADATA_BYTES) in error.message


JSON_OVERHEAD_BYTES = len('{"n":""}')


@pytest.mark.parametrize(
    "meta",
    [
        {"n": "x" * (MAX_METADATA_BYTES - JSON_OVERHEAD_BYTES)},
        {"n": "\N{GRINNING FACE}" * ((MAX_METADATA_BYTES - JSON_OVERHEAD_BYTES) // 4)},
        {"n": "\x01" * ((MAX_METADATA_BYTES - JSON_OVERHEAD_BYTES) // 6)},
        {f"{number:04}": "" for number in range(MAX_METADATA_BYTES // 10)},
    ],
    ids=["ASCII", "four-byte characters", "control characters", "many entries"],
)
def test_largest_invocation_and_its_dead_letter_fit_into_a_message(meta: dict[str, str]) -> None:
    assert list(metadata_errors(meta, "headers")) == []
    assert list(metadata_errors(meta | {"name": "value"}, "headers"))
    largest = invocation(body=b"x" * MAX_PAYLOAD_BYTES, headers=meta, attributes=meta, invocation_id="i" * 128)
    data = encode(Dispatch(invocation=largest, deadline=LATER, dispatched_at=NOW))
    failure = Failure(failure_class=FailureClass.INTERNAL, message="x" * 10_000)
    letter = DeadLetterBuilder(Subjects(), Stream.DISPATCH, worker_message_id).build(delivery(data), failure, LATER)
    assert len(encode(letter)) + 200 < 1024 * 1024


def test_body_above_the_limit_is_truncated_and_flagged() -> None:
    result = dead_lettered_result(invocation(), BROKEN, LATER)
    cut = with_body(result, "text/plain", b"abcdef", limit=4)
    assert (cut.body, cut.body_truncated, cut.body_bytes) == (b"abcd", True, 6)
    whole = with_body(result, "text/plain", b"abcd", limit=4)
    assert (whole.body, whole.body_truncated, whole.body_bytes) == (b"abcd", False, 4)


def test_long_reason_is_truncated_with_an_ellipsis() -> None:
    assert truncate_text("x" * 10, 10) == "x" * 10
    assert truncate_text("x" * 11, 10) == "x" * 9 + "…"


def test_dead_letter_contains_the_original_and_is_deterministic() -> None:
    letters = DeadLetterBuilder(Subjects(), Stream.DISPATCH, worker_message_id)
    sent = letters.message(delivery(b"\xff\x00"), BROKEN, LATER, invocation())
    again = letters.message(delivery(b"\xff\x00"), BROKEN, NOW)
    assert sent.subject == "runtime.serverless.dlq.dispatch.doubling"
    assert sent.message_id == again.message_id
    decoded = decode(sent.data, DeadLetter)
    assert (decoded.data, decoded.subject, decoded.headers) == (
        b"\xff\x00",
        delivery().subject,
        {"Nats-Msg-Id": "i-1"},
    )
    assert (decoded.delivery_count, decoded.failure_class, decoded.reason) == (5, FailureClass.INTERNAL, "no")


def test_dead_letter_of_an_invalid_subject_uses_the_unknown_token() -> None:
    letters = DeadLetterBuilder(Subjects(), Stream.INVOKE, worker_message_id)
    letter = letters.message(delivery(subject="runtime.serverless.invoke.Strange"), BROKEN, LATER)
    assert letter.subject == f"runtime.serverless.dlq.invoke.{UNKNOWN_ID}"


def record(**changes: Any) -> InvocationRecord:
    default = MESSAGES["record"]
    assert isinstance(default, InvocationRecord)
    return msgspec.structs.replace(default, **changes)
