"""The query parameters of the dead-letter routes."""

from msgspec import UNSET, UnsetType, field

from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.runtime_api.http.paging import PagedQuery


class ListDeadLetters(PagedQuery, frozen=True, kw_only=True):
    """Filters of the dead-letter list."""

    source: Stream | UnsetType = UNSET
    """Lists only dead letters from this stream: invoke, dispatch or result."""

    serverless_request_id: str | UnsetType = field(default=UNSET, name="serverlessRequestID")
    """Lists only dead letters of the function that has this requestID now. To list the dead letters of a deleted
    function, use functionID."""

    function_id: str | UnsetType = field(default=UNSET, name="functionID")
    """Lists only dead letters of this function. Every dead letter contains the functionID."""
