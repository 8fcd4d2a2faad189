"""The HTTP routes of dead letters: list, get, delete and redrive."""

from gpu_runtime.contract.errors import (
    InvocationReused,
    NotFound,
    NotRedrivable,
    Overloaded,
    WriteConflict,
)
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, Scope

DEAD_LETTERS = RouteGroup[DeadLetterService]("Dead letters", Scope.OPERATOR, needs_cluster=False, audit_reads=True)

DEAD_LETTERS_PATH = "/api/v1/operator/dead-letters"
DEAD_LETTER_PATH = DEAD_LETTERS_PATH + "/{id}"


@DEAD_LETTERS.route("GET", DEAD_LETTERS_PATH, {200: list[DeadLetterView]})
async def list_dead_letters(dead_letters: DeadLetterService, request: APIRequest[None, ListDeadLetters]) -> APIResponse:
    """List dead letters.

    Lists the messages that consumers dead-lettered, starting with the oldest. Headers and content are omitted.
    """
    views, continuation = await dead_letters.list(request.query)
    return APIResponse(200, views, continuation)


@DEAD_LETTERS.route("GET", DEAD_LETTER_PATH, {200: DeadLetterView}, faults=(NotFound,))
async def get_dead_letter(dead_letters: DeadLetterService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Get a dead letter.

    Returns the dead letter with the content and the headers of its message.
    """
    return APIResponse(200, await dead_letters.get(request.path["id"]))


@DEAD_LETTERS.route("DELETE", DEAD_LETTER_PATH, {204: None}, faults=(NotFound,))
async def delete_dead_letter(dead_letters: DeadLetterService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Delete a dead letter.

    Deletes the dead letter. The result of the invocation, with the state dead_lettered, stays.
    """
    await dead_letters.delete(request.path["id"])
    return APIResponse(204)


@DEAD_LETTERS.route(
    "POST",
    DEAD_LETTER_PATH + "/redrive",
    {202: RedriveView},
    faults=(NotFound, NotRedrivable, InvocationReused, WriteConflict, Overloaded),
)
async def redrive_dead_letter(dead_letters: DeadLetterService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Redrive a dead letter.

    If the dead letter contains an invocation, enqueues it again. If the dead letter contains a result, publishes
    the result again. Then deletes the dead letter. The invocation runs with a new invocationID, because the old one
    already has a result. The response contains the new invocationID, which is always the same for one dead letter.
    A repeated request returns 404, and the invocation does not run a second time. 409 not_redrivable: the message
    is malformed, and a consumer would dead-letter it again. 429: the queue of the function is full, and the dead
    letter stays.
    """
    return APIResponse(202, await dead_letters.redrive(request.path["id"]))
