"""Prometheus metrics of the activator.

The sum of `gpu_runtime_invocations_dispatched_total` over all replicas is the throughput of the serverless plane.
"""

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_runtime.contract.messages.subjects import Stream

_LATENCY_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)


class TerminationStage(StrEnum):
    """From which stream the activator ended an invocation. Label `stage` of the terminated counter."""

    QUEUED = "queued"
    """The dispatcher ended it from the INVOKE stream."""
    DISPATCHED = "dispatched"
    """The reaper ended it from the DISPATCH stream."""


class ActivatorMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.dispatched = Counter(
            "gpu_runtime_invocations_dispatched",
            "Invocations published to the DISPATCH stream",
            registry=self.registry,
        )
        self.terminated = Counter(
            "gpu_runtime_invocations_terminated",
            "Invocations that the activator ended without a result of a worker",
            ["state", "failure_class", "stage"],
            registry=self.registry,
        )
        self.redeliveries = Counter(
            "gpu_runtime_message_redeliveries",
            "Deliveries of messages that JetStream had delivered before",
            ["stream"],
            registry=self.registry,
        )
        self.redeliveries.labels(Stream.INVOKE.name)
        self.dead_letters = Counter(
            "gpu_runtime_dead_letters",
            "Messages that were dead-lettered",
            ["stream"],
            registry=self.registry,
        )
        for stream in (Stream.INVOKE, Stream.DISPATCH):  # with value 0, so that increase() sees the first dead letter
            self.dead_letters.labels(stream.name)
        self.dispatch_latency = Histogram(
            "gpu_runtime_dispatch_latency_seconds",
            "Time from the acceptance of an invocation to its dispatch",
            buckets=_LATENCY_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.scaling_decisions = Counter(
            "gpu_runtime_scaling_decisions",
            "Scaling decisions of the leader",
            ["decision"],
            registry=self.registry,
        )
        self.worker_startup = Histogram(
            "gpu_runtime_worker_startup_seconds",
            "Time from the creation of a worker to its first event",
            buckets=_LATENCY_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.workers = Gauge(
            "gpu_runtime_workers",
            "Workers by state, as the leader observes them",
            ["state"],
            registry=self.registry,
        )
