"""Limits the bytes of the request bodies that a replica processes at a time. One caller cannot use all of them.

A caller may hold as many bytes as are free. So one caller alone can hold half of the budget, two callers can hold a
third each, and so on. A part of the budget always stays free for a caller that holds nothing.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gpu_runtime.contract.errors import Overloaded

RETRY_AFTER_SECONDS = 1.0


class HeldBytes:
    """The bytes that one request holds."""

    def __init__(self, budget: "ByteBudget", caller: str, size: int) -> None:
        self._budget, self._caller = budget, caller
        self.size = size

    def shrink(self, size: int) -> None:
        """Release the bytes that the request does not need, because its body is smaller than expected."""
        self._budget.release(self._caller, self.size - size)
        self.size = size


class ByteBudget:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_by_caller: Counter[str] = Counter()
        self.held = 0
        """The bytes that all callers hold."""

    @contextmanager
    def reserve(self, caller: str, size: int) -> Iterator[HeldBytes]:
        """Hold the bytes during the block. Raises Overloaded if the caller cannot have them now."""
        if self._held_by_caller[caller] + size > self._max_bytes - self.held:
            raise Overloaded(
                f"the bodies of the requests of {caller} in flight have too many bytes; wait for their responses",
                RETRY_AFTER_SECONDS,
            )
        self._held_by_caller[caller] += size
        self.held += size
        held = HeldBytes(self, caller, size)
        try:
            yield held
        finally:
            held.shrink(0)

    def release(self, caller: str, size: int) -> None:
        self.held -= size
        self._held_by_caller[caller] -= size
        if not self._held_by_caller[caller]:
            del self._held_by_caller[caller]
