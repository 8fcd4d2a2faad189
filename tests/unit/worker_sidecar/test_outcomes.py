"""Which answer of a framework means what."""

import json

import msgspec
import pytest

from gpu_runtime.worker_sidecar.framework_response import (
    Answered,
    AskedToRetry,
    Broken,
    HandlerFailed,
    HandlerRejected,
    TimedOut,
    outcome_of,
)

ERROR = json.dumps({"error": {"type": "Kind", "message": "sentence"}}).encode()


@pytest.mark.parametrize(
    ("statuses", "outcome"),
    [
        ((400, 401, 404, 405, 409, 413, 418, 422, 431, 499), HandlerRejected("Kind", "sentence")),
        ((500, 501, 502, 505, 599), HandlerFailed("Kind", "sentence")),
        ((425, 429, 503), AskedToRetry("Kind", "sentence")),
        ((408, 504), TimedOut("sentence")),
    ],
)
def test_a_status_means_one_thing(statuses: tuple[int, ...], outcome: object) -> None:
    assert {outcome_of(status, {}, ERROR) for status in statuses} == {outcome}


@pytest.mark.parametrize("status", [100, 101, 199, 300, 304, 399, 600, 999])
def test_what_the_contract_does_not_know_is_broken(status: int) -> None:
    assert isinstance(outcome_of(status, {}, b""), Broken)


@pytest.mark.parametrize("status", [200, 201, 204, 299])
def test_a_success_is_kept_as_it_came(status: int) -> None:
    assert outcome_of(status, {"content-type": "a/b"}, ERROR) == Answered(status, "a/b", ERROR)


@pytest.mark.parametrize(
    ("said", "after"), [("3", 3.0), ("0", 0.0), ("999999999", 86_400.0), ("soon", None), ("-1", None), ("", None)]
)
def test_when_to_retry_is_taken_where_it_makes_sense(said: str, after: float | None) -> None:
    assert outcome_of(503, {"retry-after": said}, ERROR) == AskedToRetry("Kind", "sentence", after)


@pytest.mark.parametrize(
    "body", [b"", b"plain", b"[]", b'{"error": 3}', b'{"error": {"type": "x"}}', b"\xff", b"[" * 100_000]
)
def test_an_error_of_another_form_is_its_text(body: bytes) -> None:
    outcome = outcome_of(500, {}, body)
    assert isinstance(outcome, HandlerFailed)
    assert outcome.type == "HTTP 500"
    assert outcome.message.startswith(body[:4096].decode(errors="replace"))


def test_what_is_cut_off_says_so() -> None:
    body = json.dumps({"error": {"type": "t" * 1000, "message": "m" * 10_000}}).encode()
    outcome = outcome_of(500, {}, body)
    assert isinstance(outcome, HandlerFailed)
    assert outcome.type == "t" * 128 + "… (cut off)"
    assert outcome.message == "m" * 4096 + "… (cut off)"


@pytest.mark.parametrize("status", [422, 429, 500, 504])
def test_half_a_character_in_an_error_does_not_keep_its_result_from_being_sent(status: int) -> None:
    error = rb'{"error": {"type": "K\udcff", "message": "no such file: \udcff"}}'  # as Python writes such a file name
    told = outcome_of(status, {}, error)
    assert isinstance(told, HandlerRejected | AskedToRetry | HandlerFailed | TimedOut)
    assert msgspec.json.decode(msgspec.json.encode(told.message)) == "no such file: ?"


def test_a_content_type_that_is_no_text_does_not_keep_a_result_from_being_sent() -> None:
    undecoded = b"text/\xff".decode(errors="surrogateescape")
    assert outcome_of(200, {"content-type": undecoded}, b"") == Answered(200, "text/?", b"")
