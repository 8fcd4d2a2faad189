"""What a result repository does, whichever database is behind it.

The first result of an invocation stands: whatever comes later under its ID changes nothing. The order of results is the
order in which they were stored, which no clock can confuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True)
class Row:
    """A result as it is kept."""

    invocation_id: str
    request_id: str
    state: str
    head: bytes
    """All of the result but its body, as its reader wants it."""
    body: bytes


@dataclass(frozen=True)
class Standing:
    """What stands for an invocation after an insert."""

    state: str
    new: bool
    """Whether this insert put it there."""


@dataclass(frozen=True)
class Page:
    heads: tuple[tuple[int, bytes], ...]
    """The newest first, each with its place in the order: a page can be continued after any of them."""
    more: bool
    """Whether there are older ones."""


@dataclass(frozen=True)
class Forgotten:
    expired: int = 0
    """After their time."""
    crowded_out: int = 0
    """Before it, because there was no room for them."""

    @property
    def any(self) -> bool:
        return self.expired > 0 or self.crowded_out > 0


@dataclass(frozen=True)
class Size:
    results: int
    bytes: int
    """What the results need, indexes included, and free space not."""


@dataclass(frozen=True)
class Keeping:
    """How long results are kept, and how many bytes of them at most: beyond that the oldest go before their time."""

    time: timedelta
    bytes: int


class Results(Protocol):
    """Every operation may fail with Unusable, and then has changed nothing."""

    async def insert(self, rows: Sequence[Row], now: datetime) -> list[Standing]:
        """Store them in one transaction, and give what stands for each. They survive a loss of power from then on."""
        ...

    async def get(self, invocation_id: str) -> Row | None: ...

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> Page:
        """The newest results of a function, of those before that place in the order."""
        ...

    async def forget(self, keeping: Keeping, now: datetime) -> Forgotten:
        """Delete a few of those that are not to be kept, the oldest first: so few that an insert need not wait long."""
        ...

    async def size(self) -> Size: ...
