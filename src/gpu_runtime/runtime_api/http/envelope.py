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
from gpu_runtime.runtime_api.http.route import Answer

REQUEST_ID = "X-Request-ID"
WAIT_SECONDS = 2
"""What Retry-After says where nobody knows better."""


class MethodNotAllowed(Rejected):
    """The path exists, and something else can be done with it."""

    code = "method_not_allowed"

    def __init__(self, method: str, allowed: str) -> None:
        super().__init__(f"{method} is not possible here; {allowed} is")
        self.allowed = allowed


class Internal(RuntimeFault):
    """A fault of ours. The sentence says nothing about it; the log does, under the request's id."""

    code = "internal"


STATUS: Mapping[type[RuntimeFault], int] = MappingProxyType(
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
class Reply:
    """An answer as bytes."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def status_of(fault: type[RuntimeFault]) -> int:
    return next(STATUS[kind] for kind in fault.__mro__ if kind in STATUS)


def success(answer: Answer) -> Reply:
    if answer.status == 204:
        return Reply(204, b"")
    envelope = {"data": answer.data}
    if answer.continuation:
        envelope["continue"] = answer.continuation
    return Reply(answer.status, msgspec.json.encode(envelope))


def failure(fault: RuntimeFault, request_id: str) -> Reply:
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if details := _details(fault):
        error["details"] = details
    error["requestID"] = request_id
    return Reply(status_of(type(fault)), msgspec.json.encode({"error": error}), _headers(fault))


def _details(fault: RuntimeFault) -> list[dict[str, str]]:
    match fault:
        case Invalid(problems=problems):
            return [{"field": problem.path, "message": problem.text} for problem in problems]
        case SyncTimeout(invocation_id=invocation_id):
            return [{"field": "invocationID", "value": invocation_id, "message": "its result can be fetched later"}]
    return []


def _headers(fault: RuntimeFault) -> dict[str, str]:
    match fault:
        case Unauthenticated():
            return {"WWW-Authenticate": 'Bearer realm="gpu-runtime"'}
        case MethodNotAllowed(allowed=allowed):
            return {"Allow": allowed}
        case Unavailable(retry_after=wait):
            return {"Retry-After": str(max(1, math.ceil(wait if wait is not None else WAIT_SECONDS)))}
    return {}
