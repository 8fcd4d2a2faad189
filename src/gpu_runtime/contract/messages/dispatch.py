"""Dispatch: an invocation on its way to whichever worker of the function takes it first."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import Instant, Message


class Dispatch(Message, frozen=True, kw_only=True):
    """What a worker needs. Where the framework listens is the unit's own matter and not said here."""

    invocation: Invocation
    """What is to be done."""

    attempt: Annotated[int, Meta(ge=1)] = 1
    """Which dispatch of the invocation it is. How often a worker tried this one, the queue itself counts."""

    deadline: Instant
    """After this moment nobody wants the answer any more: the worker says `expired` instead of beginning."""

    dispatched_at: Instant
    """When it was dispatched."""

    @property
    def message_id(self) -> str:
        return f"{self.invocation.invocation_id}.{self.attempt}"
