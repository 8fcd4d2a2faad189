"""What streams, consumers and buckets are to be, as data. Pure: `topology` compares it with what is there.

None for a number means that there is no limit.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

StorageType: TypeAlias = Literal["file", "memory"]
RetentionPolicy: TypeAlias = Literal["limits", "workqueue", "interest"]
DiscardPolicy: TypeAlias = Literal["old", "new"]

DUPLICATE_WINDOW_SECONDS = 120.0
"""Seconds for which a repeated message ID is recognised: longer than any publisher retries."""


@dataclass(frozen=True, kw_only=True)
class StreamSpec:
    name: str
    subjects: tuple[str, ...]
    retention: RetentionPolicy = "limits"
    discard: DiscardPolicy = "old"
    storage: StorageType = "file"
    replicas: int = 1
    max_age_seconds: float | None = None
    max_bytes: int | None = None
    max_messages_per_subject: int | None = None
    """With `discard="new"`, one subject that is full refuses, and the others do not."""
    duplicate_window_seconds: float = DUPLICATE_WINDOW_SECONDS


@dataclass(frozen=True)
class ConsumerSpec:
    """A durable pull consumer with explicit acknowledgement.

    It delivers for ever: a limit of deliveries on the server would only stop them and tell nobody. Nor does it limit
    how much may be unacknowledged: a message that waits for its next try counts there, so the tries of one subject
    would stop the deliveries of all others. What is in flight is bounded by what consumers ask for.
    """

    stream: str
    name: str
    filter_subject: str = ""
    """Empty: everything in the stream. In a work queue, no two consumers' filters may overlap."""
    ack_wait_seconds: float = 30
    """Seconds after which a delivery that was not acknowledged, refused or extended is made again."""
    inactive_threshold_seconds: float | None = None
    """After how long without a pull the server forgets the consumer."""


@dataclass(frozen=True, kw_only=True)
class BucketSpec:
    name: str
    ttl_seconds: float | None = None
    """How long a value is kept after its last change."""
    storage: StorageType = "file"
    replicas: int = 1
    max_bytes: int | None = None
    max_value_bytes: int | None = None
    republish_to: str = ""
    """Where each stored change is told, as `<told_on>.<key>`: what a watch listens to."""

    @property
    def stream_name(self) -> str:
        return f"KV_{self.name}"

    def subject(self, key: str) -> str:
        return f"$KV.{self.name}.{key}"
