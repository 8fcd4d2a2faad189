"""A valid request becomes an invocation and a record. An invalid request is rejected by field path."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import Invalid, TooLarge
from gpu_runtime.contract.messages.invocation_record import RecordState, Termination, may_be_unpublished
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.runtime_api.http.decoding import decode_body
from gpu_runtime.runtime_api.invocations.enqueue import prepare_enqueue
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.invocations.routes import INVOKE_EXAMPLES

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def invoke_request(payload: str = "", **changes: Any) -> Invoke:
    document = msgspec.json.encode({"serverlessRequestID": "f", **changes}).decode()
    text = document[:-1] + f', "payload": {payload}}}' if payload else document
    return decode_body(text.encode(), "application/json", Invoke)


@pytest.mark.parametrize("example", INVOKE_EXAMPLES.values(), ids=INVOKE_EXAMPLES)
def test_invoke_examples_are_valid(example: Any) -> None:
    assert admit_invocation(
        decode_body(msgspec.json.encode(example), "application/json", Invoke), InvocationLimits()
    ).body


PAYLOADS = {
    "object": ('{"a" : 1.00}', "application/json", b'{"a" : 1.00}'),
    "number that exceeds 64 bits": ("12345678901234567890123", "application/json", b"12345678901234567890123"),
    "null": ("null", "application/json", b"null"),
    "string": ('"AAEC"', "application/vnd.own+json; charset=utf-8", b'"AAEC"'),
    "bytes": ('"AAEC"', "image/png", b"\x00\x01\x02"),
    "empty base64": ('""', "image/png", b""),
    "omitted binary payload": ("", "image/png", b""),
    "omitted JSON payload": ("", "application/json", b""),
}


@pytest.mark.parametrize(("payload", "content_type", "body"), PAYLOADS.values(), ids=PAYLOADS)
def test_payload_becomes_the_body_of_the_invocation(payload: str, content_type: str, body: bytes) -> None:
    assert admit_invocation(invoke_request(payload, contentType=content_type), InvocationLimits()).body == body


@pytest.mark.parametrize("payload", ['"AAE"', '"A A="', '"é"', "{}", "1", "null", '"AA-_"'])
def test_binary_payload_must_be_base64(payload: str) -> None:
    with pytest.raises(Invalid, match="payload: is not base64; with contentType 'image/png'"):
        admit_invocation(invoke_request(payload, contentType="image/png"), InvocationLimits())


def test_all_invalid_fields_are_reported_together() -> None:
    invalid = invoke_request(
        invocationID="a b",
        serverlessRequestID="A",
        contentType=" x",
        headers={"": "x"},
        attributes={"a": "x" * 17000},
        timeoutSeconds=90,
    )
    with pytest.raises(Invalid) as raised:
        admit_invocation(invalid, InvocationLimits(max_timeout_seconds=60))
    assert [error.path for error in raised.value.errors] == [
        *("invocationID", "serverlessRequestID", "contentType", "attributes", "headers", "timeoutSeconds")
    ]


def test_too_large_payload_is_rejected_with_the_limit() -> None:
    with pytest.raises(TooLarge, match=r"payload: has 1002 bytes; send at most 1000"):
        admit_invocation(invoke_request('"' + "x" * 1000 + '"'), InvocationLimits(max_body_bytes=1000))
    assert InvocationLimits().max_body_bytes == MAX_PAYLOAD_BYTES


def test_omitted_fields_have_configured_defaults() -> None:
    first, second = (
        admit_invocation(invoke_request(), InvocationLimits(default_timeout_seconds=7)),
        admit_invocation(invoke_request(), InvocationLimits(default_timeout_seconds=7)),
    )
    assert (first.timeout_seconds, first.mode, first.content_type) == (7, "async", "application/json")
    assert first.invocation_id != second.invocation_id


def test_record_matches_the_enqueued_message() -> None:
    enqueued, record = prepare_enqueue(admit_invocation(invoke_request(timeoutSeconds=60), InvocationLimits()), NOW)
    assert record.enqueued_at == enqueued.enqueued_at == NOW.replace(microsecond=678000)
    assert (record.deadline, record.state) == (enqueued.enqueued_at + timedelta(seconds=60), RecordState.QUEUED)


def test_default_timeout_and_equal_explicit_timeout_have_one_hash() -> None:
    hashes = {
        prepare_enqueue(admit_invocation(request, InvocationLimits(default_timeout_seconds=60)), NOW)[1].request_hash
        for request in (invoke_request(), invoke_request(timeoutSeconds=60), invoke_request(timeoutSeconds=60.0))
    }
    assert len(hashes) == 1


def test_mode_does_not_change_the_request_hash() -> None:
    records = [
        prepare_enqueue(admit_invocation(invoke_request(mode=mode), InvocationLimits()), NOW)[1]
        for mode in ("async", "sync")
    ]
    assert records[0].request_hash == records[1].request_hash


@pytest.mark.parametrize(
    ("changes", "unpublished"),
    [
        ({}, True),
        ({"state": RecordState.DISPATCHED}, False),
        ({"termination": Termination.CANCELLED}, False),
        ({"state": RecordState.TERMINAL}, False),
    ],
)
def test_invocation_is_published_again_until_it_is_dispatched_or_ends(
    changes: dict[str, Any], unpublished: bool
) -> None:
    _, record = prepare_enqueue(admit_invocation(invoke_request(timeoutSeconds=60), InvocationLimits()), NOW)
    assert may_be_unpublished(msgspec.structs.replace(record, **changes)) is unpublished
