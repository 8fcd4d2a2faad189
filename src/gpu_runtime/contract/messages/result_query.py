"""What the result store is asked, over NATS, and what it answers."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.messages.invocation import InvocationID
from gpu_runtime.contract.messages.message_codec import Message
from gpu_runtime.contract.messages.result import Result, ResultState

RESULT_QUERY = "result"
RESULTS_QUERY = "results"
"""The questions, as `Subjects.query` has them."""

MAX_PAGE_SIZE = 500


class GetResultRequest(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")


class GetResultResponse(Message, frozen=True, kw_only=True):
    result: Result | None = None
    """None where none is stored, or none any more."""

    error: str = ""
    """Why the question cannot be answered as it is: asked again, it will not be either. Empty: it was."""


class ListResultsRequest(Message, frozen=True, kw_only=True):
    """The stored results of a function, the newest first."""

    serverless_request_id: str = field(name="serverlessRequestID")
    state: ResultState | None = None
    """Only those that ended so."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = 100
    continue_token: str = ""
    """Where the last page ended."""


class ListResultsResponse(Message, frozen=True, kw_only=True):
    """A page. The bodies are left out: many of them would not fit into a message."""

    results: tuple[Result, ...] = ()
    continue_token: str = ""
    """Where the next page begins. Empty where this was the last."""

    error: str = ""
    """Why the question cannot be answered as it is: asked again, it will not be either. Empty: it was."""
