"""Informer caches are usable while their watches are open, and for a grace period after that."""

from typing import Any, cast

import pytest

from gpu_runtime.kube.cache_staleness import MAX_STALENESS_SECONDS, CacheStaleness
from tests.unit.kube.fake_time import now, on_fake_time


class FakeInformer:
    def __init__(self, has_synced: bool = True, last_error: str = "", failing_for: float = 0.0) -> None:
        self.has_synced, self.last_error, self._failing_for = has_synced, last_error, failing_for

    @property
    def failing_since(self) -> float:
        return now() - self._failing_for


AFTER_GRACE = MAX_STALENESS_SECONDS + 0.1

STATES = {
    "all watches open": (FakeInformer(), None),
    "starting": (FakeInformer(has_synced=False), "yet: the caches are still loading"),
    "unreachable at start": (FakeInformer(False, "no answer"), "yet: Kubernetes cannot be reached: no answer"),
    "unreachable within the grace period": (FakeInformer(True, "no answer", MAX_STALENESS_SECONDS), None),
    "unreachable after the grace period": (
        FakeInformer(True, "no answer", AFTER_GRACE),
        "Kubernetes cannot be reached: no answer",
    ),
    "reachable again": (FakeInformer(failing_for=AFTER_GRACE), None),
}


@pytest.mark.parametrize(("informer", "expected"), STATES.values(), ids=STATES)
def test_stale_caches_are_unusable_after_the_grace_period(informer: FakeInformer, expected: str | None) -> None:
    @on_fake_time
    async def body() -> None:
        reason = CacheStaleness(cast(Any, [FakeInformer(), informer, FakeInformer()])).reason()
        assert (reason or "").endswith(expected or "")
        assert (reason is None) == (expected is None)

    body()
