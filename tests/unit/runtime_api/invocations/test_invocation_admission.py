"""What is asked becomes one invocation, or is refused with the field."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import Invalid, TooLarge
from gpu_runtime.contract.messages.invocation_record import Stage
from gpu_runtime.contract.messages.limits import BODY_LIMIT
from gpu_runtime.runtime_api.http.decoding import read_body
from gpu_runtime.runtime_api.invocations.enqueue import may_be_unsent
from gpu_runtime.runtime_api.invocations.invocation_admission import Terms, accepted, enqueued
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.invocations.routes import EXAMPLES
from gpu_runtime.runtime_api.invocations.service import is_left_behind

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def asked(payload: str = "", **changes: Any) -> Invoke:
    document = msgspec.json.encode({"serverlessRequestID": "f", **changes}).decode()
    text = document[:-1] + f', "payload": {payload}}}' if payload else document
    return read_body(text.encode(), "application/json", Invoke)


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_the_examples_are_accepted(example: Any) -> None:
    assert accepted(read_body(msgspec.json.encode(example), "application/json", Invoke), Terms()).body


PAYLOADS = {
    "an object": ('{"a" : 1.00}', "application/json", b'{"a" : 1.00}'),
    "a number that no machine holds": ("12345678901234567890123", "application/json", b"12345678901234567890123"),
    "null": ("null", "application/json", b"null"),
    "a text": ('"AAEC"', "application/vnd.own+json; charset=utf-8", b'"AAEC"'),
    "bytes": ('"AAEC"', "image/png", b"\x00\x01\x02"),
    "no bytes": ('""', "image/png", b""),
    "nothing": ("", "image/png", b""),
    "no JSON": ("", "application/json", b""),
}


@pytest.mark.parametrize(("payload", "content_type", "body"), PAYLOADS.values(), ids=PAYLOADS)
def test_the_function_gets_the_bytes_that_were_meant(payload: str, content_type: str, body: bytes) -> None:
    assert accepted(asked(payload, contentType=content_type), Terms()).body == body


@pytest.mark.parametrize("payload", ['"AAE"', '"A A="', '"é"', "{}", "1", "null", '"AA-_"'])
def test_bytes_are_a_string_of_base64(payload: str) -> None:
    with pytest.raises(Invalid, match="payload: is not base64; with contentType 'image/png'"):
        accepted(asked(payload, contentType="image/png"), Terms())


def test_everything_that_is_wrong_is_told_at_once() -> None:
    wrong = asked(
        invocationID="a b",
        serverlessRequestID="A",
        contentType=" x",
        headers={"": "x"},
        attributes={"a": "x" * 17000},
        timeoutSeconds=90,
    )
    with pytest.raises(Invalid) as refusal:
        accepted(wrong, Terms(longest_timeout=60))
    assert [problem.path for problem in refusal.value.problems] == [
        *("invocationID", "serverlessRequestID", "contentType", "attributes", "headers", "timeoutSeconds")
    ]


def test_a_large_payload_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLarge, match=r"payload: has 1002 bytes; at most 1000 are taken"):
        accepted(asked('"' + "x" * 1000 + '"'), Terms(body_bytes=1000))
    assert Terms().body_bytes == BODY_LIMIT


def test_what_is_not_said_comes_from_the_configuration() -> None:
    one, other = accepted(asked(), Terms(timeout=7)), accepted(asked(), Terms(timeout=7))
    assert (one.timeout_seconds, one.mode, one.content_type) == (7, "async", "application/json")
    assert one.invocation_id != other.invocation_id


def test_the_record_and_the_message_agree() -> None:
    going, record = enqueued(accepted(asked(timeoutSeconds=60), Terms()), NOW)
    assert record.enqueued_at == going.enqueued_at == NOW.replace(microsecond=678000)
    assert (record.deadline, record.stage) == (going.enqueued_at + timedelta(seconds=60), Stage.QUEUED)


def test_the_default_time_is_the_same_as_the_same_time_in_so_many_words() -> None:
    hashes = {
        enqueued(accepted(request, Terms(timeout=60)), NOW)[1].request_hash
        for request in (asked(), asked(timeoutSeconds=60), asked(timeoutSeconds=60.0))
    }
    assert len(hashes) == 1


def test_how_the_caller_waits_makes_no_other_request() -> None:
    records = [enqueued(accepted(asked(mode=mode), Terms()), NOW)[1] for mode in ("async", "sync")]
    assert records[0].request_hash == records[1].request_hash


@pytest.mark.parametrize(
    ("seconds", "changes", "unsent", "left_behind"),
    [
        (0, {}, True, False),
        (61, {}, False, False),
        (91, {}, False, True),
        (0, {"stage": Stage.DISPATCHED}, False, False),
        (91, {"stage": Stage.DISPATCHED}, False, False),
        (0, {"cancelled": True}, False, False),
        (91, {"stage": Stage.TERMINAL}, False, False),
    ],
)
def test_what_may_never_have_been_sent_is_sent_again_until_its_time_is_over(
    seconds: float, changes: dict[str, Any], unsent: bool, left_behind: bool
) -> None:
    _, record = enqueued(accepted(asked(timeoutSeconds=60), Terms()), NOW)
    record, then = msgspec.structs.replace(record, **changes), NOW + timedelta(seconds=seconds)
    assert (may_be_unsent(record, then), is_left_behind(record, then)) == (unsent, left_behind)
