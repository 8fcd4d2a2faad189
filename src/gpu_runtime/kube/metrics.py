"""Prometheus metrics of the Kubernetes client, informers, workqueues, controllers, leader election and Events.

Names, labels, label values, buckets and meanings are those of client-go and controller-runtime, so dashboards and
alerts for Go controllers work unchanged. Metrics that neither of them has start with `gpu_runtime_`. A process creates
one `KubeMetrics` and passes it to the objects that update the metrics.
"""

from dataclasses import dataclass, fields
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_WORKQUEUE_LABELS = ("name", "controller")
"""Both labels contain the name of the controller, as in controller-runtime."""
_WORKQUEUE_DURATION_BUCKETS = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 0.001, 0.01, 0.1, 1, 10, 100, 1000)
# fmt: off
_RECONCILE_TIME_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.25, 1.5, 1.75,
    2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9, 10, 15, 20, 25, 30, 40, 50, 60,
)
# fmt: on


@dataclass(frozen=True)
class WorkQueueMetrics:
    """The metrics of one work queue."""

    depth: Gauge
    adds: Counter
    queue_duration: Histogram
    work_duration: Histogram
    unfinished_work: Gauge
    longest_running_processor: Gauge
    retries: Counter


class KubeMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)

        self.rest_client_requests = counter(
            "rest_client_requests_total",
            "Number of HTTP requests to the Kubernetes API server by status code, method and host. If a request gets no"
            " response, its code is `<error>`.",
            ["code", "method", "host"],
        )
        self.reflector_lists = counter(
            "reflector_lists_total", "Number of list requests that the informers sent", ["name"]
        )
        self.reflector_watches = counter(
            "reflector_watches_total", "Number of watch requests that the informers sent", ["name"]
        )
        self.informer_objects = gauge(
            "gpu_runtime_informer_objects", "Number of objects in the caches of the informers, by kind", ["kind"]
        )
        self.leader_election_master_status = gauge(
            "leader_election_master_status",
            "1 if this replica is the leader, 0 if it is not. The label `name` is the name of the Lease.",
            ["name"],
        )
        self.recorded_events = counter(
            "gpu_runtime_kubernetes_events_total",
            "Number of Kubernetes Events by result: written, failed (the write failed) or dropped (the process"
            " did not write the Event, because a rate limit was reached)",
            ["result"],
        )

        self._workqueue = WorkQueueMetrics(
            depth=gauge("workqueue_depth", "Number of keys that wait in the work queue", _WORKQUEUE_LABELS),
            adds=counter("workqueue_adds_total", "Number of keys that were added to the work queue", _WORKQUEUE_LABELS),
            queue_duration=histogram(
                "workqueue_queue_duration_seconds",
                "Time in seconds that a key waits in the work queue before its reconciliation starts",
                _WORKQUEUE_LABELS,
                buckets=_WORKQUEUE_DURATION_BUCKETS,
            ),
            work_duration=histogram(
                "workqueue_work_duration_seconds",
                "Time in seconds that the reconciliation of a key takes",
                _WORKQUEUE_LABELS,
                buckets=_WORKQUEUE_DURATION_BUCKETS,
            ),
            unfinished_work=gauge(
                "workqueue_unfinished_work_seconds",
                "Sum of the durations of all running reconciliations in seconds. A large value means that some"
                " reconciliations are stuck.",
                _WORKQUEUE_LABELS,
            ),
            longest_running_processor=gauge(
                "workqueue_longest_running_processor_seconds",
                "Duration in seconds of the reconciliation that has been running for the longest time",
                _WORKQUEUE_LABELS,
            ),
            retries=counter(
                "workqueue_retries_total",
                "Number of keys that were added to the work queue with a delay, either after a failed reconciliation or"
                " because the reconciliation requested a requeue",
                _WORKQUEUE_LABELS,
            ),
        )

        self.reconcile_total = counter(
            "controller_runtime_reconcile_total",
            "Number of reconciliations by controller and result: success, error, requeue or requeue_after",
            ["controller", "result"],
        )
        self.reconcile_errors = counter(
            "controller_runtime_reconcile_errors_total",
            "Number of reconciliations that failed, by controller. The number includes timeouts and panics"
            " (unexpected exceptions).",
            ["controller"],
        )
        self.reconcile_timeouts = counter(
            "controller_runtime_reconcile_timeouts_total",
            "Number of reconciliations that reached the reconcile timeout, by controller",
            ["controller"],
        )
        self.reconcile_panics = counter(
            "controller_runtime_reconcile_panics_total",
            "Number of reconciliations that raised an unexpected exception, by controller",
            ["controller"],
        )
        self.reconcile_time = histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconciliation in seconds, by controller",
            ["controller"],
            buckets=_RECONCILE_TIME_BUCKETS,
        )
        self.max_concurrent_reconciles = gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciliations, by controller",
            ["controller"],
        )
        self.active_workers = gauge(
            "controller_runtime_active_workers",
            "Number of reconciliations that are running now, by controller",
            ["controller"],
        )

    def of_workqueue(self, name: str) -> WorkQueueMetrics:
        """Return the metrics of the work queue of a controller. Each series starts at 0."""
        return WorkQueueMetrics(
            *(getattr(self._workqueue, each.name).labels(name, name) for each in fields(WorkQueueMetrics))
        )
