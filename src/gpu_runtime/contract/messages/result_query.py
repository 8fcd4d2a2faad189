"""Queries to the result store over NATS request/reply: one result, a page of results, or the number of results."""

from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.messages.invocation import InvocationID
from gpu_runtime.contract.messages.message_codec import Instant, Message
from gpu_runtime.contract.messages.result import Result, ResultState

RESULT_QUERY = "result"
RESULTS_QUERY = "results"
RESULT_COUNT_QUERY = "result-count"
"""The names of the queries: the last token of their subjects, see `Subjects.query`."""

MAX_PAGE_SIZE = 500


class GetResultRequest(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")


class GetResultResponse(Message, frozen=True, kw_only=True):
    result: Result | None = None
    """None if the result store has not stored the result, or has evicted it."""

    error: str = ""
    """Why the query is invalid. Empty if the query succeeded. A retry of an invalid query fails again."""


class ListResultsRequest(Message, frozen=True, kw_only=True):
    """Lists the stored results of a function, the newest first."""

    serverless_request_id: str = field(name="serverlessRequestID")
    state: ResultState | None = None
    """The state of the results to list. None lists results in every state."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = 100
    continue_token: str = ""
    """The continueToken of the previous page. Empty for the first page."""


class ListResultsResponse(Message, frozen=True, kw_only=True):
    """A page of results without their bodies, because many bodies would not fit into a message."""

    results: tuple[Result, ...] = ()
    continue_token: str = ""
    """The token for the next page. Empty on the last page."""

    error: str = ""
    """Why the query is invalid. Empty if the query succeeded. A retry of an invalid query fails again."""


class CountResultsRequest(Message, frozen=True, kw_only=True):
    """Counts the results of a function that were stored since a time, including results that were evicted since then.

    The count includes up to ten minutes before this time.
    """

    serverless_request_id: str = field(name="serverlessRequestID")
    since: Instant


class CountResultsResponse(Message, frozen=True, kw_only=True):
    count: int = 0
    error: str = ""
    """Why the query is invalid. Empty if the query succeeded. A retry of an invalid query fails again."""
