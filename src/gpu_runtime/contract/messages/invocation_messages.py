"""Builds and reads the messages about an invocation: invocation, dispatch and result. Nothing here awaits.

Every process uses these functions, so that the same event leads to the same message in each of them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

import msgspec

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, invocation_id_errors
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    Termination,
    record_headers,
)
from gpu_runtime.contract.messages.invocation_ticket import (
    TICKET_HEADER,
    InvalidTicket,
    InvocationTicket,
    MessageIDs,
    TicketKeyring,
    header_record,
    ticket_headers,
)
from gpu_runtime.contract.messages.limits import truncate_text
from gpu_runtime.contract.messages.message_codec import (
    JSON_DECODE_ERRORS,
    MessageDecodeError,
    decode,
    encode,
    to_utc_milliseconds,
)
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings
from gpu_runtime.contract.messages.subjects import BadSubject, Stream, Subjects
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery, OutgoingMessage

OTHER_INVOCATION = "the ticket belongs to another invocation"
MAX_NORMALIZED_BYTES = 64 * 1024
"""Maximum size of a JSON body that is normalized before it is hashed."""


@dataclass(frozen=True)
class AcceptedInvocation:
    """A decoded message of the INVOKE stream."""

    invocation: Invocation
    deadline: datetime
    ticket: InvocationTicket
    ticket_text: str
    """The ticket as the header contains it. The messages about this invocation return it."""
    header_record: RecordAtRevision | None
    """The record at the time when the message was published, from the headers of the message."""

    @property
    def initial_record(self) -> InvocationRecord:
        """The record as the runtime API wrote it when it accepted the invocation."""
        invocation = self.invocation
        accepted_at = invocation.enqueued_at or self.deadline - timedelta(seconds=invocation.timeout_seconds)
        return new_record(invocation, accepted_at, self.deadline)


def read_invocation(delivery: Delivery, subjects: Subjects, tickets: TicketKeyring) -> AcceptedInvocation:
    """Decode a delivery and check its ticket.

    Raise MessageDecodeError if it is not an invocation or its subject names another function. Raise InvalidTicket if
    the platform has not accepted this invocation.
    """
    invocation, headers = decode(delivery.data, Invocation), delivery.headers
    check_subject(invocation, delivery.subject, subjects)
    ticket = tickets.verify(headers)
    deadline = to_utc_milliseconds(invocation.deadline or delivery.published_at)
    check_ticket(invocation, deadline, ticket)
    return AcceptedInvocation(invocation, deadline, ticket, headers[TICKET_HEADER], header_record(headers, ticket))


def read_dispatch(data: bytes, subject: str, subjects: Subjects) -> Dispatch:
    """Decode a dispatch. Raise MessageDecodeError if it is not a dispatch or its subject names another function."""
    dispatch = decode(data, Dispatch)
    check_subject(dispatch.invocation, subject, subjects)
    return dispatch


def check_ticket(invocation: Invocation, deadline: datetime, ticket: InvocationTicket) -> None:
    """Raise InvalidTicket if the ticket belongs to another invocation.

    The request hash is not compared, because a process would have to read the whole body.
    """
    identity = (invocation.invocation_id, invocation.function_id, invocation.serverless_request_id)
    if (*identity, invocation.enqueued_at, deadline, invocation.reply_to) != (
        ticket.invocation_id,
        ticket.function_id,
        ticket.serverless_request_id,
        ticket.enqueued_at,
        ticket.deadline,
        ticket.reply_to,
    ):
        raise InvalidTicket(OTHER_INVOCATION)


def check_result(result: Result, ticket: InvocationTicket) -> None:
    """Raise InvalidTicket if the ticket belongs to another invocation than the result."""
    identity = (result.invocation_id, result.function_id, result.serverless_request_id)
    if identity != (ticket.invocation_id, ticket.function_id, ticket.serverless_request_id):
        raise InvalidTicket(OTHER_INVOCATION)


def decode_invocation(stream: Stream, data: bytes) -> Invocation:
    """Decode the invocation in a message of the INVOKE or DISPATCH stream, without a check of its subject."""
    return decode(data, Dispatch).invocation if stream is Stream.DISPATCH else decode(data, Invocation)


def check_subject(message: Invocation | Result, subject: str, subjects: Subjects) -> None:
    """Raise MessageDecodeError if the invocationID is invalid or the subject belongs to another function."""
    try:
        function_id = subjects.parse(subject).function_id
    except BadSubject as bad_subject:
        raise MessageDecodeError(bad_subject.message) from bad_subject
    for error in identity_errors(message, function_id):
        raise MessageDecodeError(str(error))


def identity_errors(message: Invocation | Result, function_id: str) -> FieldErrors:
    """Yield the errors of the IDs in a message on a subject with this functionID.

    Both IDs become parts of subjects and keys. If one of them were invalid, no process could publish the result.
    """
    yield from invocation_id_errors(message.invocation_id)
    if message.function_id != function_id:
        yield FieldError("functionID", f"is {message.function_id!r}, but the subject has {function_id!r}")


def new_record(invocation: Invocation, enqueued_at: datetime, deadline: datetime) -> InvocationRecord:
    return InvocationRecord(
        request_hash=invocation_hash(invocation),
        serverless_request_id=invocation.serverless_request_id,
        function_id=invocation.function_id,
        enqueued_at=enqueued_at,
        deadline=deadline,
        updated_at=enqueued_at,
        reply_to=invocation.reply_to,
    )


def invocation_hash(invocation: Invocation) -> str:
    """Return the hash of the request. Requests with the same meaning have the same hash.

    The hash does not depend on the ID, the enqueue time, the mode or the reply subject. So a caller whose synchronous
    call was interrupted can repeat the request asynchronously. The hash does not depend on the functionID, because the
    caller does not choose it.
    """
    request = msgspec.structs.replace(
        invocation, invocation_id="", function_id="", enqueued_at=None, reply_to="", mode="async", body=b""
    )
    body = hashlib.sha256(_canonical_body(invocation)).hexdigest()
    return hashlib.sha256(f"Invocation\n{canonical_request(request)}\n{body}".encode()).hexdigest()


def _canonical_body(invocation: Invocation) -> bytes:
    """Return the body. A JSON body is normalized, because whitespace and the order of names have no meaning in JSON.

    A large body is returned unchanged, because its normalization would block the event loop.
    """
    if not invocation.is_json or len(invocation.body) > MAX_NORMALIZED_BYTES:
        return invocation.body
    try:
        value: Any = msgspec.json.decode(invocation.body)
    except JSON_DECODE_ERRORS:
        return invocation.body
    return msgspec.json.encode(value, order="sorted")


def dispatched_record(dispatch: Dispatch) -> InvocationRecord:
    """The record that an invocation has before a worker starts it, from its dispatch."""
    invocation = dispatch.invocation
    return new_record(invocation, invocation.enqueued_at or dispatch.dispatched_at, dispatch.deadline)


def invoke_message(
    subjects: Subjects, invocation: Invocation, stored: RecordAtRevision, tickets: TicketKeyring
) -> OutgoingMessage:
    ticket = tickets.sign_record(invocation.invocation_id, stored.record)
    subject, message_id = subjects.invoke(invocation.function_id), tickets.message_id(Stream.INVOKE, ticket)
    return OutgoingMessage(subject, encode(invocation), message_id, _headers(stored, ticket))


def dispatch_message(
    subjects: Subjects, dispatch: Dispatch, stored: RecordAtRevision, ticket: str, message_ids: MessageIDs
) -> OutgoingMessage:
    subject = subjects.dispatch(dispatch.invocation.function_id)
    message_id = message_ids(Stream.DISPATCH, ticket, str(dispatch.attempt))
    return OutgoingMessage(subject, encode(dispatch), message_id, _headers(stored, ticket))


def result_message(
    subjects: Subjects, result: Result, stored: RecordAtRevision | None, ticket: str, message_ids: MessageIDs
) -> OutgoingMessage:
    subject, message_id = subjects.result(result.function_id), message_ids(Stream.RESULT, ticket, result.state)
    return OutgoingMessage(subject, encode(result), message_id, _headers(stored, ticket))


def _headers(stored: RecordAtRevision | None, ticket: str) -> dict[str, str]:
    return record_headers(stored) | ticket_headers(ticket)


_TERMINATIONS: Mapping[Termination, tuple[ResultState, FailureClass, str]] = MappingProxyType(
    {
        Termination.CANCELLED: (ResultState.CANCELLED, FailureClass.CANCELLED, "the caller cancelled the invocation"),
        Termination.EXPIRED: (
            ResultState.EXPIRED,
            FailureClass.TIMED_OUT,
            "the deadline passed before a worker finished the invocation",
        ),
        Termination.FUNCTION_GONE: (
            ResultState.FAILED,
            FailureClass.FUNCTION_GONE,
            "the function was deleted or is disabled",
        ),
        Termination.DEAD_LETTERED: (
            ResultState.DEAD_LETTERED,
            FailureClass.INTERNAL,
            "the activator could not dispatch the invocation; its dead letter has the reason",
        ),
    }
)


def termination_failure(termination: Termination) -> tuple[ResultState, Failure]:
    """Return the state and the failure of the result of a termination."""
    state, failure_class, message = _TERMINATIONS[termination]
    return state, Failure(failure_class=failure_class, message=message)


def termination_result(invocation_id: str, record: InvocationRecord, termination: Termination, now: datetime) -> Result:
    """Build the result of an invocation that ends without an outcome of a worker."""
    state, failure = termination_failure(termination)
    return Result(
        invocation_id=invocation_id,
        serverless_request_id=record.serverless_request_id,
        function_id=record.function_id,
        state=state,
        failure=failure,
        timings=Timings(enqueued_at=record.enqueued_at, finished_at=to_utc_milliseconds(now)),
        worker=record.worker,
        attempts=record.attempts,
    )


def dead_lettered_result(invocation: Invocation, failure: Failure, now: datetime) -> Result:
    """Build the result of an invocation that the activator dead-letters."""
    return Result(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        function_id=invocation.function_id,
        state=ResultState.DEAD_LETTERED,
        failure=failure,
        timings=Timings(enqueued_at=invocation.enqueued_at, finished_at=to_utc_milliseconds(now)),
    )


def dead_letter_failure(outcome: DeadLetterDelivery) -> Failure:
    """Build the failure of a dead-lettered delivery. If the handler chose no class, the platform failed."""
    failure_class = FailureClass(outcome.failure_class or FailureClass.INTERNAL)
    return Failure(failure_class=failure_class, message=truncate_text(outcome.reason))
