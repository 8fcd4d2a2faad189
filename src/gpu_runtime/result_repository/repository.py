"""The interface of a result repository, independent of the database.

The first stored result of an invocation is final: later results of the same invocation change nothing. If a caller used
an invocationID again after the record of the first invocation had expired, the repository keeps only the result of the
invocation that was accepted last. Results are ordered by insertion, not by timestamp, so a wrong clock does not change
the order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol


@dataclass(frozen=True)
class ResultRow:
    """A stored result."""

    invocation_id: str
    request_id: str
    state: str
    head: bytes
    """The encoded result without its body."""
    body: bytes
    accepted_at: datetime
    """When the runtime API accepted the invocation. It distinguishes invocations that have the same invocationID."""


@dataclass(frozen=True)
class InsertOutcome:
    """The result that an invocationID has after an insert."""

    state: str
    """State of the stored result."""
    inserted: bool
    """Whether this insert stored the result. False if the invocation, or a later one with its ID, had a result."""


@dataclass(frozen=True)
class ResultPage:
    heads: tuple[tuple[int, bytes], ...]
    """Row number and head of each result, newest first. The next page can start before any of these row numbers."""
    has_more: bool
    """Whether older results exist."""


@dataclass(frozen=True)
class EvictedCounts:
    by_ttl: int = 0
    """Number of results that were evicted because their maximum age passed."""
    by_size: int = 0
    """Number of results that were evicted before their maximum age, because the database exceeded its maximum size."""

    @property
    def nonzero(self) -> bool:
        return self.by_ttl > 0 or self.by_size > 0


@dataclass(frozen=True)
class RepositorySize:
    result_count: int
    used_bytes: int
    """Size of the results, with indexes and without free pages."""


@dataclass(frozen=True)
class RetentionLimits:
    """Maximum age of results, and maximum total size.

    Above that size, the oldest results of the function with the most bytes are evicted early.
    """

    max_age: timedelta
    max_bytes: int


class ResultRepository(Protocol):
    """Stores results. Every method can raise RepositoryUnavailable. A method that raises has changed nothing."""

    async def insert(self, rows: Sequence[ResultRow], now: datetime) -> list[InsertOutcome]:
        """Store results in one transaction and return their outcomes. On return, the results are durable on disk."""
        ...

    async def get(self, invocation_id: str) -> ResultRow | None: ...

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> ResultPage:
        """Return the newest results of a function.

        If `before` is given, return only results with a lower row number.
        """
        ...

    async def count_since(self, request_id: str, since: datetime) -> int:
        """Return how many results of a function were stored since this time, including evicted results.

        The count includes up to ten minutes before this time.
        """
        ...

    async def evict(self, limits: RetentionLimits, now: datetime) -> EvictedCounts:
        """Delete one batch of results that exceed the limits: first expired ones, then those of the largest function.

        The batch is small, because inserts wait for the deletion.
        """
        ...

    async def size(self) -> RepositorySize: ...
