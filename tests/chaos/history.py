"""What callers asked, and what they heard."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tests.integration.controller_manager.conftest import Object

T = TypeVar("T")

ENDS = ("succeeded", "failed", "expired", "dead_lettered", "cancelled")


@dataclass(frozen=True)
class Said:
    """One answer to a request under an operationID."""

    sent: float
    heard: float
    status: int
    code: str = ""
    identity: str = ""
    """What was made, so that one of the same name that comes later is another one."""
    other_body: bool = False
    """Whether the request was not the one that the operationID stands for."""

    def __str__(self) -> str:
        return f"{self.status} {self.code or self.identity}{' (other body)' if self.other_body else ''}"


@dataclass
class Operation:
    """An operationID, and all that was said to it."""

    id: str
    path: str
    request: Object
    said: list[Said] = field(default_factory=list)
    deletion_asked: float | None = None
    """When somebody first asked for the end of what it made."""

    @property
    def succeeded(self) -> bool:
        return any(each.status in (200, 201, 202) and not each.other_body for each in self.said)


@dataclass
class Possible(Generic[T]):
    """What a field of an object may be: a change that was asked for and not answered may be carried out at any time."""

    last: T
    doubts: set[T] = field(default_factory=set)

    @property
    def values(self) -> set[T]:
        return {self.last, *self.doubts}


@dataclass
class Unit:
    operation: Operation
    running: Possible[bool] = field(default_factory=lambda: Possible(last=True))
    mounts: Possible[frozenset[str]] = field(default_factory=lambda: Possible(frozenset()))
    gone: bool = False
    """Whether its deletion was answered."""

    @property
    def name(self) -> str:
        return str(self.operation.request["name"])


@dataclass
class Storage:
    name: str
    there: Possible[bool]


@dataclass
class Invocation:
    """A call, and all the ends that callers were told it came to."""

    id: str
    function: str
    request: Object
    accepted: bool = False
    sent: float = 0
    """When the caller first asked, by the wall's clock."""
    cancelled: bool = False
    """Whether somebody asked for that, with whatever answer."""
    ends: list[Object] = field(default_factory=list)
    """As they were looked up, each that differs from the one before."""
    answers: list[Object] = field(default_factory=list)
    """What the synchronous caller was answered."""
    complaints: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.ends)

    def look_up(self, view: Object) -> None:
        """Somebody has looked it up, and this is what was there."""
        if view["state"] in ENDS:
            if not self.ends or self.ends[-1] != view:
                self.ends.append(view)
        elif self.ends:
            self.complaints.append(f"it had ended and was then told to be {view['state']}")


@dataclass
class History:
    """Of one round."""

    operations: dict[str, Operation] = field(default_factory=dict)
    units: dict[str, Unit] = field(default_factory=dict)
    storages: dict[str, Storage] = field(default_factory=dict)
    invocations: dict[str, Invocation] = field(default_factory=dict)
    seeded: Counter[str] = field(default_factory=Counter)
    """By flavour, what was accepted."""
    requests: int = 0
    again: int = 0
    """Requests that were sent again, since nobody had answered."""
    waiting: Counter[str] = field(default_factory=Counter)
    """What is asked for right now."""
    answers: Counter[int] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)
    """Answers that nobody should ever get."""
