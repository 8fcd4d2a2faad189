"""Failure classes: the stable codes for why an invocation did not succeed."""

from enum import StrEnum


class FailureClass(StrEnum):
    FUNCTION_ERROR = "function_error"
    """The function returned an error. Not retried: the error is the result, and a retry would repeat side effects."""

    FUNCTION_CRASHED = "function_crashed"
    """The function accepted the call and closed the connection without a response. Retried: execution is at least
    once."""

    FUNCTION_UNREACHABLE = "function_unreachable"
    """The framework of the function did not accept the call. Retried."""

    FUNCTION_GONE = "function_gone"
    """The function was deleted, or its unit has serverless disabled. Not retried."""

    WORKER_LOST = "worker_lost"
    """A worker received the invocation and stopped sending heartbeats. Retried on another worker."""

    TIMED_OUT = "timed_out"
    """The timeout of the invocation, which starts when the API accepts it, has expired. Not retried."""

    CANCELLED = "cancelled"
    """The caller cancelled the invocation. Not retried."""

    BAD_MESSAGE = "bad_message"
    """The message is malformed or contradicts itself. Not retried: a redelivery would be the same."""

    INTERNAL = "internal"
    """An error of the platform. Retried."""
