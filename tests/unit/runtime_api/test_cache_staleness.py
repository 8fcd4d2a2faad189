"""Informer caches are usable while their watches are open, and for a grace period after that."""

from typing import Any

import pytest

from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.cache_staleness import MAX_STALENESS_SECONDS, stale_reason


class FakeInformer:
    def __init__(self, has_synced: bool = True, last_error: str = "", failing_since: float = 0.0) -> None:
        self.has_synced, self.last_error, self.failing_since = has_synced, last_error, failing_since


def informers(**failing: FakeInformer) -> Any:
    fields = {name: failing.get(name, FakeInformer()) for name in APIInformers.__dataclass_fields__}
    return APIInformers(**fields)  # type: ignore[arg-type]


AFTER_GRACE = MAX_STALENESS_SECONDS + 0.1
NO_ANSWER = FakeInformer(last_error="no answer")

STATES = {
    "all watches open": (informers(), 0.0, None),
    "starting": (informers(units=FakeInformer(has_synced=False)), 0.0, "yet: the caches are still loading"),
    "unreachable at start": (
        informers(units=FakeInformer(False, "no answer")),
        0.0,
        "yet: Kubernetes cannot be reached: no answer",
    ),
    "unreachable within the grace period": (informers(pools=NO_ANSWER), MAX_STALENESS_SECONDS, None),
    "unreachable after the grace period": (
        informers(pools=NO_ANSWER),
        AFTER_GRACE,
        "Kubernetes cannot be reached: no answer",
    ),
    "reachable again": (informers(pools=FakeInformer(last_error="", failing_since=0.0)), AFTER_GRACE, None),
}


@pytest.mark.parametrize(("state", "now", "expected"), STATES.values(), ids=STATES)
def test_stale_caches_are_unusable_after_the_grace_period(
    state: APIInformers, now: float, expected: str | None
) -> None:
    reason = stale_reason(state, now)
    assert (reason or "").endswith(expected or "")
    assert (reason is None) == (expected is None)
