"""How long to wait after failures in a row. Pure: chance is passed in."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Waits that double from one failure to the next, each spread by chance so that failures do not march in step."""

    initial_seconds: float = 0.1
    max_seconds: float = 30.0
    jitter: float = 0.2

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the given number of failures in a row, counted from one."""
        doubled = self.initial_seconds * 2.0 ** min(failures - 1, 60)
        return min(self.max_seconds, doubled) * (1 + self.jitter * (2 * chance() - 1))
