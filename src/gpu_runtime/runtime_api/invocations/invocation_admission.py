"""Validates invocation requests and builds the invocations to enqueue. Pure functions: nothing is written."""

import base64
import binascii
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, structs

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.invocation import Invocation, invocation_id_errors
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES, MAX_TIMEOUT_SECONDS, check_body, metadata_errors
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.serverless import request_id_errors
from gpu_runtime.runtime_api.invocations.requests import Invoke

MAX_CONTENT_TYPE_LENGTH = 255
"""Maximum number of characters of contentType."""


@dataclass(frozen=True)
class InvocationLimits:
    """The configured limits of all invocations."""

    default_timeout_seconds: float = 300
    """Timeout of an invocation whose request has no timeoutSeconds."""
    max_timeout_seconds: float = MAX_TIMEOUT_SECONDS
    """Maximum timeout of an invocation. Every invocation must finish before its record expires."""
    max_body_bytes: int = MAX_PAYLOAD_BYTES
    """Maximum size of the decoded payload."""


def admit_invocation(request: Invoke, limits: InvocationLimits) -> Invocation:
    """Return the invocation of a valid request, without its enqueue time. Raises Invalid or TooLarge."""
    invocation = Invocation(
        invocation_id=uuid.uuid4().hex if request.invocation_id is UNSET else request.invocation_id,
        serverless_request_id=request.serverless_request_id,
        mode=request.mode,
        content_type=request.content_type,
        headers=request.headers,
        attributes=request.attributes,
        # Always a float: the request hash is computed from the JSON text, in which 300 and 300.0 differ.
        timeout_seconds=float(
            limits.default_timeout_seconds if request.timeout_seconds is UNSET else request.timeout_seconds
        ),
    )
    if errors := tuple(_invocation_errors(invocation, limits)):
        raise Invalid(errors)
    body = _decode_body(bytes(request.payload), invocation)
    check_body(body, limits.max_body_bytes)
    return structs.replace(invocation, body=body)


def _invocation_errors(invocation: Invocation, limits: InvocationLimits) -> Iterator[FieldError]:
    yield from invocation_id_errors(invocation.invocation_id)
    yield from request_id_errors(invocation.serverless_request_id, "serverlessRequestID")
    yield from _content_type_errors(invocation.content_type)
    yield from metadata_errors(invocation.headers, "headers")
    yield from metadata_errors(invocation.attributes, "attributes")
    for name in ("headers", "attributes"):
        if "" in getattr(invocation, name):
            yield FieldError(name, "has an entry with an empty name; name every entry")
    if invocation.timeout_seconds > limits.max_timeout_seconds:
        maximum = f"{limits.max_timeout_seconds:g}"
        text = f"{invocation.timeout_seconds:g} is too long; use at most {maximum}"
        yield FieldError("timeoutSeconds", text)


def _content_type_errors(content_type: str) -> FieldErrors:
    if not content_type:
        yield FieldError("contentType", "is empty; omit it for application/json")
    elif len(content_type) > MAX_CONTENT_TYPE_LENGTH:
        yield FieldError("contentType", f"has {len(content_type)} characters; use at most {MAX_CONTENT_TYPE_LENGTH}")
    elif not content_type.isascii() or not content_type.isprintable() or content_type != content_type.strip():
        yield FieldError("contentType", f"{content_type!r} is not a content type; use for example image/png")


def _decode_body(payload: bytes, invocation: Invocation) -> bytes:
    if invocation.is_json or not payload:
        return payload
    try:
        return base64.b64decode(msgspec.json.decode(payload, type=str), validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError) as error:
        text = f"is not base64; with contentType {invocation.content_type!r}, send the bytes as a base64 string"
        raise Invalid([FieldError("payload", text)]) from error
