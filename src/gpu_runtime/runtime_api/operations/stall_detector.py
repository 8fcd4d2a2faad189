"""Detects objects that have not changed for some time. Pure except for the clock."""

from collections.abc import Iterable

from gpu_runtime.process.clock import Clock


class StallDetector:
    def __init__(self, clock: Clock, threshold_seconds: float) -> None:
        self._clock = clock
        self._threshold_seconds = threshold_seconds
        self._versions: dict[str, tuple[str, float]] = {}
        """The last version of each key, and the time at which the detector first saw that version."""

    def stalled(self, current: Iterable[tuple[str, str]]) -> set[str]:
        """Return the keys whose versions have been unchanged for at least the threshold.

        `current` contains all keys with their versions. The detector forgets every other key.
        """
        now, previous = self._clock.monotonic(), self._versions
        self._versions = {key: _unchanged_since(previous.get(key), version, now) for key, version in current}
        return {key for key, (_, since) in self._versions.items() if now - since >= self._threshold_seconds}


def _unchanged_since(previous: tuple[str, float] | None, version: str, now: float) -> tuple[str, float]:
    return previous if previous is not None and previous[0] == version else (version, now)
