"""Caches are answered from while they are true, and for a moment longer."""

from typing import Any

import pytest

from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.cache_staleness import MAX_STALENESS_SECONDS, stale_reason


class Cache:
    def __init__(self, has_synced: bool = True, trouble: str = "", troubled_at: float = 0.0) -> None:
        self.has_synced, self.trouble, self.troubled_at = has_synced, trouble, troubled_at


def caches(**odd: Cache) -> Any:
    return APIInformers(**{name: odd.get(name, Cache()) for name in APIInformers.__dataclass_fields__})  # type: ignore[arg-type]


LATER = MAX_STALENESS_SECONDS + 0.1

STATES = {
    "all is well": (caches(), 0.0, None),
    "starting": (caches(units=Cache(has_synced=False)), 0.0, "yet: it is still starting"),
    "away at the start": (caches(units=Cache(False, "no answer")), 0.0, "yet: Kubernetes cannot be reached: no answer"),
    "away for a moment": (caches(pools=Cache(trouble="no answer")), MAX_STALENESS_SECONDS, None),
    "away for too long": (caches(pools=Cache(trouble="no answer")), LATER, "Kubernetes cannot be reached: no answer"),
    "away before, and back": (caches(pools=Cache(trouble="", troubled_at=0.0)), LATER, None),
}


@pytest.mark.parametrize(("seen", "now", "said"), STATES.values(), ids=STATES)
def test_stale_caches_are_unusable_after_the_grace_period(seen: APIInformers, now: float, said: str | None) -> None:
    found = stale_reason(seen, now)
    assert (found or "").endswith(said or "")
    assert (found is None) == (said is None)
