"""Why an invocation did not succeed, in words that programs can rely on."""

from enum import StrEnum


class FailureClass(StrEnum):
    FUNCTION_ERROR = "function_error"
    """The function answered, with an error. That is its answer: asking again would run it again, with all it does."""

    FUNCTION_CRASHED = "function_crashed"
    """The function took the call and broke off without an answer. Retried: execution is at least once."""

    FUNCTION_UNREACHABLE = "function_unreachable"
    """The function's framework did not take the call. Retried."""

    FUNCTION_GONE = "function_gone"
    """The function was deleted, or is no function any more. Not retried."""

    WORKER_LOST = "worker_lost"
    """A worker took the invocation and was never heard of again. Retried, on another worker."""

    TIMED_OUT = "timed_out"
    """The invocation's time, which counts from its acceptance, was over. Not retried."""

    CANCELLED = "cancelled"
    """The caller took it back. Not retried."""

    BAD_MESSAGE = "bad_message"
    """A message that cannot be read, or says two things. Not retried: it would stay as it is."""

    INTERNAL = "internal"
    """The platform's own fault. Retried."""
