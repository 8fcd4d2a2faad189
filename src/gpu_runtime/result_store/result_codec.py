"""Decodes deliveries of the RESULT stream, and converts results to and from database rows. Nothing here awaits."""

import msgspec

from gpu_runtime.contract.messages.invocation_id import check_subject
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Result, with_body
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import Delivery
from gpu_runtime.result_repository.repository import ResultRow


def read_result(delivery: Delivery, subjects: Subjects, max_body_bytes: int) -> Result:
    """Decode a result and truncate its body.

    Raise MessageDecodeError if the message is not a valid result, or if its subject belongs to another function.
    """
    result = decode(delivery.data, Result)
    check_subject(result, delivery.subject, subjects)
    return truncate_body(result, max_body_bytes)


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
