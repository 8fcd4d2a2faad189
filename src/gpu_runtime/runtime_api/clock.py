"""What time it is, as something that a test can say."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """The time of day, for records."""
        ...

    def monotonic(self) -> float:
        """Seconds that never jump, for waiting."""
        ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def format_timestamp(moment: datetime) -> str:
    """As Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
