"""What a result repository does, whichever database is behind it.

The first result of an invocation stands: whatever comes later under its ID changes nothing. The order of results is the
order in which they were stored, which no clock can confuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True)
class ResultRow:
    """A result as it is kept."""

    invocation_id: str
    request_id: str
    state: str
    head: bytes
    """All of the result but its body, as its reader wants it."""
    body: bytes


@dataclass(frozen=True)
class InsertOutcome:
    """What stands for an invocation after an insert."""

    state: str
    inserted: bool
    """Whether this insert put it there."""


@dataclass(frozen=True)
class ResultPage:
    heads: tuple[tuple[int, bytes], ...]
    """The newest first, each with its place in the order: a page can be continued after any of them."""
    has_more: bool
    """Whether there are older ones."""


@dataclass(frozen=True)
class EvictedCounts:
    by_ttl: int = 0
    """After their time."""
    by_size: int = 0
    """Before it, because there was no room for them."""

    @property
    def nonzero(self) -> bool:
        return self.by_ttl > 0 or self.by_size > 0


@dataclass(frozen=True)
class RepositorySize:
    result_count: int
    used_bytes: int
    """What the results need, indexes included, and free space not."""


@dataclass(frozen=True)
class RetentionLimits:
    """How long results are kept, and how many bytes of them at most: beyond that the oldest go before their time."""

    max_age: timedelta
    max_bytes: int


class ResultRepository(Protocol):
    """Every operation may fail with Unusable, and then has changed nothing."""

    async def insert(self, rows: Sequence[ResultRow], now: datetime) -> list[InsertOutcome]:
        """Store them in one transaction, and give what stands for each. They survive a loss of power from then on."""
        ...

    async def get(self, invocation_id: str) -> ResultRow | None: ...

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> ResultPage:
        """The newest results of a function, of those before that place in the order."""
        ...

    async def evict(self, keeping: RetentionLimits, now: datetime) -> EvictedCounts:
        """Delete a few of those that are not to be kept, the oldest first: so few that an insert need not wait long."""
        ...

    async def size(self) -> RepositorySize: ...
