"""When a failed request may be sent again, and after how long. Pure: chance is passed in."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.kube.errors import ApiError, Invalid, KubeError, Unreachable

_TRANSIENT = frozenset({500, 502, 503, 504})


@dataclass(frozen=True)
class Backoff:
    """Waits that double from one failure to the next, each spread by chance so that failures do not march in step."""

    first: float = 0.1
    longest: float = 30.0
    spread: float = 0.2

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after the given number of failures in a row, counted from one."""
        doubled = self.first * 2.0 ** min(failures - 1, 60)
        return min(self.longest, doubled) * (1 + self.spread * (2 * chance() - 1))


@dataclass(frozen=True)
class RetryPolicy:
    """How patient a client is."""

    attempts: int = 5
    backoff: Backoff = Backoff(first=0.1, longest=2.0)
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
