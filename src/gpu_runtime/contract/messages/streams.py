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

from gpu_runtime.contract.messages.limits import BODY_LIMIT
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, Storage, StreamSpec

GIB = 1024**3


@dataclass(frozen=True)
class Keeping:
    """What an operator decides about it."""

    replicas: int = 1
    storage: Storage = "file"
    queued_per_function: int = 10_000
    queue_bytes: int = 2 * GIB
    dead_letter_seconds: float = 7 * 86400
    dead_letter_bytes: int = GIB
    state_seconds: float = 86400
    invoke_ack_wait: float = 30
    dispatch_ack_wait: float = 15
    result_ack_wait: float = 30
    idle_consumer_seconds: float = 86400


@dataclass(frozen=True)
class Topology:
    subjects: Subjects = field(default_factory=Subjects)
    keeping: Keeping = Keeping()

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return (*(self.queue(each) for each in Queue), self.dead_letters)

    def queue(self, queue: Queue) -> StreamSpec:
        limited = queue is not Queue.RESULT  # a result has a place: its invocation had one
        return StreamSpec(
            name=self.stream_name(queue),
            subjects=(self.subjects.all_of(queue),),
            retention="workqueue",
            discard="new",
            storage=self.keeping.storage,
            replicas=self.keeping.replicas,
            max_bytes=self.keeping.queue_bytes,
            max_messages_per_subject=self.keeping.queued_per_function if limited else None,
        )

    @property
    def dead_letters(self) -> StreamSpec:
        return StreamSpec(
            name=self._name("DLQ"),
            subjects=(self.subjects.all_dead_letters,),
            retention="limits",
            discard="old",
            storage=self.keeping.storage,
            replicas=self.keeping.replicas,
            max_bytes=self.keeping.dead_letter_bytes,
            max_age_seconds=self.keeping.dead_letter_seconds,
        )

    @property
    def state(self) -> BucketSpec:
        """The records of invocations, by invocationID."""
        return BucketSpec(
            name=self._name("STATE"),
            ttl_seconds=self.keeping.state_seconds,
            storage=self.keeping.storage,
            replicas=self.keeping.replicas,
            max_value_bytes=BODY_LIMIT // 8,
            told_on=self.subjects.state,
        )

    @property
    def activation(self) -> ConsumerSpec:
        """Shared by all replicas of the activator."""
        return ConsumerSpec(self.stream_name(Queue.INVOKE), "activator", ack_wait=self.keeping.invoke_ack_wait)

    @property
    def storing(self) -> ConsumerSpec:
        """Shared by all replicas of the result store."""
        return ConsumerSpec(self.stream_name(Queue.RESULT), "result-store", ack_wait=self.keeping.result_ack_wait)

    def work(self, request_id: str) -> ConsumerSpec:
        """Shared by all workers of a function.

        The leading activator deletes it when the function is gone. One that was forgotten goes when nobody has pulled
        from it for long; what waited for it stays in the stream, and a consumer that is made again finds it.
        """
        return ConsumerSpec(
            self.stream_name(Queue.DISPATCH),
            f"fn-{request_id}",
            filter_subject=self.subjects.dispatch(request_id),
            ack_wait=self.keeping.dispatch_ack_wait,
            inactive_seconds=self.keeping.idle_consumer_seconds,
        )

    def consumers(self) -> Iterator[ConsumerSpec]:
        """Those that are always there."""
        yield self.activation
        yield self.storing

    def stream_name(self, queue: Queue) -> str:
        return self._name(queue.value.upper())

    def _name(self, part: str) -> str:
        return f"{self.subjects.prefix.replace('.', '_').upper()}_{part}"
