"""What makes an invocation the one it is: its ID, and the hash of what was asked."""

import hashlib
from typing import Any

import msgspec

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH
from gpu_runtime.contract.messages.message_codec import JSON_DECODE_ERRORS, MessageDecodeError
from gpu_runtime.contract.messages.subjects import BadSubject, Subjects
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.values import matches

INVOCATION_ID_PATTERN = "^[A-Za-z0-9_-]+$"
"""One token of a subject, and a key of the key-value bucket. UUIDs and ULIDs are such."""


def invocation_id_errors(invocation_id: str, at: str = "invocationID") -> FieldErrors:
    if not invocation_id:
        yield FieldError(at, "is empty; leave it out to have one made, or choose one per invocation")
    elif len(invocation_id) > MAX_INVOCATION_ID_LENGTH:
        yield FieldError(at, f"has {len(invocation_id)} characters; use at most {MAX_INVOCATION_ID_LENGTH}")
    elif not matches(INVOCATION_ID_PATTERN, invocation_id):
        yield FieldError(at, f"{invocation_id!r} is not an invocationID; use letters, digits, '-' and '_'")


def check_subject(invocation: Invocation, subject: str, subjects: Subjects) -> None:
    """Unreadable where an invocation cannot be the one of its ID, or came to another function's subject: what it says
    becomes subjects and keys, and nobody could publish its end."""
    for problem in invocation_id_errors(invocation.invocation_id):
        raise MessageDecodeError(str(problem))
    try:
        request_id = subjects.parse(subject).request_id
    except BadSubject as error:
        raise MessageDecodeError(error.message) from error
    if invocation.serverless_request_id != request_id:
        text = f"serverlessRequestID: is {invocation.serverless_request_id!r}, but the subject says {request_id!r}"
        raise MessageDecodeError(text)


def invocation_hash(invocation: Invocation) -> str:
    """One hash for invocations that ask the same.

    What is no part of it: the ID, the moment, and how the caller waits for the answer. A caller whose synchronous call
    broke may ask again asynchronously.
    """
    asked = msgspec.structs.replace(invocation, invocation_id="", enqueued_at=None, reply_to="", mode="async", body=b"")
    body = hashlib.sha256(_canonical_body(invocation)).hexdigest()
    return hashlib.sha256(f"Invocation\n{canonical_request(asked)}\n{body}".encode()).hexdigest()


def _canonical_body(invocation: Invocation) -> bytes:
    """The body; where it is JSON, without what JSON does not mean: blanks and the order of names."""
    if not invocation.is_json:
        return invocation.body
    try:
        value: Any = msgspec.json.decode(invocation.body)
    except JSON_DECODE_ERRORS:
        return invocation.body
    return msgspec.json.encode(value, order="sorted")
