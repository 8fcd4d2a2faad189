"""What time it is, as messages say it."""

from datetime import UTC, datetime

from gpu_runtime.contract.messages.wire import utc


def now() -> datetime:
    return utc(datetime.now(UTC))
