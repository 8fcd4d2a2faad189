"""Decides which results to evict next. Nothing here awaits or reads a clock."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

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
class EvictionBatch:
    last_number: int
    """Number of the newest row to delete. All older candidates are deleted as well."""
    count: int


@dataclass(frozen=True)
class Surplus:
    """By how much the results exceed their maximum size, and by how much the largest function exceeds the others."""

    excess_bytes: int
    """Size of the database above its maximum."""
    margin_bytes: int
    """Bytes of the largest function above those of the next function, plus a tolerance, so that a batch does not delete
    only one result if two functions have the same size."""


def expired_batch(oldest: Iterable[EvictionCandidate], stored_before: datetime) -> EvictionBatch | None:
    """Return the expired results to evict next, or None. `oldest` is in ascending order.

    The batch ends before the first result that has not expired. A later result may have an older timestamp if the clock
    was changed, but it stays until the results before it expire.
    """
    batch, freed_bytes = None, 0
    for count, each in enumerate(oldest, 1):
        if each.stored_at >= stored_before or freed_bytes >= EVICTION_BATCH_BYTES:
            break
        batch, freed_bytes = EvictionBatch(each.number, count), freed_bytes + each.size_bytes
    return batch


def oversized_batch(oldest_of_largest: Iterable[EvictionCandidate], surplus: Surplus) -> EvictionBatch:
    """Return the results to evict next because the database exceeds its maximum size.

    The candidates are the oldest results of the function with the most bytes, in ascending order. The batch ends when
    another function has more bytes. So functions of equal size lose about the same number of bytes.
    """
    last_number, count, freed_bytes = 0, 0, 0
    for each in oldest_of_largest:
        last_number, count, freed_bytes = each.number, count + 1, freed_bytes + each.size_bytes
        if freed_bytes >= min(surplus.excess_bytes, surplus.margin_bytes, EVICTION_BATCH_BYTES):
            break
    return EvictionBatch(last_number, count)
