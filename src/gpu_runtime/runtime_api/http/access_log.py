"""The access log, the audit log and the metrics of HTTP requests.

Every write, and every read of payloads, results and dead letters, is logged to the audit log with level info. Every
other read is logged to the access log with level debug. Metrics count all requests by route.

A request without a valid token or without the scope costs at most one short audit line, and there is a rate limit for
these lines. Otherwise such requests could fill the disk and hide the other lines.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.process.rate_limit import CallerRateLimiter

audit_logger = logging.getLogger("gpu_runtime.audit")
access_logger = logging.getLogger("gpu_runtime.access")

UNKNOWN_CALLER = "unknown"
"""The caller of a request that has not been authenticated."""
DENIED_LINES_PER_SECOND = 1.0
DENIED_LINES_BURST = 20
"""The limits of the audit lines of denied requests, for each caller. All unknown callers share one limit."""
MAX_LOGGED_PATH_LENGTH = 512
MAX_LOGGED_METHOD_LENGTH = 16
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_LOGGED_ID_CHARACTERS = 256
"""No valid ID is longer. An invalid ID may be as long as the body."""
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
    caller: str = UNKNOWN_CALLER
    is_audited_read: bool = False
    """Whether the request is audited although it only reads."""
    logged_ids: dict[str, str] = field(default_factory=dict)

    def note_ids(self, message: object) -> None:
        """Record the IDs and names in a request body or a response, so that a search for them finds the log line."""
        for attribute, log_field in _LOGGED_IDS.items():
            if isinstance(value := getattr(message, attribute, None), str) and value:
                self.logged_ids[log_field] = value[:MAX_LOGGED_ID_CHARACTERS]

    @property
    def log_fields(self) -> dict[str, object]:
        return {
            "method": self.method[:MAX_LOGGED_METHOD_LENGTH],
            "route": self.route,
            "path": self.path[:MAX_LOGGED_PATH_LENGTH],
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
        self._suppressed_audit_lines = Counter(
            "gpu_runtime_audit_lines_suppressed",
            "Number of audit lines that were not written, because too many requests had no valid token or no scope",
            registry=registry,
        )
        self._denied_lines = CallerRateLimiter(DENIED_LINES_PER_SECOND, DENIED_LINES_BURST)
        self._counters: dict[tuple[str, str, int], Counter] = {}
        self._histograms: dict[str, Histogram] = {}

    def log(self, entry: AccessRecord, status: int, seconds: float) -> None:
        self._observe(entry.route, entry.method if entry.method in _METRIC_METHODS else "other", status, seconds)
        if entry.is_audited_read or entry.method not in READ_METHODS:
            if self._may_write_audit_line(entry, status):
                audit_logger.info("HTTP request completed", extra=_log_fields(entry, status, seconds))
        elif access_logger.isEnabledFor(logging.DEBUG):
            access_logger.debug("HTTP request completed", extra=_log_fields(entry, status, seconds))

    def _may_write_audit_line(self, entry: AccessRecord, status: int) -> bool:
        if entry.caller != UNKNOWN_CALLER and status != HTTPStatus.FORBIDDEN:
            return True
        try:
            self._denied_lines.admit(entry.caller, time.monotonic())
        except Overloaded:
            self._suppressed_audit_lines.inc()
            return False
        return True

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
