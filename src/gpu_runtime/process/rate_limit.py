"""Rate limit per caller: one token bucket per caller, in bounded memory. Pure: the time is a parameter."""

from collections import OrderedDict
from dataclasses import dataclass

from gpu_runtime.contract.errors import Overloaded


@dataclass
class _TokenBucket:
    tokens: float
    refilled_at: float


class CallerRateLimiter:
    def __init__(self, per_second: float, burst: int, max_callers: int = 10_000) -> None:
        self._per_second = per_second
        self._burst = burst
        self._max_callers = max_callers
        self._buckets: OrderedDict[str, _TokenBucket] = OrderedDict()

    def admit(self, caller: str, now: float) -> None:
        """Count one request of the caller. Raises Overloaded with the time to wait if the caller exceeds its rate."""
        if not self._per_second:
            return
        bucket = self._bucket(caller, now)
        bucket.tokens = min(float(self._burst), bucket.tokens + (now - bucket.refilled_at) * self._per_second)
        bucket.refilled_at = now
        if bucket.tokens < 1:
            wait = (1 - bucket.tokens) / self._per_second
            raise Overloaded(
                f"{caller} sends more than {self._per_second:g} requests per second; wait {wait:.2g} s", wait
            )
        bucket.tokens -= 1

    def _bucket(self, caller: str, now: float) -> _TokenBucket:
        bucket = self._buckets.get(caller)
        if bucket is None:
            bucket = self._buckets[caller] = _TokenBucket(self._burst, now)
            if len(self._buckets) > self._max_callers:
                self._buckets.popitem(last=False)  # the least recently used bucket: most likely full, like a new one
        self._buckets.move_to_end(caller)
        return bucket
