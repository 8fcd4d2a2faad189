"""The routes of dead letters."""

from collections.abc import Sequence

from gpu_runtime.contract.errors import Conflict, Invalid, InvocationReused, NotFound, Overloaded, Unavailable
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterOffice
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView
from gpu_runtime.runtime_api.http.route import Answer, Call, NoQuery, Route, Scope

LETTERS = "/api/v1/operator/dead-letters"
LETTER = LETTERS + "/{id}"
TAG = "Dead letters"


def routes(office: DeadLetterOffice) -> Sequence[Route]:
    handle = _Handlers(office)
    return (_list(handle), _get(handle), _delete(handle), _redrive(handle))


class _Handlers:
    """From calls to the service."""

    def __init__(self, office: DeadLetterOffice) -> None:
        self._office = office

    async def list(self, call: Call[None, ListDeadLetters]) -> Answer:
        found, continuation = await self._office.list(call.query)
        return Answer(200, found, continuation)

    async def get(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(200, await self._office.get(call.path["id"]))

    async def delete(self, call: Call[None, NoQuery]) -> Answer:
        await self._office.delete(call.path["id"])
        return Answer(204)

    async def redrive(self, call: Call[None, NoQuery]) -> Answer:
        return Answer(202, await self._office.redrive(call.path["id"]))


def _list(handle: _Handlers) -> Route:
    return Route(
        "GET",
        LETTERS,
        "listDeadLetters",
        "List dead letters",
        handle.list,
        answers={200: list[DeadLetterView]},
        faults=(Invalid, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        query=ListDeadLetters,
        description="Messages that a consumer gave up on, the oldest first, without the messages themselves.",
        tag=TAG,
    )


def _get(handle: _Handlers) -> Route:
    return Route(
        "GET",
        LETTER,
        "getDeadLetter",
        "Get a dead letter",
        handle.get,
        answers={200: DeadLetterView},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description="With the message itself and its headers.",
        tag=TAG,
    )


def _delete(handle: _Handlers) -> Route:
    return Route(
        "DELETE",
        LETTER,
        "deleteDeadLetter",
        "Throw a dead letter away",
        handle.delete,
        answers={204: None},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.OPERATOR,
        needs_cluster=False,
        description="The invocation's result, which says that it was dead-lettered, stays.",
        tag=TAG,
    )


def _redrive(handle: _Handlers) -> Route:
    return Route(
        "POST",
        LETTER + "/redrive",
        "redriveDeadLetter",
        "Send a dead letter again",
        handle.redrive,
        answers={202: RedriveView},
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
