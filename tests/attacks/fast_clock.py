"""A clock that makes every cached value too old."""

from gpu_runtime.process.clock import SystemClock


class FastClock(SystemClock):
    """Each read is one minute after the last one, so that no cached value is used."""

    _reads = 0

    def monotonic(self) -> float:
        self._reads += 1
        return 60.0 * self._reads
