"""Where messages are kept, as data. `gpu_runtime.jetstream.stream_admin` makes it so.

| stream | holds | until | when it is full |
|---|---|---|---|
| INVOKE, DISPATCH | what waits, per function at most so many | it is acknowledged | refuses: the caller hears of it |
| RESULT | results | the result store acknowledges them | refuses: the sender tries again |
| DLQ | dead letters | their retention is over | forgets the oldest |

No queue forgets by age: an accepted invocation that vanished would never have a result. Whoever holds it looks at its
deadline. Names of streams begin with the prefix, so that two installations can share an account.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StorageType, StreamSpec

GIB = 1024**3


@dataclass(frozen=True)
class StreamLimits:
    """What an operator decides about it."""

    replicas: int = 1
    storage: StorageType = "file"
    max_messages_per_subject: int = 10_000
    max_bytes: int = 2 * GIB
    dead_letter_retention_seconds: float = 7 * 86400
    dead_letter_max_bytes: int = GIB
    record_ttl_seconds: float = 86400
    invoke_ack_wait_seconds: float = 30
    dispatch_ack_wait_seconds: float = 15
    result_ack_wait_seconds: float = 30
    consumer_inactive_threshold_seconds: float = 86400


@dataclass(frozen=True)
class StreamTopology:
    subjects: Subjects = field(default_factory=Subjects)
    limits: StreamLimits = StreamLimits()

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return (*(self.stream_spec(each) for each in Stream), self.dead_letter_stream)

    def stream_spec(self, queue: Stream) -> StreamSpec:
        limited = queue is not Stream.RESULT  # a result has a place: its invocation had one
        return StreamSpec(
            name=self.stream_name(queue),
            subjects=(self.subjects.all_in_stream(queue),),
            retention="workqueue",
            discard="new",
            storage=self.limits.storage,
            replicas=self.limits.replicas,
            max_bytes=self.limits.max_bytes,
            max_messages_per_subject=self.limits.max_messages_per_subject if limited else None,
        )

    @property
    def dead_letter_stream(self) -> StreamSpec:
        return StreamSpec(
            name=self._name("DLQ"),
            subjects=(self.subjects.all_dead_letters,),
            retention="limits",
            discard="old",
            storage=self.limits.storage,
            replicas=self.limits.replicas,
            max_bytes=self.limits.dead_letter_max_bytes,
            max_age_seconds=self.limits.dead_letter_retention_seconds,
        )

    @property
    def record_bucket(self) -> BucketSpec:
        """The records of invocations, by invocationID."""
        return BucketSpec(
            name=self._name("STATE"),
            ttl_seconds=self.limits.record_ttl_seconds,
            storage=self.limits.storage,
            replicas=self.limits.replicas,
            max_value_bytes=MAX_PAYLOAD_BYTES // 8,
            republish_to=self.subjects.state_prefix,
        )

    @property
    def invoke_consumer(self) -> ConsumerSpec:
        """Shared by all replicas of the activator."""
        return ConsumerSpec(
            self.stream_name(Stream.INVOKE), "activator", ack_wait_seconds=self.limits.invoke_ack_wait_seconds
        )

    @property
    def result_consumer(self) -> ConsumerSpec:
        """Shared by all replicas of the result store."""
        return ConsumerSpec(
            self.stream_name(Stream.RESULT), "result-store", ack_wait_seconds=self.limits.result_ack_wait_seconds
        )

    def dispatch_consumer(self, request_id: str) -> ConsumerSpec:
        """Shared by all workers of a function.

        The leading activator deletes it when the function is gone. One that was forgotten goes when nobody has pulled
        from it for long; what waited for it stays in the stream, and a consumer that is made again finds it.
        """
        return ConsumerSpec(
            self.stream_name(Stream.DISPATCH),
            f"fn-{request_id}",
            filter_subject=self.subjects.dispatch(request_id),
            ack_wait_seconds=self.limits.dispatch_ack_wait_seconds,
            inactive_threshold_seconds=self.limits.consumer_inactive_threshold_seconds,
        )

    def shared_consumers(self) -> Iterator[ConsumerSpec]:
        """Those that are always there."""
        yield self.invoke_consumer
        yield self.result_consumer

    def stream_name(self, queue: Stream) -> str:
        return self._name(queue.value.upper())

    def _name(self, part: str) -> str:
        return f"{self.subjects.prefix.replace('.', '_').upper()}_{part}"
