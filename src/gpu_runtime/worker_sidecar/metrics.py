"""Prometheus metrics of the worker sidecar."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_CALL_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class SidecarMetrics:
    """Creates the metrics in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.invocations = Counter(
            "gpu_runtime_worker_invocations",
            "Number of deliveries of invocations by outcome: retried (the worker requested a redelivery), skipped (the"
            " invocation already had a result), or the state of the result",
            ["outcome"],
            registry=registry,
        )
        self.redeliveries = Counter(
            "gpu_runtime_message_redeliveries",
            "Number of redeliveries that this process received, by stream",
            ["stream"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "gpu_runtime_worker_invocations_in_flight",
            "Number of invocations that the worker is running",
            registry=registry,
        )
        self.call_duration_seconds = Histogram(
            "gpu_runtime_framework_call_duration_seconds",
            "Duration of a call to the framework in seconds",
            registry=registry,
            buckets=_CALL_BUCKETS_SECONDS,
        )
