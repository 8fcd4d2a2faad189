"""Decides which of the oldest results to evict next. Nothing here awaits or reads a clock."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.result_repository.repository import EvictedCounts, RetentionLimits

EVICTION_BATCH_SIZE = 200
"""Maximum number of results that one transaction deletes."""
EVICTION_BATCH_BYTES = 8 * 1024 * 1024
"""Number of bytes after which a batch is full.

The deletion of a batch takes some milliseconds. An insert waits for that time.
"""


@dataclass(frozen=True)
class EvictionCandidate:
    number: int
    stored_at: datetime
    size_bytes: int


@dataclass(frozen=True)
class Eviction:
    last_number: int
    """Number of the newest row to delete. All older rows are deleted as well."""
    evicted: EvictedCounts


def plan_eviction(
    oldest: Iterable[EvictionCandidate], used_bytes: int, limits: RetentionLimits, now: datetime
) -> Eviction | None:
    """Return the next batch to evict, or None if no result has to be evicted. `oldest` is in ascending order.

    The batch ends before the first result that can stay. A later result may have an older timestamp if the clock was
    changed, but it stays as well: eviction must leave no gaps in the row numbers, because the repository computes the
    number of results from the first and the last row number.
    """
    last_number, by_ttl, by_size, freed_bytes = None, 0, 0, 0
    for each in oldest:
        is_expired = each.stored_at < now - limits.max_age
        is_oversized = used_bytes - freed_bytes > limits.max_bytes
        if not (is_expired or is_oversized) or freed_bytes >= EVICTION_BATCH_BYTES:
            break
        last_number, freed_bytes = each.number, freed_bytes + each.size_bytes
        by_ttl, by_size = by_ttl + is_expired, by_size + (not is_expired)
    return Eviction(last_number, EvictedCounts(by_ttl, by_size)) if last_number is not None else None
