"""Exceptions of the framework: two that a handler raises to control retries, and two that the framework raises.

Exception
├─ Reject        a handler raises it: this invocation can never succeed → 422
├─ Retry         a handler raises it: another attempt may succeed       → 503
├─ CannotServe   the process is not configured correctly                → the process exits
└─ BadRequest    the request violates the contract                      → 4xx, the handler is not called
"""

import math


class Reject(Exception):
    """A handler raises this exception when the invocation can never succeed.

    The platform does not retry the invocation.
    """


class Retry(Exception):
    """A handler raises this exception when it cannot serve the invocation now.

    The platform retries the invocation, on any worker.
    """

    after: float | None = None
    """Seconds to wait before the next attempt. None: the platform's backoff decides."""

    def __init__(self, message: str = "", after: float | None = None) -> None:
        super().__init__(message)
        if after is not None and not 0 <= after < math.inf:
            raise ValueError(f"after is {after!r}; use a number of seconds, 0 or more")
        self.after = after


class CannotServe(Exception):
    """The process cannot serve: it has no handler, its settings are invalid, or it cannot open its socket."""


class BadRequest(Exception):
    """The server rejects a request with this status and does not call the handler."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
