"""Records the requests of the callers and the responses that they received."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.integration.controller_manager.conftest import Object

T = TypeVar("T")

TERMINAL_STATES = ("succeeded", "failed", "expired", "dead_lettered", "cancelled")


@dataclass(frozen=True)
class NamedSource:
    """The stock that a response names as the source of a unit."""

    grade: str
    uid: str
    missed: str = ""
    """Why the unit got no prepared pod."""


@dataclass(frozen=True)
class RecordedResponse:
    """One response to a request with an operationID."""

    sent_at: float
    received_at: float
    status: int
    code: str = ""
    identity: str = ""
    """Identifies the created object. A later object of the same name has another identity."""
    changed_body: bool = False
    """Whether the request had another body than the first request with this operationID."""
    source: NamedSource | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.code or self.identity}{' (other body)' if self.changed_body else ''}"


@dataclass
class Operation:
    """An operationID, its request, and all responses."""

    id: str
    path: str
    request: Object
    responses: list[RecordedResponse] = field(default_factory=list)
    deletion_requested_at: float | None = None
    """When a caller first requested the deletion of the created object."""

    @property
    def succeeded(self) -> bool:
        return any(each.status in (200, 201, 202) and not each.changed_body for each in self.responses)

    @property
    def source(self) -> NamedSource | None:
        """The stock from which the unit was created, as the first successful response says."""
        return next((each.source for each in self.responses if each.source and not each.changed_body), None)


@dataclass
class PossibleValues(Generic[T]):
    """The values that a field may have. The API may apply a change at any later time if its request had no response."""

    latest: T
    unconfirmed: set[T] = field(default_factory=set)

    @property
    def values(self) -> set[T]:
        return {self.latest, *self.unconfirmed}


@dataclass
class Unit:
    operation: Operation
    running: PossibleValues[bool] = field(default_factory=lambda: PossibleValues(latest=True))
    mounts: PossibleValues[frozenset[str]] = field(default_factory=lambda: PossibleValues(frozenset()))
    deleted: bool = False
    """Whether the API has confirmed the deletion."""
    pod_may_end: bool = False
    """Whether a caller has sent a request that ends the pod of the unit: a stop, or other mounts."""

    @property
    def name(self) -> str:
        return str(self.operation.request["name"])


@dataclass
class Withdrawal:
    """All requests to withdraw one stock unit."""

    flavor: str
    confirmed: bool = False
    """Whether the API has confirmed the withdrawal."""
    uncertain: bool = False
    """Whether a request had no response. The API may have applied it."""


@dataclass
class Storage:
    name: str
    exists: PossibleValues[bool]


@dataclass
class Invocation:
    """An invocation, and all results that callers have seen."""

    id: str
    function: str
    request: Object
    accepted: bool = False
    sent_at: float = 0
    """The wall clock time of the first request."""
    cancelled: bool = False
    """Whether a caller has requested the cancellation, independent of the response."""
    terminal_views: list[Object] = field(default_factory=list)
    """The results that callers have read. A result that equals the previous one is not added."""
    sync_responses: list[Object] = field(default_factory=list)
    """The results in the responses to synchronous invocations."""
    violations: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.terminal_views)

    def record_view(self, view: Object) -> None:
        """Record the invocation as a caller has read it."""
        if view["state"] in TERMINAL_STATES:
            if not self.terminal_views or self.terminal_views[-1] != view:
                self.terminal_views.append(view)
        elif self.terminal_views:
            self.violations.append(f"the state was terminal, and a later read returned {view['state']}")


@dataclass
class RequestHistory:
    """All requests of one round."""

    operations: dict[str, Operation] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    invocations: dict[str, Invocation] = field(default_factory=dict)
    seeded: Counter[str] = field(default_factory=Counter)
    """The number of accepted stock units, by flavor."""
    withdrawals: dict[str, Withdrawal] = field(default_factory=dict)
    """By the name of the stock unit."""
    requests: int = 0
    retries: int = 0
    """Requests that were sent again because the previous attempt had no final response."""
    pending_requests: Counter[str] = field(default_factory=Counter)
    """The requests that have no final response yet."""
    status_counts: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    """Responses that the API must never send."""
