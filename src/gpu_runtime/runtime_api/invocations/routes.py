"""The HTTP routes of invocations: list, invoke, get and cancel."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import (
    AlreadyFinished,
    DuplicateRequestID,
    Invalid,
    InvocationReused,
    NotFound,
    Overloaded,
    SyncTimeout,
    TooLarge,
    Unavailable,
    WriteConflict,
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
    """Calls the invocation service."""

    def __init__(self, service: InvocationService) -> None:
        self._invocations = service

    async def list(self, request: APIRequest[None, ListInvocations]) -> APIResponse:
        views, continuation = await self._invocations.list(request.query)
        return APIResponse(200, views, continuation)

    async def invoke(self, request: APIRequest[Invoke, Any]) -> APIResponse:
        view, accepted = await self._invocations.invoke(request.body)
        return APIResponse(202 if accepted else 200, view)

    async def get(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, await self._invocations.get(request.path["invocationID"]))

    async def cancel(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        view, pending = await self._invocations.cancel(request.path["invocationID"])
        return APIResponse(202 if pending else 200, view)


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
            "Lists unfinished invocations first, then invocations with stored results. Payloads are omitted. If the"
            " field continue is set, more invocations follow, even if the page has fewer entries than limit. An"
            " invocation that changes its state during the listing may appear twice."
        ),
        tag=TAG,
    )


def _invoke(handle: _InvocationHandlers) -> Route:
    return Route(
        "POST",
        INVOCATIONS_PATH,
        "invoke",
        "Invoke a function",
        handle.invoke,
        responses={202: InvocationView, 200: InvocationView},
        faults=(
            *(Invalid, NotFound, DuplicateRequestID, InvocationReused, WriteConflict),
            *(TooLarge, Overloaded, Unavailable, SyncTimeout),
        ),
        scope=Scope.RUNTIME,
        needs_cluster=False,
        body=Invoke,
        description=(
            "202: the invocation was accepted and will get exactly one result. 200 with mode async: the same request"
            " with this invocationID was accepted before, and the response contains its state. 200 with mode sync: the"
            " response contains the result. 404: no function has this requestID. A new function is available within"
            " milliseconds. 409: another request has used the invocationID, or two functions have this requestID. 429:"
            " the queue of the function is full. 503: NATS is unavailable or did not respond in time. The invocation"
            " may have been accepted: send the same request with the same invocationID again. 504: the result did not"
            " arrive within the maximum wait. The invocation continues."
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
            "Returns the state of the invocation and, after it has finished, its result. 503: NATS is unavailable, or"
            " the invocation has finished and the result store is unavailable. The message says which of them is"
            " unavailable."
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
        faults=(Invalid, NotFound, AlreadyFinished, WriteConflict, Unavailable),
        scope=Scope.RUNTIME,
        needs_cluster=False,
        description=(
            "202: the cancellation was recorded. The invocation will finish as cancelled, unless a worker has finished"
            " it at the same time. 200: the invocation was cancelled before. 409 already_finished: the invocation has"
            " another result, which does not change."
        ),
        tag=TAG,
    )


INVOKE_EXAMPLES: dict[str, Any] = {
    "Asynchronous": {
        "invocationID": "robot-0001",
        "serverlessRequestID": "text-to-image",
        "payload": {"prompt": "draw a robot"},
        "timeoutSeconds": 120,
    },
    "Synchronous": {"serverlessRequestID": "double", "mode": "sync", "payload": {"n": 21}},
    "Binary payload": {
        "serverlessRequestID": "thumbnail",
        "contentType": "image/png",
        "attributes": {"customer": "c-17"},
        "payload": "iVBORw0KGgo=",
    },
}
