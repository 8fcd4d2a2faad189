"""The routes of invocations."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import (
    Conflict,
    Invalid,
    InvocationReused,
    NotFound,
    Overloaded,
    SyncTimeout,
    TooLarge,
    Unavailable,
)
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope
from gpu_runtime.runtime_api.invocations.requests import Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.service import InvocationService
from gpu_runtime.runtime_api.invocations.view import InvocationView

INVOCATIONS_PATH = "/api/v1/serverless/invocations"
INVOCATION_PATH = INVOCATIONS_PATH + "/{invocationID}"
TAG = "Invocations"


def routes(service: InvocationService) -> Sequence[Route]:
    handle = _InvocationHandlers(service)
    return (_list(handle), _invoke(handle), _get(handle), _cancel(handle))


class _InvocationHandlers:
    """From calls to the service."""

    def __init__(self, service: InvocationService) -> None:
        self._invocations = service

    async def list(self, call: APIRequest[None, ListInvocations]) -> APIResponse:
        found, continuation = await self._invocations.list(call.query)
        return APIResponse(200, found, continuation)

    async def invoke(self, call: APIRequest[Invoke, Any]) -> APIResponse:
        view, accepted = await self._invocations.invoke(call.body)
        return APIResponse(202 if accepted else 200, view)

    async def get(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, await self._invocations.get(call.path["invocationID"]))

    async def cancel(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        view, coming = await self._invocations.cancel(call.path["invocationID"])
        return APIResponse(202 if coming else 200, view)


def _list(handle: _InvocationHandlers) -> Route:
    return Route(
        "GET",
        INVOCATIONS_PATH,
        "listInvocations",
        "List the invocations of a function",
        handle.list,
        responses={200: list[InvocationView]},
        faults=(Invalid, Unavailable),
        scope=Scope.RUNTIME,
        needs_cluster=False,
        query=ListInvocations,
        description=(
            "First those that have not ended, then those whose results are stored, without their payloads. A page may"
            " hold fewer than limit although there are more: continue tells. An invocation that goes on while it is"
            " listed may be seen twice."
        ),
        tag=TAG,
    )


def _invoke(handle: _InvocationHandlers) -> Route:
    return Route(
        "POST",
        INVOCATIONS_PATH,
        "invoke",
        "Call a function",
        handle.invoke,
        responses={202: InvocationView, 200: InvocationView},
        faults=(
            *(Invalid, NotFound, Conflict, InvocationReused),
            *(TooLarge, Overloaded, Unavailable, SyncTimeout),
        ),
        scope=Scope.RUNTIME,
        needs_cluster=False,
        body=Invoke,
        description=(
            "202: it was accepted, and ends in exactly one result. 200: for async, the same request was accepted before"
            " under this invocationID, and this is how far it has come; for sync, this is its result, whichever request"
            " was first. 404: there is no such function; one that was made a moment ago is known within milliseconds."
            " 409: the invocationID stands for another request, or two functions have this requestID. 429: too many"
            " invocations of the function wait already. 503: NATS is away, or did not answer in time; it may have been"
            " accepted all the same, and may be asked again under the same invocationID. 504: the answer did not come"
            " while the caller could wait; the invocation goes on."
        ),
        examples=INVOKE_EXAMPLES,
        tag=TAG,
    )


def _get(handle: _InvocationHandlers) -> Route:
    return Route(
        "GET",
        INVOCATION_PATH,
        "getInvocation",
        "Get an invocation and its result",
        handle.get,
        responses={200: InvocationView},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.RUNTIME,
        needs_cluster=False,
        description=(
            "How far it has come, and when it has ended, its result. 503: it has ended, as the message says, and the"
            " result store is away; or NATS is."
        ),
        tag=TAG,
    )


def _cancel(handle: _InvocationHandlers) -> Route:
    return Route(
        "DELETE",
        INVOCATION_PATH,
        "cancelInvocation",
        "Cancel an invocation",
        handle.cancel,
        responses={202: InvocationView, 200: InvocationView},
        faults=(Invalid, NotFound, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        needs_cluster=False,
        description=(
            "202: it is taken back and soon ends as cancelled, unless its answer was there a moment before. 200: it was"
            " cancelled before. 409: it has ended otherwise, and stays so."
        ),
        tag=TAG,
    )


INVOKE_EXAMPLES: dict[str, Any] = {
    "Without waiting": {
        "invocationID": "robot-0001",
        "serverlessRequestID": "text-to-image",
        "payload": {"prompt": "draw a robot"},
        "timeoutSeconds": 120,
    },
    "With the answer": {"serverlessRequestID": "double", "mode": "sync", "payload": {"n": 21}},
    "Bytes": {
        "serverlessRequestID": "thumbnail",
        "contentType": "image/png",
        "attributes": {"customer": "c-17"},
        "payload": "iVBORw0KGgo=",
    },
}
