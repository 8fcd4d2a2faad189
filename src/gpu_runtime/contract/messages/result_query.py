"""What the result store is asked, over NATS, and what it answers."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.messages.invocation import InvocationID
from gpu_runtime.contract.messages.message_codec import Message
from gpu_runtime.contract.messages.result import Result, ResultState

RESULT = "result"
RESULTS = "results"
"""The questions, as `Subjects.query` has them."""

PAGE_LIMIT = 500


class FindResult(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")


class FoundResult(Message, frozen=True, kw_only=True):
    result: Result | None = None
    """None where none is stored, or none any more."""

    problem: str = ""
    """Why the question cannot be answered as it is: asked again, it will not be either. Empty: it was."""


class ListResults(Message, frozen=True, kw_only=True):
    """The stored results of a function, the newest first."""

    serverless_request_id: str = field(name="serverlessRequestID")
    state: ResultState | None = None
    """Only those that ended so."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_LIMIT)] = 100
    after: str = ""
    """Where the last page ended."""


class ListedResults(Message, frozen=True, kw_only=True):
    """A page. The bodies are left out: many of them would not fit into a message."""

    results: tuple[Result, ...] = ()
    after: str = ""
    """Where the next page begins. Empty where this was the last."""

    problem: str = ""
    """Why the question cannot be answered as it is: asked again, it will not be either. Empty: it was."""
