"""The invocation view shows the state and the result of an invocation."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import (
    CancelRequested,
    InvocationRecord,
    RecordState,
    ResultStored,
    step,
)
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.process.field_docs import field_docs
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.routes import DEAD_LETTERS
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.invocations.requests import Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.routes import INVOCATIONS
from gpu_runtime.runtime_api.invocations.view import (
    FailureView,
    InvocationView,
    TimingsView,
    encode_payload,
    record_view,
    result_view,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RECORD = InvocationRecord(
    request_hash="0",
    serverless_request_id="f",
    function_id="f",
    enqueued_at=NOW,
    deadline=NOW,
    updated_at=NOW,
    worker="w",
)
RESULT = Result(
    invocation_id="i",
    serverless_request_id="f",
    function_id="f",
    state=ResultState.SUCCEEDED,
    timings=Timings(finished_at=NOW),
)


def as_json(view: InvocationView) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(view))
    return document


def test_record_view_shows_the_state() -> None:
    assert as_json(record_view("i", RECORD)) == {
        "invocationID": "i",
        "serverlessRequestID": "f",
        "state": "queued",
        "deadline": "2026-01-02T03:04:05Z",
        "timings": {"enqueuedAt": "2026-01-02T03:04:05Z"},
        "worker": "w",
    }
    cancelled = step(RECORD, CancelRequested(NOW))
    assert isinstance(cancelled, InvocationRecord)
    assert as_json(record_view("i", cancelled))["cancelRequested"]
    terminal = step(cancelled, ResultStored(NOW, ResultState.CANCELLED))
    assert isinstance(terminal, InvocationRecord)
    finished = as_json(record_view("i", terminal))
    assert (finished["state"], "cancelRequested" in finished, "deadline" in finished) == ("cancelled", False, False)
    assert record_view("i", msgspec.structs.replace(RECORD, state=RecordState.RUNNING)).state == "running"


BODIES = {
    "JSON": (b'{"a": 1.10}', "application/json", True, b'{"a": 1.10}', "json"),
    "JSON subtype": (b"[]", "application/problem+json", True, b"[]", "json"),
    "malformed JSON": (b"{", "application/json", True, b'"ew=="', "base64"),
    "invalid UTF-8": (b'"\xff"', "application/json", True, b'"Iv8i"', "base64"),
    "truncated JSON": (b"1", "application/json", False, b'"MQ=="', "base64"),
    "text": (b"hi", "text/as_json", True, b'"aGk="', "base64"),
    "too deeply nested JSON": (b"[" * 100_000 + b"]" * 100_000, "application/json", True, None, "base64"),
}


@pytest.mark.parametrize(("body", "kind", "whole", "payload", "encoding"), BODIES.values(), ids=BODIES)
def test_json_body_is_shown_as_json_and_other_bodies_as_base64(
    body: bytes, kind: str, whole: bool, payload: bytes | None, encoding: str
) -> None:
    encoded, actual_encoding = encode_payload(body, kind, whole=whole)
    assert isinstance(encoded, msgspec.Raw)
    assert actual_encoding == encoding
    assert payload is None or bytes(encoded) == payload


def test_empty_body_is_omitted() -> None:
    view = as_json(result_view(msgspec.structs.replace(RESULT, status_code=204)))
    assert ("payload" in view, "payloadEncoding" in view, view["statusCode"], view["bodyBytes"]) == (
        False,
        False,
        204,
        0,
    )


def test_truncated_body_is_flagged() -> None:
    view = as_json(result_view(with_body(RESULT, "text/as_json", b"abcdef", limit=3)))
    assert (view["payload"], view["bodyTruncated"], view["bodyBytes"]) == ("YWJj", True, 6)


def test_failure_view_has_class_and_message() -> None:
    failure = Failure(failure_class=FailureClass.TIMED_OUT, message="too late")
    view = as_json(result_view(msgspec.structs.replace(RESULT, state=ResultState.EXPIRED, failure=failure)))
    assert (view["state"], view["failure"]) == ("expired", {"class": "timed_out", "message": "too late"})


MODELS = (Invoke, ListInvocations, InvocationView, FailureView, TimingsView, ListDeadLetters, DeadLetterView)


@pytest.mark.parametrize("model", [*MODELS, RedriveView])
def test_every_field_has_a_description(model: type[msgspec.Struct]) -> None:
    assert set(model.__annotations__) - set(field_docs(model)) == set()


def test_invocation_routes_are_documented_and_need_no_cluster() -> None:
    for scope, documented in ((Scope.RUNTIME, INVOCATIONS.routes), (Scope.OPERATOR, DEAD_LETTERS.routes)):
        for route in documented:
            assert route.summary and route.description and route.tag, route.name  # noqa: PT018
            assert (route.scope, route.needs_cluster) == (scope, False)
