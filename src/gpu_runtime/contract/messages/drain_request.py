"""What the leading activator asks of one worker before it removes it."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.message_codec import Message


class DrainRequest(Message, frozen=True, kw_only=True):
    """Take no more work, if you have none. A worker that has some goes on as if nothing had been asked."""

    force: bool = False
    """Take no more in any case, and finish what is in hand."""


class DrainStatus(Message, frozen=True, kw_only=True):
    accepted: bool
    """Whether it takes no more work, from before this answer on and for good."""

    in_flight: Annotated[int, Meta(ge=0)] = 0
    """What it has in hand. It may go when that is 0."""
