"""What callers ask of invocations."""

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Raw, UnsetType, field

from gpu_runtime.contract.messages.invocation import JSON_CONTENT_TYPE, InvocationMode
from gpu_runtime.contract.messages.invocation_record import RecordState
from gpu_runtime.contract.messages.limits import MAX_TIMEOUT_SECONDS
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.http.route import Body


class InvocationState(StrEnum):
    """How far an invocation has come, or how it ended."""

    QUEUED = RecordState.QUEUED.value
    DISPATCHED = RecordState.DISPATCHED.value
    RUNNING = RecordState.RUNNING.value
    SUCCEEDED = ResultState.SUCCEEDED.value
    FAILED = ResultState.FAILED.value
    EXPIRED = ResultState.EXPIRED.value
    DEAD_LETTERED = ResultState.DEAD_LETTERED.value
    CANCELLED = ResultState.CANCELLED.value

    @property
    def is_terminal(self) -> bool:
        return self.value in _TERMINAL_STATES


_TERMINAL_STATES = frozenset(state.value for state in ResultState)


class Invoke(Body, frozen=True, kw_only=True):
    """One call of a function."""

    invocation_id: str | UnsetType = field(default=UNSET, name="invocationID")
    """The caller's name for the call: letters, digits, '-' and '_'. Under one ID a call is made once, however often it
    is asked for. Default: one is made; then asking again is another call."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The function: its serverless.requestID."""

    mode: InvocationMode = "async"
    """async: answered when the call is queued. sync: answered with the function's answer, if it comes in time."""

    content_type: str = JSON_CONTENT_TYPE
    """What the payload is. Default: application/json."""

    headers: dict[str, str] = field(default_factory=dict)
    """Handed to the function as they are."""

    attributes: dict[str, str] = field(default_factory=dict)
    """The caller's own labels. The function sees them, the platform does not read them."""

    payload: Raw = Raw()
    """What the function gets. With a JSON content type: any JSON value, handed over as it is written here. With any
    other content type: a string with the bytes as base64. Left out: the function gets an empty body."""

    timeout_seconds: Annotated[float, Meta(ge=0.1, le=MAX_TIMEOUT_SECONDS)] | UnsetType = UNSET
    """How long after its acceptance the call still counts. Default: what the configuration says."""


class ListInvocations(PagedQuery, frozen=True, kw_only=True):
    """Which invocations."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """Those of this function."""

    state: InvocationState | UnsetType = UNSET
    """Only those in this state. Default: first those that have not ended, the oldest first, then those whose results
    are stored, the newest first."""
