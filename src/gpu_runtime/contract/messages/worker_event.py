"""What a worker tells of itself. Nothing rests on one event alone: what is lost, the next heartbeat says again."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.messages.message_codec import Instant, Message


class WorkerEventKind(StrEnum):
    REGISTERED = "registered"
    """The framework answers: the worker takes work from now on."""
    HEARTBEAT = "heartbeat"
    STARTED = "started"
    """It began an invocation. Of several within a moment the last is told, and it may have ended already."""
    FINISHED = "finished"
    """It ended one. Of several within a moment the last is told."""
    DRAINING = "draining"
    """It ends what it has and takes nothing more."""


class WorkerEvent(Message, frozen=True, kw_only=True):
    kind: WorkerEventKind
    serverless_request_id: str = field(name="serverlessRequestID")
    unit: str
    """The unit's name."""

    namespace: str = ""
    """The unit's namespace."""

    pod_uid: str = field(default="", name="podUID")
    """The pod's UID: a worker that comes again under its name is another one."""

    sequence: Annotated[int, Meta(ge=0)] = 0
    """Counts the events of an instance, so that an older one that arrives later is known as such."""

    sent_at: Instant
    in_flight: Annotated[int, Meta(ge=0)] = 0
    """How many invocations it has at this moment, the one of this event included while it runs."""

    concurrency: Annotated[int, Meta(ge=1)] = 1
    """How many it takes at once."""

    invocation_id: str = field(default="", name="invocationID")
    """For started and finished."""
