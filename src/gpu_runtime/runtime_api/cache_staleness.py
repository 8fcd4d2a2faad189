"""Whether the caches may be answered from.

A cache whose watch is broken is still true for a moment: watches are opened anew all the time, and an API server that
restarts is back in seconds. So reads go on for a few seconds; after that nobody knows how old the answer is, and no
answer is better than an old one. Recovery needs nobody: the watch opens again, and the trouble is over.

A server that keeps its connections open and says nothing is found out by the watch itself, after at most 90 seconds;
until then reads are as old as its silence, while writes fail within seconds.
"""

from gpu_runtime.runtime_api.api_informers import APIInformers

MAX_STALENESS_SECONDS = 5.0


def stale_reason(caches: APIInformers, now: float) -> str | None:
    """Why the caches must not be answered from, in the time of the event loop; None where they may be."""
    if not caches.has_synced:
        reason = f"Kubernetes cannot be reached: {caches.last_error}" if caches.last_error else "it is still starting"
        return f"the API does not know the cluster's state yet: {reason}"
    for cache in caches.all:
        if cache.last_error and now - cache.failing_since > MAX_STALENESS_SECONDS:
            return f"Kubernetes cannot be reached: {cache.last_error}"
    return None
