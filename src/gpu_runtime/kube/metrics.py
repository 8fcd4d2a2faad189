"""Prometheus metrics of the Kubernetes client, informers, workqueues, controllers, leader election and Events.

Names, labels, label values, buckets and meanings are those of client-go and controller-runtime, so dashboards and
alerts for Go controllers work unchanged. Metrics that neither of them has start with `gpu_runtime_`. A process creates
one `KubeMetrics` and passes it to the objects that update the metrics.
"""

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


class KubeMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._add_client_metrics(self.registry)
        self._add_workqueue_metrics(self.registry)
        self._add_controller_metrics(self.registry)

    def _add_client_metrics(self, registry: CollectorRegistry) -> None:
        self.rest_client_requests = Counter(
            "rest_client_requests_total",
            "Number of HTTP requests by status code, method and host. Without a response, the code is `<error>`.",
            ["code", "method", "host"],
            registry=registry,
        )
        self.reflector_lists = Counter(
            "reflector_lists_total", "Number of list requests that the informers sent", ["name"], registry=registry
        )
        self.reflector_watches = Counter(
            "reflector_watches_total", "Number of watch requests that the informers sent", ["name"], registry=registry
        )
        self.informer_objects = Gauge(
            "gpu_runtime_informer_objects",
            "Number of objects in the informer's cache, by kind",
            ["kind"],
            registry=registry,
        )
        self.leader_election_master_status = Gauge(
            "leader_election_master_status",
            "1 if this replica is the leader, 0 if it is not. The label `name` is the name of the Lease.",
            ["name"],
            registry=registry,
        )
        self.recorded_events = Counter(
            "gpu_runtime_kubernetes_events_total",
            "Number of Kubernetes Events by result: written, failed (the write failed) or dropped (rate limit)",
            ["result"],
            registry=registry,
        )

    def _add_workqueue_metrics(self, registry: CollectorRegistry) -> None:
        self.workqueue_depth = Gauge(
            "workqueue_depth", "Number of keys that wait in the work queue", _WORKQUEUE_LABELS, registry=registry
        )
        self.workqueue_adds = Counter(
            "workqueue_adds_total",
            "Number of keys that were added to the work queue",
            _WORKQUEUE_LABELS,
            registry=registry,
        )
        self.workqueue_queue_duration = Histogram(
            "workqueue_queue_duration_seconds",
            "Time in seconds that a key waits in the work queue before its reconciliation starts",
            _WORKQUEUE_LABELS,
            buckets=_WORKQUEUE_DURATION_BUCKETS,
            registry=registry,
        )
        self.workqueue_work_duration = Histogram(
            "workqueue_work_duration_seconds",
            "Time in seconds that the reconciliation of a key takes",
            _WORKQUEUE_LABELS,
            buckets=_WORKQUEUE_DURATION_BUCKETS,
            registry=registry,
        )
        self.workqueue_unfinished_work = Gauge(
            "workqueue_unfinished_work_seconds",
            "Sum of the durations of all running reconciliations in seconds. A large value means that some are stuck.",
            _WORKQUEUE_LABELS,
            registry=registry,
        )
        self.workqueue_longest_running_processor = Gauge(
            "workqueue_longest_running_processor_seconds",
            "Duration in seconds of the reconciliation that has been running for the longest time",
            _WORKQUEUE_LABELS,
            registry=registry,
        )
        self.workqueue_retries = Counter(
            "workqueue_retries_total",
            "Number of keys that were added to the work queue with a delay, after a failure or for a later requeue",
            _WORKQUEUE_LABELS,
            registry=registry,
        )

    def _add_controller_metrics(self, registry: CollectorRegistry) -> None:
        self.reconcile_total = Counter(
            "controller_runtime_reconcile_total",
            "Number of reconciliations by controller and result: success, error, requeue or requeue_after",
            ["controller", "result"],
            registry=registry,
        )
        self.reconcile_errors = Counter(
            "controller_runtime_reconcile_errors_total",
            "Number of reconciliations that failed, by controller. It includes timeouts and panics.",
            ["controller"],
            registry=registry,
        )
        self.reconcile_timeouts = Counter(
            "controller_runtime_reconcile_timeouts_total",
            "Number of reconciliations that reached the reconcile timeout, by controller",
            ["controller"],
            registry=registry,
        )
        self.reconcile_panics = Counter(
            "controller_runtime_reconcile_panics_total",
            "Number of reconciliations that raised an unexpected exception, by controller",
            ["controller"],
            registry=registry,
        )
        self.reconcile_time = Histogram(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconciliation in seconds, by controller",
            ["controller"],
            buckets=_RECONCILE_TIME_BUCKETS,
            registry=registry,
        )
        self.max_concurrent_reconciles = Gauge(
            "controller_runtime_max_concurrent_reconciles",
            "Maximum number of concurrent reconciliations, by controller",
            ["controller"],
            registry=registry,
        )
        self.active_workers = Gauge(
            "controller_runtime_active_workers",
            "Number of reconciliations that are running now, by controller",
            ["controller"],
            registry=registry,
        )
