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
from gpu_runtime.contract.messages.invocation_id import invocation_hash, invocation_id_problems
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.limits import BODY_LIMIT, TIMEOUT_LIMIT, check_body, meta_problems
from gpu_runtime.contract.messages.message_codec import utc
from gpu_runtime.contract.validation.field_error import Problem, Problems
from gpu_runtime.contract.validation.serverless import request_id_problems
from gpu_runtime.runtime_api.invocations.requests import Invoke

CONTENT_TYPE_LIMIT = 255


@dataclass(frozen=True)
class Terms:
    """What the configuration says about all of them."""

    timeout: float = 300
    longest_timeout: float = TIMEOUT_LIMIT
    """An invocation must end while its record is still kept."""
    body_bytes: int = BODY_LIMIT


def accepted(request: Invoke, terms: Terms) -> Invocation:
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
        timeout_seconds=float(terms.timeout if request.timeout_seconds is UNSET else request.timeout_seconds),
    )
    if problems := tuple(_problems(invocation, terms)):
        raise Invalid(problems)
    body = _body(bytes(request.payload), invocation)
    check_body(body, terms.body_bytes)
    return structs.replace(invocation, body=body)


def enqueued(invocation: Invocation, now: datetime) -> tuple[Invocation, InvocationRecord]:
    """The invocation as it is published, and the record of it."""
    moment = utc(now)
    going = structs.replace(invocation, enqueued_at=moment)
    record = InvocationRecord(
        request_hash=invocation_hash(invocation),
        serverless_request_id=invocation.serverless_request_id,
        enqueued_at=moment,
        deadline=going.deadline or moment,
        updated_at=moment,
    )
    return going, record


def _problems(invocation: Invocation, terms: Terms) -> Iterator[Problem]:
    yield from invocation_id_problems(invocation.invocation_id)
    yield from request_id_problems(invocation.serverless_request_id, "serverlessRequestID")
    yield from _content_type_problems(invocation.content_type)
    yield from meta_problems(invocation.headers, "headers")
    yield from meta_problems(invocation.attributes, "attributes")
    for name in ("headers", "attributes"):
        if "" in getattr(invocation, name):
            yield Problem(name, "have an entry without a name")
    if invocation.timeout_seconds > terms.longest_timeout:
        text = f"{invocation.timeout_seconds:g} is more than {terms.longest_timeout:g}, for which invocations are kept"
        yield Problem("timeoutSeconds", text)


def _content_type_problems(content_type: str) -> Problems:
    if not content_type:
        yield Problem("contentType", "is empty; leave it out for application/json")
    elif len(content_type) > CONTENT_TYPE_LIMIT:
        yield Problem("contentType", f"has {len(content_type)} characters; use at most {CONTENT_TYPE_LIMIT}")
    elif not content_type.isascii() or not content_type.isprintable() or content_type != content_type.strip():
        yield Problem("contentType", f"{content_type!r} is not a content type; write for example image/png")


def _body(payload: bytes, invocation: Invocation) -> bytes:
    if invocation.is_json or not payload:
        return payload
    try:
        return base64.b64decode(msgspec.json.decode(payload, type=str), validate=True)
    except (msgspec.ValidationError, binascii.Error, ValueError) as error:
        text = f"is not base64; with contentType {invocation.content_type!r}, send the bytes as a string of base64"
        raise Invalid([Problem("payload", text)]) from error
