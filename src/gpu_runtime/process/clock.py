"""The clock of a process. It is a protocol, so that tests can replace the clock."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The wall-clock time in UTC, for timestamps."""
        ...

    def monotonic(self) -> float:
        """The time in seconds of a clock that never jumps, to measure intervals."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def format_timestamp(time_utc: datetime) -> str:
    """Return the time in the format of Kubernetes timestamps (RFC 3339, whole seconds)."""
    return time_utc.strftime("%Y-%m-%dT%H:%M:%SZ")
