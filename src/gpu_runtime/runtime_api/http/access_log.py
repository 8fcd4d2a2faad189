"""The access log, the audit log and the metrics of HTTP requests.

Every write is logged to the audit log with level info. Every read is logged to the access log with level debug. Metrics
count all requests by route.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram

audit_logger = logging.getLogger("gpu_runtime.audit")
access_logger = logging.getLogger("gpu_runtime.access")

READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_METRIC_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_LOGGED_IDS: Mapping[str, str] = MappingProxyType(
    {"operation_id": "operation_id", "invocation_id": "invocation_id", "name": "object_name"}
)
"""The attributes of request bodies and responses that are logged, with their log fields."""
_DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


@dataclass(slots=True)
class AccessRecord:
    """The log fields of one request. The HTTP edge sets them while it processes the request."""

    http_request_id: str
    method: str
    path: str
    route: str
    caller: str = "unknown"
    logged_ids: dict[str, str] = field(default_factory=dict)

    def note_ids(self, message: object) -> None:
        """Record the IDs and names in a request body or a response, so that a search for them finds the log line."""
        for attribute, log_field in _LOGGED_IDS.items():
            if isinstance(value := getattr(message, attribute, None), str) and value:
                self.logged_ids[log_field] = value

    @property
    def log_fields(self) -> dict[str, object]:
        return {
            "method": self.method,
            "route": self.route,
            "path": self.path,
            "caller": self.caller,
            "http_request_id": self.http_request_id,
            **self.logged_ids,
        }


class AccessLog:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "gpu_runtime_http_requests",
            "Number of HTTP requests by route, method and status code",
            ["route", "method", "code"],
            registry=registry,
        )
        self._duration = Histogram(
            "gpu_runtime_http_request_duration_seconds",
            "Time in seconds from the start of an HTTP request to its response, by route",
            ["route"],
            buckets=_DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def log(self, entry: AccessRecord, status: int, seconds: float) -> None:
        self._observe(entry.route, entry.method if entry.method in _METRIC_METHODS else "other", status, seconds)
        if entry.method not in READ_METHODS:
            audit_logger.info("HTTP request completed", extra=_log_fields(entry, status, seconds))
        elif access_logger.isEnabledFor(logging.DEBUG):
            access_logger.debug("HTTP request completed", extra=_log_fields(entry, status, seconds))

    def _observe(self, route: str, method: str, status: int, seconds: float) -> None:
        counter = self._counters.get((route, method, status))
        if counter is None:
            counter = self._counters[route, method, status] = self._requests.labels(route, method, str(status))
        counter.inc()
        histogram = self._histograms.get(route)
        if histogram is None:
            histogram = self._histograms[route] = self._duration.labels(route)
        histogram.observe(seconds)


def _log_fields(entry: AccessRecord, status: int, seconds: float) -> dict[str, object]:
    return {**entry.log_fields, "status": status, "duration_seconds": round(seconds, 6)}
