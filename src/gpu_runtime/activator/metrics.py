"""What the activator counts. Who counts `dispatched` of all replicas together sees the plane's throughput."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_LATENCY_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)


class ActivatorMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.dispatched = self._counter("dispatched", "Invocations that were handed to a function's queue")
        self.terminated = self._counter(
            "ended", "Invocations that ended before any worker had them", ["state", "class"]
        )
        self.redeliveries = self._counter("redeliveries", "Deliveries of invocations that had been delivered before")
        self.dead_letters = self._counter("dead_letters", "Invocations that were given up")
        self.dispatch_latency = self._histogram("queue_age_seconds", "Time from acceptance to dispatch")
        self.scaling_decisions = self._counter("decisions", "What the leader decided about workers", ["decision"])
        self.worker_startup = self._histogram(
            "time_to_worker_seconds", "Time from a worker's creation to its first word"
        )
        self.reaped = self._counter("reaped", "Waiting work that the leader ended", ["why"])
        self.workers = Gauge(
            "activator_workers", "Workers by state, as the leader sees them", ["state"], registry=self.registry
        )

    def _counter(self, name: str, about: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"activator_{name}", about, labels or [], registry=self.registry)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"activator_{name}", about, buckets=_LATENCY_BUCKETS_SECONDS, registry=self.registry)
