"""Detects objects that have not changed for a time. Pure except for the clock."""

from collections.abc import Iterable

from gpu_runtime.runtime_api.clock import Clock


class StallDetector:
    def __init__(self, clock: Clock, threshold_seconds: float) -> None:
        self._clock = clock
        self._threshold_seconds = threshold_seconds
        self._versions: dict[str, tuple[str, float]] = {}
        """The last version of each key, and the time at which it was first seen."""

    def stalled(self, current: Iterable[tuple[str, str]]) -> set[str]:
        """The keys whose version has not changed for the threshold. `current` has all keys with their versions."""
        now, previous = self._clock.monotonic(), self._versions
        self._versions = {key: _unchanged_since(previous.get(key), version, now) for key, version in current}
        return {key for key, (_, since) in self._versions.items() if now - since >= self._threshold_seconds}


def _unchanged_since(previous: tuple[str, float] | None, version: str, now: float) -> tuple[str, float]:
    return previous if previous is not None and previous[0] == version else (version, now)
