"""A delivery from the queue as a result, and a result as what is kept of it. Pure."""

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


def read_result(delivery: Delivery, subjects: Subjects, body_limit: int) -> Result:
    """The result, with no more of its body than is kept. Rejected where it is none, or says two things."""
    result = decode(delivery.data, Result)
    if problems := tuple(_problems(result, subjects.parse(delivery.subject).request_id)):
        raise Invalid(problems)
    return truncate_body(result, body_limit)


def _problems(result: Result, request_id: str) -> FieldErrors:
    yield from invocation_id_errors(result.invocation_id)
    if result.serverless_request_id != request_id:
        yield FieldError(
            "serverlessRequestID", f"is {result.serverless_request_id!r}, but the subject says {request_id!r}"
        )


def truncate_body(result: Result, limit: int) -> Result:
    """The result with at most so much of its body. What its sender said of a body that it cut already stays true."""
    if len(result.body) <= limit:
        return result
    shorter = with_body(result, result.content_type, result.body, limit)
    return msgspec.structs.replace(shorter, body_bytes=max(result.body_bytes, shorter.body_bytes))


def row_from_result(result: Result) -> ResultRow:
    return ResultRow(
        invocation_id=result.invocation_id,
        request_id=result.serverless_request_id,
        state=result.state.value,
        head=encode(msgspec.structs.replace(result, body=b"")),
        body=result.body,
    )


def result_from_head(head: bytes) -> Result:
    """The result without its body."""
    return decode(head, Result)


def result_from_row(row: ResultRow) -> Result:
    return msgspec.structs.replace(result_from_head(row.head), body=row.body)


def dead_letter_message(
    letters: DeadLetterBuilder, delivery: Delivery, outcome: DeadLetterDelivery, now: datetime
) -> OutgoingMessage:
    """The dead letter of what is no result."""
    failure_class = FailureClass(outcome.failure_class) if outcome.failure_class else FailureClass.INTERNAL
    failure = Failure(failure_class=failure_class, message=outcome.reason)
    return letters.to_outgoing(letters.build(delivery, failure, now))
