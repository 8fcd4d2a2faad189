"""The outcome of a framework response, by its status, headers and body."""

import json

import msgspec
import pytest

from gpu_runtime.worker_sidecar.framework_response import (
    FrameworkFailed,
    HandlerFailed,
    HandlerRejected,
    HandlerSucceeded,
    RetryRequested,
    TimedOut,
    outcome_of,
)

ERROR = json.dumps({"error": {"type": "Kind", "message": "sentence"}}).encode()


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ((400, 401, 404, 405, 409, 413, 418, 422, 431, 499), HandlerRejected("Kind", "sentence")),
        ((500, 501, 502, 505, 599), HandlerFailed("Kind", "sentence")),
        ((425, 429, 503), RetryRequested("Kind", "sentence")),
        ((408, 504), TimedOut("sentence")),
    ],
)
def test_outcome_of_each_status(statuses: tuple[int, ...], outcome: object) -> None:
    assert {outcome_of(status, {}, ERROR) for status in statuses} == {outcome}


@pytest.mark.parametrize("status", [100, 101, 199, 300, 304, 399, 600, 999])
def test_status_outside_the_contract_is_a_framework_failure(status: int) -> None:
    assert isinstance(outcome_of(status, {}, b""), FrameworkFailed)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_successful_response_is_passed_through(status: int) -> None:
    assert outcome_of(status, {"content-type": "a/b"}, ERROR) == HandlerSucceeded(status, "a/b", ERROR)


@pytest.mark.parametrize(
    ("header", "seconds"), [("3", 3.0), ("0", 0.0), ("999999999", 86_400.0), ("soon", None), ("-1", None), ("", None)]
)
def test_retry_after_header_is_used_when_valid(header: str, seconds: float | None) -> None:
    assert outcome_of(503, {"retry-after": header}, ERROR) == RetryRequested("Kind", "sentence", seconds)


@pytest.mark.parametrize(
    "body", [b"", b"plain", b"[]", b'{"error": 3}', b'{"error": {"type": "x"}}', b"\xff", b"[" * 100_000]
)
def test_error_body_of_another_format_becomes_the_message(body: bytes) -> None:
    outcome = outcome_of(500, {}, body)
    assert isinstance(outcome, HandlerFailed)
    assert outcome.error_type == "HTTP 500"
    assert outcome.message.startswith(body[:4096].decode(errors="replace"))


def test_long_error_text_is_truncated_and_marked() -> None:
    body = json.dumps({"error": {"type": "t" * 1000, "message": "m" * 10_000}}).encode()
    outcome = outcome_of(500, {}, body)
    assert isinstance(outcome, HandlerFailed)
    assert outcome.error_type == "t" * 128 + "… (cut off)"
    assert outcome.message == "m" * 4096 + "… (cut off)"


@pytest.mark.parametrize("status", [422, 429, 500, 504])
def test_unencodable_text_in_an_error_is_replaced(status: int) -> None:
    # Python escapes a file name that is not UTF-8 like this.
    error = rb'{"error": {"type": "K\udcff", "message": "no such file: \udcff"}}'
    outcome = outcome_of(status, {}, error)
    assert isinstance(outcome, HandlerRejected | RetryRequested | HandlerFailed | TimedOut)
    assert msgspec.json.decode(msgspec.json.encode(outcome.message)) == "no such file: ?"


def test_invalid_content_type_is_replaced() -> None:
    undecoded = b"text/\xff".decode(errors="surrogateescape")
    assert outcome_of(200, {"content-type": undecoded}, b"") == HandlerSucceeded(200, "text/?", b"")
