"""Desired configuration of streams, consumers and key-value buckets, as plain data.

`stream_admin` compares it with the server and applies it. For every number, None means no limit.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

StorageType: TypeAlias = Literal["file", "memory"]
RetentionPolicy: TypeAlias = Literal["limits", "workqueue"]
DiscardPolicy: TypeAlias = Literal["old", "new"]

DUPLICATE_WINDOW_SECONDS = 120.0
"""Seconds for which the server detects a repeated message ID. Every publisher stops retrying earlier."""


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
    """With `discard="new"`, the stream rejects new messages for a full subject, and still accepts messages for other
    subjects."""


@dataclass(frozen=True)
class ConsumerSpec:
    """A durable pull consumer with explicit acknowledgement.

    The consumer has no limit on deliveries (max_deliver), because at that limit the server would stop delivering the
    message without notice. The consumer also has no limit on unacknowledged messages (max_ack_pending). A message that
    waits for its redelivery counts as unacknowledged, so redeliveries of one subject would block the deliveries of all
    other subjects. Instead, the batch sizes of the pull requests limit the number of messages in flight.
    """

    stream: str
    name: str
    filter_subject: str = ""
    """Empty: all messages of the stream. In a work queue stream, the filters of two consumers must not overlap."""
    ack_wait_seconds: float = 30
    """Seconds after which the server redelivers a message without an ack, a nak or an in-progress acknowledgement."""
    inactive_threshold_seconds: float | None = None
    """Seconds without a pull request after which the server deletes the consumer."""

    @property
    def ack_extension_seconds(self) -> float:
        """Interval of the in-progress acknowledgements. Two lost acknowledgements in a row cause no redelivery."""
        return self.ack_wait_seconds / 3


@dataclass(frozen=True, kw_only=True)
class BucketSpec:
    name: str
    ttl_seconds: float | None = None
    """Seconds after which a value expires, counted from its last change."""
    storage: StorageType = "file"
    replicas: int = 1
    max_value_bytes: int | None = None
    max_bytes: int | None = None
    """Maximum size of all values. A full bucket rejects writes that make it larger."""
    republish_to: str = ""
    """The server republishes each stored change on `<republish_to>.<key>`. Watches subscribe to that subject."""

    @property
    def stream_name(self) -> str:
        return f"KV_{self.name}"

    def subject(self, key: str) -> str:
        return f"$KV.{self.name}.{key}"
