"""Decides whether the informer caches are recent enough to answer requests.

If a watch breaks, a process continues to answer from the cache for MAX_STALENESS_SECONDS. Most watches open again
within this time: watches are reopened regularly, and an API server that restarts is back within seconds. After
MAX_STALENESS_SECONDS, the caches cannot be used, because the process does not know how stale they are. As soon as the
watch is open again, the process answers from the cache again.

If the API server does not close its connections but sends nothing, the informer detects this after at most 90 seconds.
During this time, reads may be stale, and writes fail within seconds.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runtime.kube.informer import Informer

MAX_STALENESS_SECONDS = 5.0


@dataclass(frozen=True)
class CacheStaleness:
    informers: Sequence[Informer[Any]]

    def reason(self) -> str | None:
        """Return why the caches cannot be used, or None if they can."""
        failing = [informer for informer in self.informers if informer.last_error]
        if not all(informer.has_synced for informer in self.informers):
            reason = unreachable(failing[0]) if failing else "the caches are still loading"
            return f"the API does not know the cluster's state yet: {reason}"
        now = asyncio.get_running_loop().time()
        stale = [informer for informer in failing if now - informer.failing_since > MAX_STALENESS_SECONDS]
        return unreachable(stale[0]) if stale else None


def unreachable(informer: Informer[Any]) -> str:
    return f"Kubernetes cannot be reached: {informer.last_error}"
