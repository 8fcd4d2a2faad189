"""The streams, consumers and the key-value bucket of the serverless plane, as specs.

`gpu_runtime.jetstream.stream_admin` creates them.

| stream | contains | deletes a message when | if the stream is full |
|---|---|---|---|
| INVOKE | invocations, limited per function | the activator acks it | it rejects messages: the caller gets an error |
| DISPATCH | invocations, limited per function | a worker acks it | it rejects messages: the activator retries |
| RESULT | results | the result store acks it | it rejects messages: the sender retries |
| DLQ | dead letters, limited per function | its retention ends | it deletes the oldest messages |

INVOKE, DISPATCH and RESULT have no maximum age: if a stream deleted an accepted invocation, the invocation would never
get a result. Instead, the process that handles an invocation checks its deadline. The names of the streams begin with
the subject prefix, so that two installations can share a NATS account.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.contract.timing import (
    DISPATCH_ACK_WAIT_SECONDS,
    INVOKE_ACK_WAIT_SECONDS,
    RESULT_ACK_WAIT_SECONDS,
)
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StorageType, StreamSpec

GIB = 1024**3


@dataclass(frozen=True)
class StreamLimits:
    """The values that an operator can set, in `nats.streams` of the settings."""

    replicas: int = 1
    storage: StorageType = "file"
    max_messages_per_subject: int = 10_000
    max_bytes: int = 2 * GIB
    dead_letter_retention_seconds: float = 7 * 86400
    dead_letter_max_bytes: int = GIB
    max_dead_letters_per_subject: int = 200
    record_ttl_seconds: float = 86400
    record_max_bytes: int = 2 * GIB
    invoke_ack_wait_seconds: float = INVOKE_ACK_WAIT_SECONDS
    dispatch_ack_wait_seconds: float = DISPATCH_ACK_WAIT_SECONDS
    result_ack_wait_seconds: float = RESULT_ACK_WAIT_SECONDS
    consumer_inactive_threshold_seconds: float = 86400

    @property
    def invoke_max_bytes(self) -> int:
        """Maximum size of INVOKE: half of DISPATCH, so that DISPATCH has capacity for all messages of INVOKE."""
        return self.max_bytes // 2

    @property
    def function_share_bytes(self) -> int:
        """Bytes that messages of equal size of one function can use in INVOKE and DISPATCH together.

        If the messages of a function become smaller and smaller, the function can use up to six times as many bytes.
        This is less than a fifth of the capacity of DISPATCH.
        """
        return self.max_bytes // 32


@dataclass(frozen=True)
class StreamTopology:
    subjects: Subjects = field(default_factory=Subjects)
    limits: StreamLimits = StreamLimits()

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return (*(self.stream_spec(each) for each in Stream), self.dead_letter_stream)

    def stream_spec(self, stream: Stream) -> StreamSpec:
        # Results need no limit per function, because the limit on invocations also limits the number of results.
        limited = stream is not Stream.RESULT
        return StreamSpec(
            name=self.stream_name(stream),
            subjects=(self.subjects.all_functions(stream),),
            retention="workqueue",
            discard="new",
            storage=self.limits.storage,
            replicas=self.limits.replicas,
            max_bytes=self.limits.invoke_max_bytes if stream is Stream.INVOKE else self.limits.max_bytes,
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
            max_messages_per_subject=self.limits.max_dead_letters_per_subject,
        )

    @property
    def record_bucket(self) -> BucketSpec:
        """The records of invocations. The key is the invocationID."""
        return BucketSpec(
            name=self._name("STATE"),
            ttl_seconds=self.limits.record_ttl_seconds,
            storage=self.limits.storage,
            replicas=self.limits.replicas,
            max_value_bytes=MAX_PAYLOAD_BYTES // 8,
            max_bytes=self.limits.record_max_bytes,
            republish_to=self.subjects.state_prefix,
        )

    @property
    def invoke_consumer(self) -> ConsumerSpec:
        """The consumer that all replicas of the activator share."""
        return ConsumerSpec(
            self.stream_name(Stream.INVOKE), "activator", ack_wait_seconds=self.limits.invoke_ack_wait_seconds
        )

    @property
    def result_consumer(self) -> ConsumerSpec:
        """The consumer that all replicas of the result store share."""
        return ConsumerSpec(
            self.stream_name(Stream.RESULT), "result-store", ack_wait_seconds=self.limits.result_ack_wait_seconds
        )

    def dispatch_consumer(self, function_id: str) -> ConsumerSpec:
        """The consumer that all workers of a function share.

        The leading activator deletes it when the function is deleted. If the activator misses the deletion, the server
        deletes the consumer after the inactive threshold. Messages stay in the stream, and a re-created consumer
        delivers them.
        """
        return ConsumerSpec(
            self.stream_name(Stream.DISPATCH),
            f"fn-{function_id}",
            filter_subject=self.subjects.dispatch(function_id),
            ack_wait_seconds=self.limits.dispatch_ack_wait_seconds,
            inactive_threshold_seconds=self.limits.consumer_inactive_threshold_seconds,
        )

    def shared_consumers(self) -> Iterator[ConsumerSpec]:
        """The consumers that do not depend on a function."""
        yield self.invoke_consumer
        yield self.result_consumer

    def stream_name(self, stream: Stream) -> str:
        return self._name(stream.value.upper())

    def _name(self, part: str) -> str:
        return f"{self.subjects.prefix.replace('.', '_').upper()}_{part}"
