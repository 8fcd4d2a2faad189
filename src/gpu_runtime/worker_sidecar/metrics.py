"""What the sidecar counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

CALL_DURATION_BUCKETS_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
    60,
    300,
    1800,
)


class SidecarMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.invocations = Counter(
            "gpu_runtime_worker_invocations",
            "Invocations by what came of them: a state of their result, retried or dropped",
            ["outcome"],
            registry=registry,
        )
        self.redeliveries = Counter(
            "gpu_runtime_worker_redeliveries", "Invocations that came for a second or later time", registry=registry
        )
        self.in_flight = Gauge("gpu_runtime_worker_in_flight", "Invocations in hand", registry=registry)
        self.call_duration_seconds = Histogram(
            "gpu_runtime_worker_call_seconds",
            "How long the framework took for a call",
            registry=registry,
            buckets=CALL_DURATION_BUCKETS_SECONDS,
        )
