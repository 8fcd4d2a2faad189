"""Decodes deliveries of the RESULT stream, and converts results to and from database rows. Nothing here awaits."""

from datetime import datetime

import msgspec

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_id import invocation_id_errors
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, with_body
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery, OutgoingMessage
from gpu_runtime.result_repository.repository import ResultRow


def read_result(delivery: Delivery, subjects: Subjects, max_body_bytes: int) -> Result:
    """Decode a result and truncate its body.

    Raise Rejected if the message is not a valid result, or if its subject belongs to another function.
    """
    result = decode(delivery.data, Result)
    if errors := tuple(_field_errors(result, subjects.parse(delivery.subject).request_id)):
        raise Invalid(errors)
    return truncate_body(result, max_body_bytes)


def _field_errors(result: Result, request_id: str) -> FieldErrors:
    yield from invocation_id_errors(result.invocation_id)
    if result.serverless_request_id != request_id:
        yield FieldError(
            "serverlessRequestID", f"is {result.serverless_request_id!r}, but the subject has {request_id!r}"
        )


def truncate_body(result: Result, max_bytes: int) -> Result:
    """Truncate the body to `max_bytes`.

    If the sender has already truncated the body, `body_bytes` keeps the original size.
    """
    if len(result.body) <= max_bytes:
        return result
    truncated = with_body(result, result.content_type, result.body, max_bytes)
    return msgspec.structs.replace(truncated, body_bytes=max(result.body_bytes, truncated.body_bytes))


def row_from_result(result: Result) -> ResultRow:
    return ResultRow(
        invocation_id=result.invocation_id,
        request_id=result.serverless_request_id,
        state=result.state.value,
        head=encode(msgspec.structs.replace(result, body=b"")),
        body=result.body,
    )


def result_from_head(head: bytes) -> Result:
    """Decode the head of a row: the result without its body."""
    return decode(head, Result)


def result_from_row(row: ResultRow) -> Result:
    return msgspec.structs.replace(result_from_head(row.head), body=row.body)


def dead_letter_message(
    letters: DeadLetterBuilder, delivery: Delivery, outcome: DeadLetterDelivery, now: datetime
) -> OutgoingMessage:
    """Build the dead letter of a message that is not a valid result."""
    failure_class = FailureClass(outcome.failure_class) if outcome.failure_class else FailureClass.INTERNAL
    failure = Failure(failure_class=failure_class, message=outcome.reason)
    return letters.to_outgoing(letters.build(delivery, failure, now))
