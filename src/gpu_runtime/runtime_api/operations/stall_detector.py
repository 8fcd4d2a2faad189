"""Which things have stayed as they are for a while. Pure but for the clock."""

from collections.abc import Iterable

from gpu_runtime.runtime_api.clock import Clock


class StallDetector:
    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._threshold_seconds = seconds
        self._versions: dict[str, tuple[str, float]] = {}

    def stalled(self, seen: Iterable[tuple[str, str]]) -> set[str]:
        """Of the things that are seen now, each with its version: those that have had it for long enough."""
        now, before = self._clock.monotonic(), self._versions
        self._versions = {thing: _unchanged_since(before.get(thing), version, now) for thing, version in seen}
        return {thing for thing, (_, since) in self._versions.items() if now - since >= self._threshold_seconds}


def _unchanged_since(known: tuple[str, float] | None, version: str, now: float) -> tuple[str, float]:
    return known if known is not None and known[0] == version else (version, now)
