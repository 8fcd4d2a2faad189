"""The HTTP routes of invocations: list, invoke, get and cancel."""

from typing import Any

from gpu_runtime.contract.errors import (
    AlreadyFinished,
    InvocationReused,
    NotFound,
    Overloaded,
    SyncTimeout,
    TooLarge,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, Scope
from gpu_runtime.runtime_api.invocations.requests import Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.service import InvocationService
from gpu_runtime.runtime_api.invocations.view import InvocationView

INVOCATIONS = RouteGroup[InvocationService]("Invocations", Scope.RUNTIME, needs_cluster=False, audit_reads=True)

INVOCATIONS_PATH = "/api/v1/serverless/invocations"
INVOCATION_PATH = INVOCATIONS_PATH + "/{invocationID}"

MAX_INVOKE_BYTES = 768 * 1024
"""Large enough for every invocation: the largest payload has 512 KiB, which are 683 KiB in base64."""

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


@INVOCATIONS.route("GET", INVOCATIONS_PATH, {200: list[InvocationView]})
async def list_invocations(invocations: InvocationService, request: APIRequest[None, ListInvocations]) -> APIResponse:
    """List the invocations of a function.

    Lists unfinished invocations first, then invocations with stored results. Payloads are omitted. If the field
    continue is set, more invocations follow, even if the page has fewer entries than limit. An invocation that
    changes its state during the listing may appear twice.
    """
    views, continuation = await invocations.list(request.query)
    return APIResponse(200, views, continuation)


@INVOCATIONS.route(
    "POST",
    INVOCATIONS_PATH,
    {202: InvocationView, 200: InvocationView},
    faults=(NotFound, InvocationReused, WriteConflict, TooLarge, Overloaded, SyncTimeout),
    examples=INVOKE_EXAMPLES,
    max_body_bytes=MAX_INVOKE_BYTES,
)
async def invoke(invocations: InvocationService, request: APIRequest[Invoke, NoQuery]) -> APIResponse:
    """Invoke a function.

    202: the invocation was accepted and will get exactly one result. 200 with mode async: the same request with this
    invocationID was accepted before, and the response contains its state. 200 with mode sync: the response contains the
    result. 404: no function has this requestID. A new function is available within milliseconds. 409: another request
    has used the invocationID. 429: the queues have no capacity for the invocation. 503: NATS is unavailable or did not
    respond in time, or a new function has no queue yet. The invocation may have been accepted: send the same request
    with the same invocationID again. 504: the result did not arrive within the maximum wait. The invocation continues.
    """
    view, accepted = await invocations.invoke(request.body)
    return APIResponse(202 if accepted else 200, view)


@INVOCATIONS.route("GET", INVOCATION_PATH, {200: InvocationView}, faults=(NotFound,))
async def get_invocation(invocations: InvocationService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Get an invocation and its result.

    Returns the state of the invocation and, after it has finished, its result. 503: NATS is unavailable, or the
    invocation has finished and the result store is unavailable. The message says which of them is unavailable.
    """
    return APIResponse(200, await invocations.get(request.path["invocationID"]))


@INVOCATIONS.route(
    "DELETE",
    INVOCATION_PATH,
    {202: InvocationView, 200: InvocationView},
    faults=(NotFound, AlreadyFinished, WriteConflict),
)
async def cancel_invocation(invocations: InvocationService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Cancel an invocation.

    202: the cancellation was recorded. The invocation will finish as cancelled, unless a worker has finished it at
    the same time. 200: the invocation was cancelled before. 409 already_finished: the invocation has another
    result, which does not change.
    """
    view, pending = await invocations.cancel(request.path["invocationID"])
    return APIResponse(202 if pending else 200, view)
