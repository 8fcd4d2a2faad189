"""The routes of dead letters."""

from collections.abc import Sequence

from gpu_runtime.contract.errors import Conflict, Invalid, InvocationReused, NotFound, Overloaded, Unavailable
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope

DEAD_LETTERS_PATH = "/api/v1/operator/dead-letters"
DEAD_LETTER_PATH = DEAD_LETTERS_PATH + "/{id}"
TAG = "Dead letters"


def routes(office: DeadLetterService) -> Sequence[Route]:
    handle = _DeadLetterHandlers(office)
    return (_list(handle), _get(handle), _delete(handle), _redrive(handle))


class _DeadLetterHandlers:
    """From calls to the service."""

    def __init__(self, office: DeadLetterService) -> None:
        self._service = office

    async def list(self, call: APIRequest[None, ListDeadLetters]) -> APIResponse:
        found, continuation = await self._service.list(call.query)
        return APIResponse(200, found, continuation)

    async def get(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, await self._service.get(call.path["id"]))

    async def delete(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        await self._service.delete(call.path["id"])
        return APIResponse(204)

    async def redrive(self, call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(202, await self._service.redrive(call.path["id"]))


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
        description="Messages that a consumer gave up on, the oldest first, without the messages themselves.",
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
        description="With the message itself and its headers.",
        tag=TAG,
    )


def _delete(handle: _DeadLetterHandlers) -> Route:
    return Route(
        "DELETE",
        DEAD_LETTER_PATH,
        "deleteDeadLetter",
        "Throw a dead letter away",
        handle.delete,
        responses={204: None},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description="The invocation's result, which says that it was dead-lettered, stays.",
        tag=TAG,
    )


def _redrive(handle: _DeadLetterHandlers) -> Route:
    return Route(
        "POST",
        DEAD_LETTER_PATH + "/redrive",
        "redriveDeadLetter",
        "Send a dead letter again",
        handle.redrive,
        responses={202: RedriveView},
        faults=(Invalid, NotFound, Conflict, InvocationReused, Overloaded, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description=(
            "An invocation runs again under a new invocationID, which the answer names and which is always the same for"
            " one letter: the old one has its one result already. A result goes to the result store again. Then the"
            " letter is thrown away; asked once more, this is 404, and nothing runs twice. 409: the letter cannot be"
            " read, and would only die again. 429: the function's queue is full, and the letter stays."
        ),
        tag=TAG,
    )
