"""Exponential backoff with jitter: how long to wait after consecutive failures. Pure, apart from the random source."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Delays that double with every consecutive failure.

    Every delay is randomized, so that clients that failed at the same time do not retry at the same time.
    """

    initial_seconds: float = 0.1
    max_seconds: float = 30.0
    jitter: float = 0.2
    """The delay varies by up to this fraction in both directions, also at the maximum: 0.2 means 80 % to 120 %."""

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait after this number of consecutive failures. The first failure is number 1."""
        doubled = self.initial_seconds * 2.0 ** min(failures - 1, 60)
        return min(self.max_seconds, doubled) * (1 + self.jitter * (2 * chance() - 1))
