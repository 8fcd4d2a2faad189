"""Decides whether the informer caches are too stale to answer requests from.

If a watch breaks, the API keeps answering from the cache for MAX_STALENESS_SECONDS. Watches are reopened regularly, and
a restarting API server returns within seconds. After that time the age of the cache is unknown, and the API answers 503
instead of stale data. When the watch opens again, the cache is usable again without any further action.

If the API server keeps its connections open but sends nothing, the informer detects that after at most 90 seconds.
Until then reads may be stale by that time, while writes fail within seconds.
"""

from gpu_runtime.runtime_api.api_informers import APIInformers

MAX_STALENESS_SECONDS = 5.0


def stale_reason(informers: APIInformers, now: float) -> str | None:
    """Why the caches must not be used, or None if they may be used. `now` is the time of the event loop."""
    if not informers.has_synced:
        error = informers.last_error
        reason = f"Kubernetes cannot be reached: {error}" if error else "it is still starting"
        return f"the API does not know the cluster's state yet: {reason}"
    for informer in informers.all:
        if informer.last_error and now - informer.failing_since > MAX_STALENESS_SECONDS:
            return f"Kubernetes cannot be reached: {informer.last_error}"
    return None
