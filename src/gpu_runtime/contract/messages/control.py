"""What the leading activator asks of one worker before it removes it."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.wire import Message


class Drain(Message, frozen=True, kw_only=True):
    """Take no more work, if you have none. A worker that has some goes on as if nothing had been asked."""


class Drained(Message, frozen=True, kw_only=True):
    draining: bool
    """Whether it takes no more work, from before this answer on and for good."""

    in_flight: Annotated[int, Meta(ge=0)] = 0
    """What it has in hand. Always 0 where it drains because it was asked."""
