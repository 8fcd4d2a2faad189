"""The drain request, which the leading activator sends to a worker before it deletes the worker, and its reply."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.message_codec import Message


class DrainRequest(Message, frozen=True, kw_only=True):
    """Asks an idle worker to accept no more invocations. A busy worker declines and continues if `force` is not set."""

    force: bool = False
    """Whether a busy worker must drain, too. It then accepts no more invocations and completes those in flight."""


class DrainStatus(Message, frozen=True, kw_only=True):
    accepted: bool
    """Whether the worker is draining. If true, it stopped accepting invocations before it sent this reply, and it does
    not start accepting them again."""

    in_flight: Annotated[int, Meta(ge=0)] = 0
    """The number of running invocations. The activator can delete the worker when the number is 0."""
