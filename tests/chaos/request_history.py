"""What callers asked, and what they heard."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.integration.controller_manager.conftest import Object

T = TypeVar("T")

TERMINAL_STATES = ("succeeded", "failed", "expired", "dead_lettered", "cancelled")


@dataclass(frozen=True)
class RecordedResponse:
    """One answer to a request under an operationID."""

    sent_at: float
    received_at: float
    status: int
    code: str = ""
    identity: str = ""
    """What was made, so that one of the same name that comes later is another one."""
    changed_body: bool = False
    """Whether the request was not the one that the operationID stands for."""

    def __str__(self) -> str:
        return f"{self.status} {self.code or self.identity}{' (other body)' if self.changed_body else ''}"


@dataclass
class Operation:
    """An operationID, and all that was said to it."""

    id: str
    path: str
    request: Object
    responses: list[RecordedResponse] = field(default_factory=list)
    deletion_requested_at: float | None = None
    """When somebody first asked for the end of what it made."""

    @property
    def succeeded(self) -> bool:
        return any(each.status in (200, 201, 202) and not each.changed_body for each in self.responses)


@dataclass
class PossibleValues(Generic[T]):
    """What a field of an object may be: a change that was asked for and not answered may be carried out at any time."""

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
    """Whether its deletion was answered."""

    @property
    def name(self) -> str:
        return str(self.operation.request["name"])


@dataclass
class Storage:
    name: str
    exists: PossibleValues[bool]


@dataclass
class Invocation:
    """A call, and all the ends that callers were told it came to."""

    id: str
    function: str
    request: Object
    accepted: bool = False
    sent_at: float = 0
    """When the caller first asked, by the wall's clock."""
    cancelled: bool = False
    """Whether somebody asked for that, with whatever answer."""
    terminal_views: list[Object] = field(default_factory=list)
    """As they were looked up, each that differs from the one before."""
    sync_responses: list[Object] = field(default_factory=list)
    """What the synchronous caller was answered."""
    violations: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.terminal_views)

    def record_view(self, view: Object) -> None:
        """Somebody has looked it up, and this is what was there."""
        if view["state"] in TERMINAL_STATES:
            if not self.terminal_views or self.terminal_views[-1] != view:
                self.terminal_views.append(view)
        elif self.terminal_views:
            self.violations.append(f"it had ended and was then told to be {view['state']}")


@dataclass
class RequestHistory:
    """Of one round."""

    operations: dict[str, Operation] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    invocations: dict[str, Invocation] = field(default_factory=dict)
    seeded: Counter[str] = field(default_factory=Counter)
    """By flavor, what was accepted."""
    requests: int = 0
    retries: int = 0
    """Requests that were sent again, since nobody had answered."""
    pending_requests: Counter[str] = field(default_factory=Counter)
    """What is asked for right now."""
    status_counts: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    """Answers that nobody should ever get."""
