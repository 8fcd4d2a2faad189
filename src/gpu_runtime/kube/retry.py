"""When a failed request may be sent again, and after how long. Pure: chance is passed in."""

from dataclasses import dataclass, field

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.errors import KubeApiError, KubeError, KubeInvalid, KubeUnreachable

__all__ = ["NO_RETRY", "Backoff", "RetryPolicy"]

_TRANSIENT_STATUS_CODES = frozenset({500, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """How patient a client is."""

    max_attempts: int = 5
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.1, max_seconds=2.0))
    max_retry_after_seconds: float = 10.0
    """The longest Retry-After that is waited for; a server that asks for more is reported to the caller."""

    def delay(self, error: KubeError, attempt: int, *, idempotent: bool) -> float | None:
        """Seconds until the request may be sent again after its given attempt failed, or None if it may not be."""
        if attempt >= self.max_attempts or not _is_retryable(error, idempotent):
            return None
        asked = error.retry_after if isinstance(error, KubeApiError) else None
        if asked is None:
            return self.backoff.delay(attempt)
        return None if asked > self.max_retry_after_seconds else max(asked, self.backoff.delay(attempt))


NO_RETRY = RetryPolicy(max_attempts=1)


def _is_retryable(error: KubeError, repeatable: bool) -> bool:
    """What was surely not carried out may always be repeated, what may have been only if twice is as good as once."""
    match error:
        case KubeUnreachable(sent=sent):
            return repeatable or not sent
        case KubeInvalid():
            return False
        case KubeApiError(code=429):
            return True
        case KubeApiError(code=code, retry_after=asked) if code in _TRANSIENT_STATUS_CODES:
            return repeatable or asked is not None
    return False
