"""Prometheus metrics of invocation requests. They have no function label, because thousands of functions may exist."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_WAIT_BUCKETS_SECONDS = (0.002, 0.004, 0.007, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class InvocationMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.invocations = Counter(
            "gpu_runtime_invocation_requests",
            "Number of invocation requests by mode (sync or async) and by outcome: accepted, replayed, or the error"
            " code of a rejection",
            ["mode", "outcome"],
            registry=registry,
        )
        self.record_bytes = Gauge(
            "gpu_runtime_invocation_record_bytes",
            "Size of the bucket of invocation records in bytes. The process reads it for new invocations, at most once"
            " a second",
            registry=registry,
        )
        self.record_limit = Gauge(
            "gpu_runtime_invocation_record_limit_bytes",
            "Maximum size of the bucket of invocation records in bytes, from the setting nats.streams.maxRecordBytes",
            registry=registry,
        )
        self.over_share = Counter(
            "gpu_runtime_invocations_over_share",
            "Number of invocations that the API rejected because their function has used its share. The label `share`"
            " is `queue` (the messages of waiting invocations) or `records` (the bucket of invocation records)",
            ["share"],
            registry=registry,
        )
        for share in ("queue", "records"):  # with value 0, so that increase() sees the first rejection
            self.over_share.labels(share)
        self.sync_wait = Histogram(
            "gpu_runtime_invocation_sync_wait_seconds",
            "Time in seconds that a synchronous caller waited for a result, by outcome: answered (the result"
            " arrived) or timed_out",
            ["outcome"],
            buckets=_WAIT_BUCKETS_SECONDS,
            registry=registry,
        )
