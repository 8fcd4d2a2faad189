"""Prometheus metrics of the activator.

The sum of `gpu_runtime_invocations_dispatched_total` over all replicas is the total number of dispatched
invocations.
"""

from enum import StrEnum
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_runtime.contract.messages.subjects import Stream

_LATENCY_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)


class TerminationStage(StrEnum):
    """Stage in which the activator ended an invocation. Label `stage` of gpu_runtime_invocations_terminated_total."""

    QUEUED = "queued"
    """The message was in the INVOKE stream. The dispatcher ended the invocation."""
    DISPATCHED = "dispatched"
    """The message was in the DISPATCH stream. The reaper ended the invocation."""


class ActivatorMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.dispatched = counter(
            "gpu_runtime_invocations_dispatched",
            "Number of invocations that this replica published to the DISPATCH stream",
        )
        self.terminated = counter(
            "gpu_runtime_invocations_terminated",
            "Number of invocations that the activator ended without a worker. The labels `state` and `failure_class`"
            " are the state and the failure class of the result. The label `stage` is `queued` (the message was in the"
            " INVOKE stream) or `dispatched` (the message was in the DISPATCH stream).",
            ["state", "failure_class", "stage"],
        )
        self.redeliveries = counter(
            "gpu_runtime_message_redeliveries",
            "Number of redeliveries that this process received, by stream",
            ["stream"],
        )
        self.redeliveries.labels(Stream.INVOKE.name)
        self.ignored_messages = counter(
            "gpu_runtime_messages_ignored",
            "Number of messages that this process ignored because they have no valid ticket, by stream",
            ["stream"],
        )
        for stream in (Stream.INVOKE, Stream.DISPATCH):  # start at 0, so that increase() sees the first message
            self.ignored_messages.labels(stream.name)
        self.dead_letters = counter(
            "gpu_runtime_dead_letters", "Number of messages that the activator dead-lettered, by stream", ["stream"]
        )
        for stream in (Stream.INVOKE, Stream.DISPATCH):  # start at 0, so that increase() sees the first dead letter
            self.dead_letters.labels(stream.name)
        self.dispatch_latency = histogram(
            "gpu_runtime_dispatch_latency_seconds",
            "Time in seconds from the acceptance of an invocation to its dispatch",
            buckets=_LATENCY_BUCKETS_SECONDS,
        )
        self.scaling_decisions = counter(
            "gpu_runtime_scaling_decisions",
            "Number of scaling decisions of the leader, by decision: create, drain, retire, start or stop",
            ["decision"],
        )
        self.worker_startup = histogram(
            "gpu_runtime_worker_startup_seconds",
            "Time in seconds from the creation of a worker to its first event",
            buckets=_LATENCY_BUCKETS_SECONDS,
        )
        self.workers = gauge(
            "gpu_runtime_workers",
            "Number of workers that the leader observes, by state: starting, serving, draining, unhealthy, retiring or"
            " terminating",
            ["state"],
        )
