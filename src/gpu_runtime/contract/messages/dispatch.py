"""The dispatch message: the activator sends an invocation to the workers of a function. One worker runs it."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import Instant, Message


class Dispatch(Message, frozen=True, kw_only=True):
    """An invocation with its deadline. It has no address of a framework: each worker knows its own framework."""

    invocation: Invocation
    """The invocation to run."""

    attempt: Annotated[int, Meta(ge=1)] = 1
    """The number of this dispatch of the invocation: 1 for the first. Deliveries are not counted here: JetStream counts
    the deliveries of each dispatch."""

    deadline: Instant
    """If a worker receives the dispatch after this time, it publishes the result `expired` and does not start
    the invocation."""

    dispatched_at: Instant
    """When the activator published the dispatch."""
