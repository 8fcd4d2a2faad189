"""The HTTP routes of dead letters: list, get, delete and redrive."""

from collections.abc import Sequence

from gpu_runtime.contract.errors import (
    Invalid,
    InvocationReused,
    NotFound,
    NotRedrivable,
    Overloaded,
    Unavailable,
    WriteConflict,
)
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope

DEAD_LETTERS_PATH = "/api/v1/operator/dead-letters"
DEAD_LETTER_PATH = DEAD_LETTERS_PATH + "/{id}"
TAG = "Dead letters"


def routes(service: DeadLetterService) -> Sequence[Route]:
    handle = _DeadLetterHandlers(service)
    return (_list(handle), _get(handle), _delete(handle), _redrive(handle))


class _DeadLetterHandlers:
    """Calls the dead-letter service."""

    def __init__(self, service: DeadLetterService) -> None:
        self._service = service

    async def list(self, request: APIRequest[None, ListDeadLetters]) -> APIResponse:
        views, continuation = await self._service.list(request.query)
        return APIResponse(200, views, continuation)

    async def get(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, await self._service.get(request.path["id"]))

    async def delete(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        await self._service.delete(request.path["id"])
        return APIResponse(204)

    async def redrive(self, request: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(202, await self._service.redrive(request.path["id"]))


def _list(handle: _DeadLetterHandlers) -> Route:
    return Route(
        "GET",
        DEAD_LETTERS_PATH,
        "listDeadLetters",
        "List dead letters",
        handle.list,
        responses={200: list[DeadLetterView]},
        faults=(Invalid, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        query=ListDeadLetters,
        description="Lists the messages that consumers dead-lettered, starting with the oldest. Headers and content are"
        " omitted.",
        tag=TAG,
    )


def _get(handle: _DeadLetterHandlers) -> Route:
    return Route(
        "GET",
        DEAD_LETTER_PATH,
        "getDeadLetter",
        "Get a dead letter",
        handle.get,
        responses={200: DeadLetterView},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description="Returns the dead letter with the content and the headers of its message.",
        tag=TAG,
    )


def _delete(handle: _DeadLetterHandlers) -> Route:
    return Route(
        "DELETE",
        DEAD_LETTER_PATH,
        "deleteDeadLetter",
        "Delete a dead letter",
        handle.delete,
        responses={204: None},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description="Deletes the dead letter. The result of the invocation, with the state dead_lettered, stays.",
        tag=TAG,
    )


def _redrive(handle: _DeadLetterHandlers) -> Route:
    return Route(
        "POST",
        DEAD_LETTER_PATH + "/redrive",
        "redriveDeadLetter",
        "Redrive a dead letter",
        handle.redrive,
        responses={202: RedriveView},
        faults=(Invalid, NotFound, NotRedrivable, InvocationReused, WriteConflict, Overloaded, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description=(
            "If the dead letter contains an invocation, enqueues it again. If the dead letter contains a result,"
            " publishes the result again. Then deletes the dead letter. The invocation runs with a new invocationID,"
            " because the old one already has a result. The response contains the new invocationID, which is always the"
            " same for one dead letter. A repeated request returns 404, and the invocation does not run a second time."
            " 409 not_redrivable: the message is malformed, and a consumer would dead-letter it again. 429: the queue"
            " of the function is full, and the dead letter stays."
        ),
        tag=TAG,
    )
