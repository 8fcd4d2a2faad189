"""Limits how often the status of one object is written.

A user's program decides when its pod is ready. If the readiness changes often, each change would cost a
write of the status, and the other objects would wait. Pure: the caller passes the time.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

STATUS_BURST = 30
"""How many writes of the status of one object are allowed without a pause."""

STATUS_INTERVAL_SECONDS = 6.0
"""Seconds after which one more write of the status is allowed."""

MAX_LIMITED_OBJECTS = 65536


@dataclass
class StatusRateLimit:
    burst: float = STATUS_BURST
    interval_seconds: float = STATUS_INTERVAL_SECONDS
    _tokens: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """The remaining writes of an object by UID, and the time at which they were counted."""

    def take(self, uid: str, now: float) -> float:
        """Return 0 if the status may be written now. Otherwise return the seconds until it may be written."""
        tokens, since = self._tokens.pop(uid, (self.burst, now))
        tokens = min(self.burst, tokens + max(now - since, 0) / self.interval_seconds)
        allowed = tokens >= 1
        self._tokens[uid] = (tokens - 1 if allowed else tokens, now)
        while len(self._tokens) > MAX_LIMITED_OBJECTS:
            self._tokens.popitem(last=False)
        return 0.0 if allowed else (1 - tokens) * self.interval_seconds
