"""What operators ask of dead letters."""

from msgspec import UNSET, UnsetType, field

from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.runtime_api.http.paging import PagedQuery


class ListDeadLetters(PagedQuery, frozen=True, kw_only=True):
    """Which dead letters."""

    source: Stream | UnsetType = UNSET
    """Only those of this queue: invoke, dispatch or result."""

    serverless_request_id: str | UnsetType = field(default=UNSET, name="serverlessRequestID")
    """Only those of this function."""
