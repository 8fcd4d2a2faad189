"""When a failed request may be sent again, and after how long. Pure: chance is passed in."""

from dataclasses import dataclass, field

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.errors import ApiError, Invalid, KubeError, Unreachable

__all__ = ["IMPATIENT", "Backoff", "RetryPolicy"]

_TRANSIENT = frozenset({500, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """How patient a client is."""

    attempts: int = 5
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.1, longest=2.0))
    patience: float = 10.0
    """The longest Retry-After that is waited for; a server that asks for more is reported to the caller."""

    def delay(self, error: KubeError, attempt: int, *, repeatable: bool) -> float | None:
        """Seconds until the request may be sent again after its given attempt failed, or None if it may not be."""
        if attempt >= self.attempts or not _may_repeat(error, repeatable):
            return None
        asked = error.retry_after if isinstance(error, ApiError) else None
        if asked is None:
            return self.backoff.delay(attempt)
        return None if asked > self.patience else max(asked, self.backoff.delay(attempt))


IMPATIENT = RetryPolicy(attempts=1)


def _may_repeat(error: KubeError, repeatable: bool) -> bool:
    """What was surely not carried out may always be repeated, what may have been only if twice is as good as once."""
    match error:
        case Unreachable(sent=sent):
            return repeatable or not sent
        case Invalid():
            return False
        case ApiError(code=429):
            return True
        case ApiError(code=code, retry_after=asked) if code in _TRANSIENT:
            return repeatable or asked is not None
    return False
