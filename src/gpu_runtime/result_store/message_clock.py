"""What time it is, as messages say it."""

from datetime import UTC, datetime

from gpu_runtime.contract.messages.message_codec import utc


def now() -> datetime:
    return utc(datetime.now(UTC))
