"""A delivery from the queue as a result, and a result as what is kept of it. Pure."""

from datetime import datetime

import msgspec

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_id import invocation_id_problems
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, with_body
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.validation.field_error import Problem, Problems
from gpu_runtime.jetstream.delivery import Delivery, GiveUp, Outgoing
from gpu_runtime.result_repository.repository import Row


def read(delivery: Delivery, subjects: Subjects, body_limit: int) -> Result:
    """The result, with no more of its body than is kept. Rejected where it is none, or says two things."""
    result = decode(delivery.data, Result)
    if problems := tuple(_problems(result, subjects.parse(delivery.subject).request_id)):
        raise Invalid(problems)
    return cut(result, body_limit)


def _problems(result: Result, request_id: str) -> Problems:
    yield from invocation_id_problems(result.invocation_id)
    if result.serverless_request_id != request_id:
        yield Problem(
            "serverlessRequestID", f"is {result.serverless_request_id!r}, but the subject says {request_id!r}"
        )


def cut(result: Result, limit: int) -> Result:
    """The result with at most so much of its body. What its sender said of a body that it cut already stays true."""
    if len(result.body) <= limit:
        return result
    shorter = with_body(result, result.content_type, result.body, limit)
    return msgspec.structs.replace(shorter, body_bytes=max(result.body_bytes, shorter.body_bytes))


def row_of(result: Result) -> Row:
    return Row(
        invocation_id=result.invocation_id,
        request_id=result.serverless_request_id,
        state=result.state.value,
        head=encode(msgspec.structs.replace(result, body=b"")),
        body=result.body,
    )


def head_of(head: bytes) -> Result:
    """The result without its body."""
    return decode(head, Result)


def result_of(row: Row) -> Result:
    return msgspec.structs.replace(head_of(row.head), body=row.body)


def letter_of(letters: DeadLetters, delivery: Delivery, outcome: GiveUp, now: datetime) -> Outgoing:
    """The dead letter of what is no result."""
    failure_class = FailureClass(outcome.kind) if outcome.kind else FailureClass.INTERNAL
    failure = Failure(failure_class=failure_class, message=outcome.reason)
    return letters.outgoing(letters.letter(delivery, failure, now))
