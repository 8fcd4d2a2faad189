"""The identity of an invocation: rules for its ID, and the hash that distinguishes a replay from another request."""

import hashlib
from typing import Any

import msgspec

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH
from gpu_runtime.contract.messages.message_codec import JSON_DECODE_ERRORS, MessageDecodeError
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.subjects import BadSubject, Subjects
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.values import matches

INVOCATION_ID_PATTERN = "^[A-Za-z0-9_-]+$"
"""A valid token of a NATS subject and a valid key of a key-value bucket. UUIDs and ULIDs match."""


def invocation_id_errors(invocation_id: str) -> FieldErrors:
    at = "invocationID"
    if not invocation_id:
        yield FieldError(at, "is empty; choose an ID, or omit the field to get a generated ID")
    elif len(invocation_id) > MAX_INVOCATION_ID_LENGTH:
        yield FieldError(at, f"has {len(invocation_id)} characters; use at most {MAX_INVOCATION_ID_LENGTH}")
    elif not matches(INVOCATION_ID_PATTERN, invocation_id):
        yield FieldError(at, f"{invocation_id!r} is not an invocationID; use letters, digits, '-' and '_'")


def check_subject(message: Invocation | Result, subject: str, subjects: Subjects) -> None:
    """Raise MessageDecodeError if the invocationID is invalid or the subject belongs to another function."""
    try:
        request_id = subjects.parse(subject).request_id
    except BadSubject as bad_subject:
        raise MessageDecodeError(bad_subject.message) from bad_subject
    for error in identity_errors(message, request_id):
        raise MessageDecodeError(str(error))


def identity_errors(message: Invocation | Result, request_id: str) -> FieldErrors:
    """Yield the errors of the IDs in a message on a subject with this requestID.

    Both IDs become parts of subjects and keys. If one of them were invalid, no process could publish the result.
    """
    yield from invocation_id_errors(message.invocation_id)
    if message.serverless_request_id != request_id:
        yield FieldError(
            "serverlessRequestID", f"is {message.serverless_request_id!r}, but the subject has {request_id!r}"
        )


def invocation_hash(invocation: Invocation) -> str:
    """Return the hash of the request. Requests with the same meaning have the same hash.

    The hash does not depend on the ID, the enqueue time, the mode or the reply subject. So a caller whose synchronous
    call was interrupted can repeat the request asynchronously.
    """
    request = msgspec.structs.replace(
        invocation, invocation_id="", enqueued_at=None, reply_to="", mode="async", body=b""
    )
    body = hashlib.sha256(_canonical_body(invocation)).hexdigest()
    return hashlib.sha256(f"Invocation\n{canonical_request(request)}\n{body}".encode()).hexdigest()


def _canonical_body(invocation: Invocation) -> bytes:
    """Return the body. A JSON body is normalized, because whitespace and the order of names have no meaning in JSON."""
    if not invocation.is_json:
        return invocation.body
    try:
        value: Any = msgspec.json.decode(invocation.body)
    except JSON_DECODE_ERRORS:
        return invocation.body
    return msgspec.json.encode(value, order="sorted")
