"""The dispatch message: the activator sends an invocation to the workers of a function; one of them runs it."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import Instant, Message


class Dispatch(Message, frozen=True, kw_only=True):
    """An invocation with its deadline. The address of the framework is not part of it: each worker knows its own."""

    invocation: Invocation
    """The invocation to run."""

    attempt: Annotated[int, Meta(ge=1)] = 1
    """The number of this dispatch of the invocation. JetStream counts the deliveries of one dispatch."""

    deadline: Instant
    """If a worker receives the dispatch after this time, it publishes the result `expired` and does not start it."""

    dispatched_at: Instant
    """When the activator published the dispatch."""

    @property
    def message_id(self) -> str:
        return f"{self.invocation.invocation_id}.{self.attempt}"
