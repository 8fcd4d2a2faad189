"""Random bytes are decoded or rejected with MessageDecodeError, and every decoded message can be processed."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from hypothesis import example, given
from hypothesis import strategies as st

from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import (
    dead_lettered_result,
    invocation_hash,
    new_record,
    read_invocation,
)
from gpu_runtime.contract.messages.invocation_record import (
    RECORD_HEADER,
    REVISION_HEADER,
    InvocationRecord,
    record_from_headers,
)
from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket, ticket_headers
from gpu_runtime.contract.messages.message_codec import Message, MessageDecodeError, decode, encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Failure, Result
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.delivery import NO_HEADERS, Delivery
from gpu_runtime.worker_sidecar.retry_decision import InvocationAttempt, ServedFunction, dead_letter_result
from tests.fuzz.fuzz_settings import call_or_rejection, fuzzed
from tests.fuzz.seed_corpus import FUNCTION, INVOCATION, RECORD, SAMPLES
from tests.fuzz.strategies import encode_json, message_bytes, texts
from tests.ticket_keys import TICKETS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MESSAGE_LIMIT = 1024 * 1024 - 8192
"""The maximum payload of NATS, minus a reserve for headers."""
NESTED = b'{"version":1,"x":' + b"[" * 5000 + b"]" * 5000 + b"}"


SENT = st.one_of([st.tuples(st.just(model), message_bytes([sample])) for model, sample in SAMPLES.items()])


@fuzzed(100)
@given(SENT)
@example((Invocation, NESTED))
@example((Result, b'{"version":1,"invocationID":"\xff"}'))
def test_bytes_are_a_message_or_a_decode_error(sent: tuple[type[Message], bytes]) -> None:
    model, data = sent
    message, rejection = call_or_rejection(MessageDecodeError, lambda: decode(data, model))
    assert decode(encode(message), model) == message if message else rejection and rejection.message


def signed_headers(data: bytes) -> Mapping[str, str]:
    """The headers of the message if the platform had accepted it. Empty if the message is not an invocation."""
    try:
        invocation = decode(data, Invocation)
        enqueued_at = invocation.enqueued_at or NOW
        record = new_record(invocation, enqueued_at, to_utc_milliseconds(invocation.deadline or enqueued_at))
    except (MessageDecodeError, OverflowError, ValueError):
        return NO_HEADERS
    return ticket_headers(TICKETS.sign_record(invocation.invocation_id, record))


@fuzzed(100)
@given(message_bytes([INVOCATION]), st.sampled_from([FUNCTION, "other", "Not.One"]))
@example(encode_json(INVOCATION | {"timeoutSeconds": 1e300}), FUNCTION)
@example(encode_json({**INVOCATION, "timeoutSeconds": 1e300, "enqueuedAt": None}), FUNCTION)
@example(encode_json(INVOCATION | {"enqueuedAt": "9999-12-31T23:59:59Z"}), FUNCTION)
@example(encode_json(INVOCATION | {"enqueuedAt": "0001-01-01T00:00:00+23:59", "timeoutSeconds": 1}), FUNCTION)
@example(encode_json(INVOCATION | {"timeoutSeconds": 5e-324}), FUNCTION)
@example(NESTED, FUNCTION)
@example(b"\xff" * 1024 * 1024, FUNCTION)
@example(b'{"version":1,"invocationID":"\xff"}', FUNCTION)
def test_delivery_is_an_invocation_or_becomes_a_dead_letter(data: bytes, request_id: str) -> None:
    """Neither path may raise: a message that cannot be dead-lettered would be redelivered forever."""
    subjects = Subjects()
    subject = f"{subjects.prefix}.invoke.{request_id}"
    delivery = Delivery(subject, data, signed_headers(data), "INVOKE", 1, 1, NOW)
    failure = Failure(failure_class=FailureClass.BAD_MESSAGE, message="undecodable")
    outgoing = DeadLetterBuilder(subjects, Stream.INVOKE, TICKETS.message_id).message(delivery, failure, NOW)
    assert outgoing.subject.startswith(f"{subjects.prefix}.dlq.invoke.")
    assert len(outgoing.data) < MESSAGE_LIMIT
    dead_letter_result(data, ServedFunction(FUNCTION, FUNCTION), failure, InvocationAttempt("worker", 1), NOW)
    with suppress(MessageDecodeError, InvalidTicket):
        accepted = read_invocation(delivery, subjects, TICKETS)
        dispatch = Dispatch(invocation=accepted.invocation, deadline=accepted.deadline, dispatched_at=NOW)
        assert decode(encode(dispatch), Dispatch) == dispatch
        assert len(invocation_hash(accepted.invocation)) == 64
        assert decode(encode(accepted.initial_record), InvocationRecord) == accepted.initial_record
        result = dead_lettered_result(accepted.invocation, failure, NOW)
        assert decode(encode(result), Result) == result


@fuzzed(100)
@given(texts(), message_bytes([RECORD]))
@example("9" * 5000, encode_json(RECORD))
@example(str(2**64), encode_json(RECORD))
@example("7", NESTED)
def test_record_headers_are_decoded_or_ignored(revision: str, record: bytes) -> None:
    stored = record_from_headers({REVISION_HEADER: revision, RECORD_HEADER: record.decode(errors="surrogateescape")})
    assert stored is None or 0 <= stored.revision < 2**64
