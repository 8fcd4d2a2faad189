"""Decides whether a failed request is retried, and after which delay. Pure."""

from dataclasses import dataclass, field

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.errors import KubeApiError, KubeError, KubeInvalid, KubeUnreachable

_TRANSIENT_STATUS_CODES = frozenset({500, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and after which delays, a client repeats a failed request."""

    max_attempts: int = 5
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.1, max_seconds=2.0))
    max_retry_after_seconds: float = 10.0
    """The longest Retry-After for which the client waits. If the server demands more, the client raises the error."""

    def delay(self, error: KubeError, attempt: int, *, idempotent: bool) -> float | None:
        """Return the seconds to wait before the next attempt, or None if the request must not be repeated.

        `attempt` is the number of the attempt that failed with this error. The first attempt is number 1.
        """
        if attempt >= self.max_attempts or not _is_retryable(error, idempotent):
            return None
        retry_after = error.retry_after if isinstance(error, KubeApiError) else None
        if retry_after is None:
            return self.backoff.delay(attempt)
        return None if retry_after > self.max_retry_after_seconds else max(retry_after, self.backoff.delay(attempt))


NO_RETRY = RetryPolicy(max_attempts=1)


def _is_retryable(error: KubeError, idempotent: bool) -> bool:
    """Return whether the request can be repeated after this error.

    If the server certainly did not execute the request, it can always be repeated. If the server may have executed the
    request, only an idempotent request can be repeated.
    """
    match error:
        case KubeUnreachable(sent=sent):
            return idempotent or not sent
        case KubeInvalid():
            return False
        case KubeApiError(code=429):
            return True
        case KubeApiError(code=code, retry_after=retry_after) if code in _TRANSIENT_STATUS_CODES:
            return idempotent or retry_after is not None

    return False
