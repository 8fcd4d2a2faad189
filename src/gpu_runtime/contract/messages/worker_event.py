"""Worker events: registration, heartbeats, and the start and end of invocations.

Events may be lost. No decision depends on one event alone, because the next heartbeat repeats the state.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, field

from gpu_runtime.contract.messages.message_codec import Message
from gpu_runtime.contract.timing import HEARTBEAT_SECONDS, MAX_HEARTBEAT_SECONDS

HeartbeatSeconds = Annotated[float, Meta(gt=0, le=MAX_HEARTBEAT_SECONDS)]


class WorkerEventKind(StrEnum):
    REGISTERED = "registered"
    """The framework is healthy: the worker accepts invocations from now on."""
    HEARTBEAT = "heartbeat"
    STARTED = "started"
    """The worker started an invocation. If several invocations start in quick succession, the worker sends one event,
    for the last of them. This invocation may have ended already."""
    FINISHED = "finished"
    """The worker completed an invocation. If several invocations end in quick succession, the worker sends one event,
    for the last of them."""
    DRAINING = "draining"
    """The worker completes its invocations and accepts no more."""


class WorkerEvent(Message, frozen=True, kw_only=True):
    kind: WorkerEventKind
    function_id: str = field(name="functionID")
    unit: str
    """The name of the worker's unit."""

    namespace: str = ""
    """The namespace of the worker's unit."""

    pod_uid: str = field(default="", name="podUID")
    """The UID of the pod. It distinguishes a re-created worker with the same name."""

    sequence: Annotated[int, Meta(ge=0)] = 0
    """Counts the events of one pod, so that the activator can ignore an older event that arrives later."""

    in_flight: Annotated[int, Meta(ge=0)] = 0
    """The number of running invocations, including the invocation of this event if it is still running."""

    concurrency: Annotated[int, Meta(ge=1)] = 1
    """The maximum number of invocations that the worker runs concurrently."""

    heartbeat_seconds: HeartbeatSeconds = HEARTBEAT_SECONDS
    """The worker sends at least one event within this time. The activator derives from it how long it trusts the last
    event."""

    invocation_id: str = field(default="", name="invocationID")
    """The invocation of a `started` or `finished` event."""
