"""Which invocations are taken, and in which form they go on. Pure: what is refused here has written nothing."""

import base64
import binascii
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import UNSET, structs

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_hash, invocation_id_errors
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES, MAX_TIMEOUT_SECONDS, check_body, metadata_errors
from gpu_runtime.contract.messages.message_codec import to_utc_milliseconds
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.serverless import request_id_errors
from gpu_runtime.runtime_api.invocations.requests import Invoke

MAX_CONTENT_TYPE_LENGTH = 255


@dataclass(frozen=True)
class InvocationLimits:
    """What the configuration says about all of them."""

    default_timeout_seconds: float = 300
    max_timeout_seconds: float = MAX_TIMEOUT_SECONDS
    """An invocation must end while its record is still kept."""
    max_body_bytes: int = MAX_PAYLOAD_BYTES


def admit_invocation(request: Invoke, terms: InvocationLimits) -> Invocation:
    """The invocation as it goes on, not enqueued yet. Raises Invalid or TooLarge."""
    given = request.invocation_id
    invocation = Invocation(
        invocation_id=uuid.uuid4().hex if given is UNSET else given,
        serverless_request_id=request.serverless_request_id,
        mode=request.mode,
        content_type=request.content_type,
        headers=request.headers,
        attributes=request.attributes,
        # 300 and 300.0 are one number and two texts, and the hash of a request is taken from the text.
        timeout_seconds=float(
            terms.default_timeout_seconds if request.timeout_seconds is UNSET else request.timeout_seconds
        ),
    )
    if problems := tuple(_invocation_errors(invocation, terms)):
        raise Invalid(problems)
    body = _decode_body(bytes(request.payload), invocation)
    check_body(body, terms.max_body_bytes)
    return structs.replace(invocation, body=body)


def prepare_enqueue(invocation: Invocation, now: datetime) -> tuple[Invocation, InvocationRecord]:
    """The invocation as it is published, and the record of it."""
    moment = to_utc_milliseconds(now)
    going = structs.replace(invocation, enqueued_at=moment)
    record = InvocationRecord(
        request_hash=invocation_hash(invocation),
        serverless_request_id=invocation.serverless_request_id,
        enqueued_at=moment,
        deadline=going.deadline or moment,
        updated_at=moment,
    )
    return going, record


def _invocation_errors(invocation: Invocation, terms: InvocationLimits) -> Iterator[FieldError]:
    yield from invocation_id_errors(invocation.invocation_id)
    yield from request_id_errors(invocation.serverless_request_id, "serverlessRequestID")
    yield from _content_type_errors(invocation.content_type)
    yield from metadata_errors(invocation.headers, "headers")
    yield from metadata_errors(invocation.attributes, "attributes")
    for name in ("headers", "attributes"):
        if "" in getattr(invocation, name):
            yield FieldError(name, "have an entry without a name")
    if invocation.timeout_seconds > terms.max_timeout_seconds:
        text = (
            f"{invocation.timeout_seconds:g} is more than {terms.max_timeout_seconds:g}, for which invocations are kept"
        )
        yield FieldError("timeoutSeconds", text)


def _content_type_errors(content_type: str) -> FieldErrors:
    if not content_type:
        yield FieldError("contentType", "is empty; leave it out for application/json")
    elif len(content_type) > MAX_CONTENT_TYPE_LENGTH:
        yield FieldError("contentType", f"has {len(content_type)} characters; use at most {MAX_CONTENT_TYPE_LENGTH}")
    elif not content_type.isascii() or not content_type.isprintable() or content_type != content_type.strip():
        yield FieldError("contentType", f"{content_type!r} is not a content type; write for example image/png")


def _decode_body(payload: bytes, invocation: Invocation) -> bytes:
    if invocation.is_json or not payload:
        return payload
    try:
        return base64.b64decode(msgspec.json.decode(payload, type=str), validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError) as error:
        text = f"is not base64; with contentType {invocation.content_type!r}, send the bytes as a string of base64"
        raise Invalid([FieldError("payload", text)]) from error
