"""The request bodies and query parameters of the invocation routes."""

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
    """The state of an invocation: its progress, or how it finished."""

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
    """An invocation of a function."""

    invocation_id: str | UnsetType = field(default=UNSET, name="invocationID")
    """The ID of the invocation, chosen by the caller: letters, digits, '-' and '_'. Repeated requests with the same ID
    create one invocation. Default: a generated ID. A repeated request without an ID creates another invocation."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The serverless.requestID of the function."""

    mode: InvocationMode = "async"
    """async: the API responds as soon as the invocation is queued. sync: the API waits for the result and returns it.
    If the result does not arrive within the maximum wait, the API returns 504."""

    content_type: str = JSON_CONTENT_TYPE
    """The content type of the payload. Default: application/json."""

    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the function. The platform passes them on unchanged."""

    attributes: dict[str, str] = field(default_factory=dict)
    """Labels of the caller. The function receives them. The platform does not interpret them."""

    payload: Raw = Raw()
    """The input of the function. With a JSON content type: any JSON value, which the platform passes on unchanged. With
    any other content type: a base64 string of the bytes. If the payload is omitted, the function gets an empty body."""

    timeout_seconds: Annotated[float, Meta(ge=0.1, le=MAX_TIMEOUT_SECONDS)] | UnsetType = UNSET
    """Seconds from the acceptance of the invocation until its deadline. Default: the configured timeout."""


class ListInvocations(PagedQuery, frozen=True, kw_only=True):
    """Filters of the invocation list."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The serverless.requestID of the function."""

    state: InvocationState | UnsetType = UNSET
    """Lists only invocations in this state. Default: all states. Unfinished invocations come first, starting with the
    oldest. Invocations with stored results follow, starting with the newest."""
