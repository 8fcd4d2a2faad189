"""Failure classes: stable codes that say why an invocation did not succeed."""

from enum import StrEnum


class FailureClass(StrEnum):
    FUNCTION_ERROR = "function_error"
    """The function returned an error, or the response of the framework was malformed. The platform does not retry the
    invocation, because a retry would repeat side effects."""

    FUNCTION_CRASHED = "function_crashed"
    """The framework accepted the call and closed the connection before the end of its response. The platform retries
    the invocation, so the function may run more than once."""

    FUNCTION_UNREACHABLE = "function_unreachable"
    """The framework did not accept the call, or the function requested a retry. The platform retries the invocation."""

    FUNCTION_GONE = "function_gone"
    """The function was deleted, or its unit has `serverless.enabled: false`. The platform does not retry the
    invocation."""

    WORKER_LOST = "worker_lost"
    """The invocation has reached the maximum number of attempts, and the worker of the last attempt died before it
    finished the invocation. If the worker of an earlier attempt dies, the platform retries the invocation."""

    TIMED_OUT = "timed_out"
    """The timeout of the invocation expired. The timeout counts from the acceptance of the invocation. The platform
    does not retry the invocation."""

    CANCELLED = "cancelled"
    """The caller cancelled the invocation. The platform does not retry the invocation."""

    BAD_MESSAGE = "bad_message"
    """The message is malformed or contradicts itself. The platform does not retry the message, because a redelivery
    would fail in the same way."""

    INTERNAL = "internal"
    """An error occurred in the platform. The platform retries the invocation."""
