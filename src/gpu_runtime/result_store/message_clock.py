"""What time it is, as messages say it."""

from datetime import UTC, datetime

from gpu_runtime.contract.messages.message_codec import to_utc_milliseconds


def now() -> datetime:
    return to_utc_milliseconds(datetime.now(UTC))
