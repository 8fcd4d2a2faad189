"""What a handler raises to say more than "it failed", and what keeps a process from serving.

Exception
├─ Reject        this invocation can never succeed → 422
├─ Retry         another try may succeed           → 503
├─ CannotServe   the process is not set up for it  → the process ends
└─ Unreadable    the caller does not speak the contract → 4xx, the handler is not called
"""

import math


class Reject(Exception):
    """Raised by a handler: this invocation can never succeed; do not try it again."""


class Retry(Exception):
    """Raised by a handler: not now; try again, here or on another worker."""

    after: float | None = None
    """Seconds to wait before the next try, where the handler knows better than the platform."""

    def __init__(self, message: str = "", after: float | None = None) -> None:
        super().__init__(message)
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after is {after!r}; give seconds, 0 or more")
        self.after = after


class CannotServe(Exception):
    """The process has no handler, bad settings, or no way to open its socket."""


class BadRequest(Exception):
    """A request that is not answered by the handler, with the status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
