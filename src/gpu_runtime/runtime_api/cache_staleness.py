"""Decides whether the informer caches are recent enough to answer requests.

If a watch breaks, the API continues to answer from the cache for MAX_STALENESS_SECONDS. Most watches open again within
this time: watches are reopened regularly, and an API server that restarts is back within seconds. After
MAX_STALENESS_SECONDS, the API answers 503, because it does not know how stale the cache is. As soon as the watch is
open again, the API answers from the cache again.

If the API server does not close its connections but sends nothing, the informer detects this after at most 90 seconds.
During this time, reads may be stale, and writes fail within seconds.
"""

from gpu_runtime.runtime_api.api_informers import APIInformers

MAX_STALENESS_SECONDS = 5.0


def stale_reason(informers: APIInformers, now: float) -> str | None:
    """Return why the caches cannot be used, or None if they can. `now` is the time of the event loop."""
    if not informers.has_synced:
        error = informers.last_error
        reason = f"Kubernetes cannot be reached: {error}" if error else "the caches are still loading"
        return f"the API does not know the cluster's state yet: {reason}"
    for informer in informers.all:
        if informer.last_error and now - informer.failing_since > MAX_STALENESS_SECONDS:
            return f"Kubernetes cannot be reached: {informer.last_error}"
    return None
