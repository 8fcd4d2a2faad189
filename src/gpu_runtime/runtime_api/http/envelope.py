"""What an answer looks like: the envelope of data, the envelope of an error, and the status of every fault. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

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
from gpu_runtime.runtime_api.http.route import APIResponse

REQUEST_ID_HEADER = "X-Request-ID"
DEFAULT_RETRY_AFTER_SECONDS = 2
"""What Retry-After says where nobody knows better."""


class MethodNotAllowed(Rejected):
    """The path exists, and something else can be done with it."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible here; {allowed} is")
        self.allowed = allowed


class InternalError(RuntimeFault):
    """A fault of ours. The sentence says nothing about it; the log does, under the request's id."""

    code = "internal"


FAULT_STATUS: Mapping[type[RuntimeFault], int] = MappingProxyType(
    {
        RuntimeFault: 500,
        Rejected: 400,
        Invalid: 400,
        Unauthenticated: 401,
        Forbidden: 403,
        NotFound: 404,
        MethodNotAllowed: 405,
        Conflict: 409,
        Gone: 410,
        TooLarge: 413,
        Overloaded: 429,
        Unavailable: 503,
        SyncTimeout: 504,
    }
)
"""The status of a fault is that of the nearest of its kinds that has one."""


@dataclass(frozen=True)
class EncodedEnvelope:
    """An answer as bytes."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def http_status(fault: type[RuntimeFault]) -> int:
    return next(FAULT_STATUS[kind] for kind in fault.__mro__ if kind in FAULT_STATUS)


def success_response(answer: APIResponse) -> EncodedEnvelope:
    if answer.status == 204:
        return EncodedEnvelope(204, b"")
    envelope = {"data": answer.data}
    if answer.continuation:
        envelope["continue"] = answer.continuation
    return EncodedEnvelope(answer.status, msgspec.json.encode(envelope))


def error_response(fault: RuntimeFault, request_id: str) -> EncodedEnvelope:
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if details := _error_details(fault):
        error["details"] = details
    error["requestID"] = request_id
    return EncodedEnvelope(http_status(type(fault)), msgspec.json.encode({"error": error}), _error_headers(fault))


def _error_details(fault: RuntimeFault) -> list[dict[str, str]]:
    match fault:
        case Invalid(errors=problems):
            return [{"field": problem.path, "message": problem.message} for problem in problems]
        case SyncTimeout(invocation_id=invocation_id):
            return [{"field": "invocationID", "value": invocation_id, "message": "its result can be fetched later"}]
    return []


def _error_headers(fault: RuntimeFault) -> dict[str, str]:
    match fault:
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="gpu-runtime"'}
        case MethodNotAllowed(allowed=allowed):
            return {"Allow": allowed}
        case Unavailable(retry_after=wait):
            return {"Retry-After": str(max(1, math.ceil(wait if wait is not None else DEFAULT_RETRY_AFTER_SECONDS)))}
    return {}
