"""Encodes responses: the data envelope, the error envelope, and the HTTP status of every fault. Pure functions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from gpu_runtime.contract.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    Overloaded,
    Rejected,
    RuntimeFault,
    SyncTimeout,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from gpu_runtime.runtime_api.http.route import APIResponse, View

REQUEST_ID_HEADER = "X-Request-ID"
DEFAULT_RETRY_AFTER_SECONDS = 2
"""The Retry-After header of a fault that does not specify a delay."""


class MethodNotAllowed(Rejected):
    """The path exists, but does not support the method."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not supported on this path; use {allowed}")
        self.allowed = allowed


class SlowRequest(Rejected):
    """The client sends the body of the request too slowly."""

    code = "slow_request"


class InternalError(RuntimeFault):
    """An unexpected error in the API. The message contains no details. The log contains them with the request ID."""

    code = "internal"


class ErrorDetail(View, frozen=True, kw_only=True):
    """The error of one field."""

    field: str
    """The path of the field, for example template.ports[0].name."""

    value: str = ""
    """The value of the field, if the API generated it."""

    message: str
    """What is wrong, or what to do."""


class ErrorBody(View, frozen=True, kw_only=True):
    """The reason for the error."""

    code: str
    """The reason as a code for programs. Codes do not change."""

    message: str
    """The reason as a sentence for people. The sentence may change."""

    details: tuple[ErrorDetail, ...] = ()
    """The errors by field."""

    request_id: str = msgspec.field(name="requestID")
    """The ID of the request in the logs."""


class Error(View, frozen=True, kw_only=True):
    """The body of every error response."""

    error: ErrorBody


FAULT_STATUS: Mapping[type[RuntimeFault], int] = MappingProxyType(
    {
        RuntimeFault: 500,
        Rejected: 400,
        Invalid: 400,
        Unauthenticated: 401,
        Forbidden: 403,
        NotFound: 404,
        MethodNotAllowed: 405,
        SlowRequest: 408,
        Conflict: 409,
        Gone: 410,
        TooLarge: 413,
        Overloaded: 429,
        Unavailable: 503,
        SyncTimeout: 504,
    }
)
"""The HTTP status of each fault. A fault that is not listed has the status of its nearest base class."""


@dataclass(frozen=True)
class EncodedEnvelope:
    """A response with its encoded body."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def http_status(fault: type[RuntimeFault]) -> int:
    return next(FAULT_STATUS[kind] for kind in fault.__mro__ if kind in FAULT_STATUS)


def success_response(response: APIResponse) -> EncodedEnvelope:
    if response.status == 204:
        return EncodedEnvelope(204, b"")
    envelope = {"data": response.data}
    if response.continuation:
        envelope["continue"] = response.continuation
    return EncodedEnvelope(response.status, msgspec.json.encode(envelope))


def error_response(fault: RuntimeFault, request_id: str) -> EncodedEnvelope:
    details: tuple[ErrorDetail, ...] = ()
    match fault:
        case Invalid(errors=problems):
            details = tuple(ErrorDetail(field=each.path, message=each.message) for each in problems)
        case SyncTimeout(invocation_id=invocation_id):
            hint = "get the result later with this ID"
            details = (ErrorDetail(field="invocationID", value=invocation_id, message=hint),)
    error = ErrorBody(code=fault.code, message=fault.message, details=details, request_id=request_id)
    return EncodedEnvelope(http_status(type(fault)), msgspec.json.encode(Error(error=error)), _error_headers(fault))


def _error_headers(fault: RuntimeFault) -> dict[str, str]:
    match fault:
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="gpu-runtime"'}
        case MethodNotAllowed(allowed=allowed):
            return {"Allow": allowed}
        case Unavailable(retry_after=wait):
            return {"Retry-After": str(max(1, math.ceil(wait if wait is not None else DEFAULT_RETRY_AFTER_SECONDS)))}
    return {}
