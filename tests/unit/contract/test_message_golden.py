"""Messages and invocation records have the bytes of the golden files, and the golden files can be decoded.

A field with its default value is absent from a message. So the defaults are a part of the format, too.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec import Struct, structs

from gpu_runtime.contract import messages
from gpu_runtime.contract.messages.dead_letter import DeadLetter, DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.drain_request import DrainRequest, DrainStatus
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import (
    dispatch_message,
    invocation_hash,
    invoke_message,
    result_message,
)
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    Termination,
    record_from_headers,
)
from gpu_runtime.contract.messages.invocation_ticket import (
    TicketKeyring,
    ticket_headers,
    ticket_of,
    worker_message_id,
)
from gpu_runtime.contract.messages.message_codec import Message, MessagePart, decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings
from gpu_runtime.contract.messages.result_query import (
    CountResultsRequest,
    CountResultsResponse,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.jetstream.delivery import Delivery
from gpu_runtime.jetstream.publisher import MESSAGE_ID_HEADER
from tests.unit.contract.golden_comparison import assert_golden, golden_bytes, readable_json

ENQUEUED = datetime(2026, 11, 16, 12, 0, 0, 123000, tzinfo=UTC)
DISPATCHED, STARTED, FINISHED = (ENQUEUED + timedelta(seconds=seconds) for seconds in (1, 2, 3.5))
DEADLINE = ENQUEUED + timedelta(seconds=90.5)
PAGE = "41"

INVOCATION = Invocation(
    invocation_id="01HZX-inv_1",
    serverless_request_id="thumbs",
    function_id="0f9f7c0a",
    mode="sync",
    content_type="text/plain; charset=utf-8",
    headers={"X-Trace": "ä-1"},
    attributes={"tenant": "blue"},
    body="grüße\0".encode(),
    enqueued_at=ENQUEUED,
    timeout_seconds=90.5,
    reply_to="runtime.serverless.reply.0f9f7c0a.r.7",
)
RECORD = InvocationRecord(
    request_hash="0f" * 32,
    serverless_request_id="thumbs",
    function_id="0f9f7c0a",
    state=RecordState.TERMINAL,
    enqueued_at=ENQUEUED,
    deadline=DEADLINE,
    updated_at=FINISHED,
    termination=Termination.CANCELLED,
    worker="thumbs-w0",
    attempts=2,
    reply_to="runtime.serverless.reply.0f9f7c0a.r.7",
    result_state=ResultState.CANCELLED,
)
RESULT = Result(
    invocation_id="01HZX-inv_1",
    serverless_request_id="thumbs",
    function_id="0f9f7c0a",
    state=ResultState.FAILED,
    failure=Failure(failure_class=FailureClass.FUNCTION_ERROR, message="ValueError: „no“"),
    status_code=500,
    content_type="application/json",
    body=b'{"error": 1}',
    body_truncated=True,
    body_bytes=1_000_000,
    timings=Timings(enqueued_at=ENQUEUED, dispatched_at=DISPATCHED, started_at=STARTED, finished_at=FINISHED),
    worker="thumbs-w0",
    attempts=2,
)
DISPATCH = Dispatch(invocation=INVOCATION, attempt=2, deadline=DEADLINE, dispatched_at=DISPATCHED)
DEAD_LETTER = DeadLetter(
    serverless_request_id="thumbs",
    invocation_id="01HZX-inv_1",
    subject="runtime.serverless.dispatch.thumbs",
    headers={"Nats-Msg-Id": "01HZX-inv_1.1"},
    data=b'{"version":1}\xff',
    failure_class=FailureClass.WORKER_LOST,
    reason="five deliveries",
    delivery_count=5,
    published_at=DISPATCHED,
    dead_lettered_at=FINISHED,
)
POPULATED: dict[str, Message] = {
    "invocation": INVOCATION,
    "invocation_record": RECORD,
    "dispatch": DISPATCH,
    "result": RESULT,
    "dead_letter": DEAD_LETTER,
    "worker_event": WorkerEvent(
        kind=WorkerEventKind.STARTED,
        function_id="0f9f7c0a",
        unit="thumbs-w0",
        namespace="runtime-instance",
        pod_uid="8c1e",
        sequence=1_794_830_400_123,
        in_flight=1,
        concurrency=4,
        heartbeat_seconds=2.5,
        invocation_id="01HZX-inv_1",
    ),
    "drain_request": DrainRequest(force=True),
    "drain_status": DrainStatus(accepted=True, in_flight=1),
    "get_result_request": GetResultRequest(invocation_id="01HZX-inv_1"),
    "count_results_request": CountResultsRequest(serverless_request_id="thumbs", since=RESULT.timings.finished_at),
    "count_results_response": CountResultsResponse(count=1234, error="bad query"),
    "get_result_response": GetResultResponse(result=RESULT, error="bad query"),
    "list_results_request": ListResultsRequest(
        serverless_request_id="thumbs", state=ResultState.FAILED, limit=7, continue_token=PAGE
    ),
    "list_results_response": ListResultsResponse(results=(RESULT,), continue_token=PAGE, error="bad query"),
}
"""A value of every message type. Every field has another value than its default."""


def message_modules() -> list[ModuleType]:
    return [
        importlib.import_module(f"{messages.__name__}.{each.name}") for each in pkgutil.iter_modules(messages.__path__)
    ]


def message_structs() -> list[type[Struct]]:
    """Return every message and every part of a message that the contract defines."""
    modules = {each.__name__ for each in message_modules()}
    found = (*Message.__subclasses__(), *MessagePart.__subclasses__())
    return sorted((each for each in found if each.__module__ in modules), key=lambda each: each.__name__)


def absent_fields(value: Any, path: str) -> Iterator[str]:
    """Yield the fields that are absent from the encoded message, because they have their default value."""
    if isinstance(value, Struct):
        document = msgspec.to_builtins(value)
        for field in structs.fields(value):
            place = f"{path}.{field.encode_name}"
            if document.get(field.encode_name) in (None, "", [], {}):
                yield place
            yield from absent_fields(getattr(value, field.name), place)
    elif isinstance(value, tuple | list):
        for index, each in enumerate(value):
            yield from absent_fields(each, f"{path}[{index}]")


@pytest.mark.parametrize("name", POPULATED)
def test_message_has_the_golden_bytes(name: str) -> None:
    assert_golden(f"message_{name}.json", encode(POPULATED[name]))


@pytest.mark.parametrize("name", POPULATED)
def test_golden_message_is_decoded(name: str) -> None:
    assert decode(golden_bytes(f"message_{name}.json"), type(POPULATED[name])) == POPULATED[name]


@pytest.mark.parametrize("name", POPULATED)
def test_every_field_of_a_message_is_in_the_golden_file(name: str) -> None:
    assert list(absent_fields(decode(golden_bytes(f"message_{name}.json"), type(POPULATED[name])), name)) == []


def test_every_message_type_has_a_golden_file() -> None:
    assert {type(each) for each in POPULATED.values()} | {Failure, Timings} == set(message_structs())


def test_defaults_of_absent_fields_have_not_changed() -> None:
    defaults = {
        struct.__name__: {
            field.encode_name: field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            for field in structs.fields(struct)
            if not field.required
        }
        for struct in message_structs()
    }
    assert_golden("message_defaults.json", readable_json(defaults))


def test_enum_values_have_not_changed() -> None:
    enums = {
        name: [each.value for each in value]
        for module in message_modules()
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
    }
    assert_golden("message_enum_values.json", readable_json(dict(sorted(enums.items()))))


def test_headers_and_message_ids_have_not_changed() -> None:
    stored, tickets = RecordAtRevision(RECORD, 1234), TicketKeyring([b"k" * 32])
    ticket = tickets.sign_record("01HZX-inv_1", RECORD)
    original = Delivery("runtime.serverless.dispatch.0f9f7c0a", b"{}", ticket_headers(ticket), "S", 41, 5, DISPATCHED)
    failure = Failure(failure_class=FailureClass.WORKER_LOST, message="five deliveries")
    letters = DeadLetterBuilder(Subjects(), Stream.DISPATCH, worker_message_id)
    dispatch = dispatch_message(Subjects(), DISPATCH, stored, ticket, tickets.message_id)
    document = {
        "headers": dict(dispatch.headers),
        "messageIDHeader": MESSAGE_ID_HEADER,
        "messageIDs": {
            "invocation": invoke_message(Subjects(), INVOCATION, stored, tickets).message_id,
            "dispatch": dispatch.message_id,
            "result": result_message(Subjects(), RESULT, stored, ticket, tickets.message_id).message_id,
            "resultOfWorker": result_message(Subjects(), RESULT, stored, ticket, worker_message_id).message_id,
            "deadLetterOfWorker": letters.message(original, failure, FINISHED).message_id,
        },
        "requestHash": invocation_hash(INVOCATION),
    }
    assert_golden("message_headers.json", readable_json(document))
    golden = msgspec.json.decode(golden_bytes("message_headers.json"))
    assert record_from_headers(golden["headers"]) == stored
    assert tickets.verify(golden["headers"]) == ticket_of("01HZX-inv_1", RECORD)
