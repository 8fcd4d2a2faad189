"""What is written down about requests: a line per write, a line per read at debug, and metrics by route."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram

audit = logging.getLogger("gpu_runtime.audit")
access = logging.getLogger("gpu_runtime.access")

READS = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")}
)
_SAID_AS: Mapping[str, str] = MappingProxyType(
    {"operation_id": "operationID", "invocation_id": "invocationID", "name": "object"}
)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(slots=True)
class Entry:
    """A request and what became of it. It is filled in as the request goes on."""

    request_id: str
    method: str
    path: str
    route: str
    caller: str = "unknown"
    about: dict[str, str] = field(default_factory=dict)

    def concerns(self, said: object) -> None:
        """Note what a body or an answer names, so that a search for it finds this line."""
        for attribute, word in _SAID_AS.items():
            if isinstance(name := getattr(said, attribute, None), str) and name:
                self.about[word] = name


class Journal:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests", "Requests, by route and answer", ["route", "method", "code"], registry=registry
        )
        self._seconds = Histogram(
            "http_request_seconds",
            "Time from a request to its answer",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def write(self, entry: Entry, status: int, seconds: float) -> None:
        self._count(entry.route, _METHODS.get(entry.method, "other"), status, seconds)
        if entry.method not in READS:
            audit.info("write", extra=_fields(entry, status, seconds))
        elif access.isEnabledFor(logging.DEBUG):
            access.debug("read", extra=_fields(entry, status, seconds))

    def _count(self, route: str, method: str, status: int, seconds: float) -> None:
        counter = self._counters.get((route, method, status))
        if counter is None:
            counter = self._counters[route, method, status] = self._requests.labels(route, method, str(status))
        counter.inc()
        histogram = self._histograms.get(route)
        if histogram is None:
            histogram = self._histograms[route] = self._seconds.labels(route)
        histogram.observe(seconds)


def _fields(entry: Entry, status: int, seconds: float) -> dict[str, object]:
    return {
        "method": entry.method,
        "route": entry.route,
        "path": entry.path,
        "caller": entry.caller,
        "status": status,
        "requestID": entry.request_id,
        "seconds": round(seconds, 6),
        **entry.about,
    }
