"""The drain request, which the leading activator sends to a worker before it deletes the worker, and its reply."""

from typing import Annotated

from msgspec import Meta

from gpu_runtime.contract.messages.message_codec import Message


class DrainRequest(Message, frozen=True, kw_only=True):
    """Asks an idle worker to accept no more invocations. A busy worker ignores the request and continues."""

    force: bool = False
    """Asks a busy worker, too: it accepts no more invocations and completes those in flight."""


class DrainStatus(Message, frozen=True, kw_only=True):
    accepted: bool
    """Whether the worker drains: it stopped accepting invocations before this reply and does not resume."""

    in_flight: Annotated[int, Meta(ge=0)] = 0
    """The number of running invocations. The worker can be deleted when it is 0."""
