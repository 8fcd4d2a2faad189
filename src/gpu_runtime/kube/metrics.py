"""What this machinery counts, in Prometheus' terms. Made once per process and handed to whoever counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_RECONCILE_TIME_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class KubeMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.rest_client_requests = Counter(
            "kube_client_requests", "Requests to the API server, by answer", ["method", "code"], registry=self.registry
        )
        self.informer_lists = Counter(
            "kube_informer_lists", "Times a cache was filled anew", ["kind"], registry=self.registry
        )
        self.informer_watches = Counter(
            "kube_informer_watches", "Times a watch was opened", ["kind"], registry=self.registry
        )
        self.informer_objects = Gauge("kube_informer_objects", "Objects in a cache", ["kind"], registry=self.registry)
        self.workqueue_depth = Gauge(
            "kube_queue_depth", "Keys that wait for a worker", ["controller"], registry=self.registry
        )
        self.workqueue_queue_duration = Histogram(
            "kube_queue_wait_seconds",
            "Time from a key's due moment to its worker",
            ["controller"],
            buckets=_RECONCILE_TIME_BUCKETS,
            registry=self.registry,
        )
        self.workqueue_retries = Counter(
            "kube_queue_retries", "Keys put back after a failure", ["controller"], registry=self.registry
        )
        self.reconcile_total = Counter(
            "kube_reconciles", "Reconciliations, by result", ["controller", "result"], registry=self.registry
        )
        self.reconcile_time = Histogram(
            "kube_reconcile_seconds",
            "Time that one reconciliation took",
            ["controller"],
            buckets=_RECONCILE_TIME_BUCKETS,
            registry=self.registry,
        )
        self.active_workers = Gauge(
            "kube_workers_busy", "Workers that are reconciling", ["controller"], registry=self.registry
        )
        self.leader_election_master_status = Gauge(
            "kube_leading", "1 while this process leads", ["lease"], registry=self.registry
        )
        self.recorded_events = Counter(
            "kube_events", "Kubernetes Events, by what became of them", ["result"], registry=self.registry
        )
