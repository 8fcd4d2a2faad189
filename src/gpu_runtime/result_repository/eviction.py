"""Which of the oldest results go next. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.result_repository.repository import EvictedCounts, RetentionLimits

EVICTION_BATCH_SIZE = 200
EVICTION_BATCH_BYTES = 8 * 1024 * 1024
"""How much is deleted in one transaction: milliseconds' worth, which is how long an insert waits for it."""


@dataclass(frozen=True)
class EvictionCandidate:
    number: int
    stored_at: datetime
    size_bytes: int


@dataclass(frozen=True)
class Eviction:
    last_number: int
    """The last one that goes. All before it go, too."""
    evicted: EvictedCounts


def plan_eviction(
    oldest: Iterable[EvictionCandidate], used_bytes: int, limits: RetentionLimits, now: datetime
) -> Eviction | None:
    """Those that go now, of the oldest in their order; None where none do.

    It ends at the first that may stay, also where a later one seems older: only a clock that jumped can do that, and
    with gaps nobody could tell how many there are without counting.
    """
    upto, expired, crowded_out, freed = None, 0, 0, 0
    for each in oldest:
        is_expired = each.stored_at < now - limits.max_age
        is_in_excess = used_bytes - freed > limits.max_bytes
        if not (is_expired or is_in_excess) or freed >= EVICTION_BATCH_BYTES:
            break
        upto, freed = each.number, freed + each.size_bytes
        expired, crowded_out = expired + is_expired, crowded_out + (not is_expired)
    return Eviction(upto, EvictedCounts(expired, crowded_out)) if upto is not None else None
