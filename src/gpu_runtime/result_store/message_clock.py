"""The current time with the precision of message timestamps: UTC, in milliseconds."""

from datetime import UTC, datetime

from gpu_runtime.contract.messages.message_codec import to_utc_milliseconds


def now() -> datetime:
    return to_utc_milliseconds(datetime.now(UTC))
