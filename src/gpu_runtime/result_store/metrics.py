"""What the result store counts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ResultStoreMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.stored = Counter(
            "result_store_results_stored", "Results stored, by how they ended", ["state"], registry=registry
        )
        self.duplicates = Counter(
            "result_store_duplicates", "Results whose invocation had one already", registry=registry
        )
        self.invalid_messages = Counter(
            "result_store_unreadable", "Messages that are no result, now dead letters", registry=registry
        )
        self.batch_results = Histogram(
            "result_store_batch_results", "Results in one transaction", buckets=_BATCH_SIZE_BUCKETS, registry=registry
        )
        self.batch_duration = Histogram(
            "result_store_batch_seconds",
            "Time of one transaction, to the disk",
            buckets=_DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self.batch_failures = Counter(
            "result_store_batch_failures", "Transactions that failed and are tried again", registry=registry
        )
        self.results = Gauge("result_store_results", "Results in the database", registry=registry)
        self.database_bytes = Gauge(
            "result_store_database_bytes", "What the results need in the database", registry=registry
        )
        self.database_limit = Gauge(
            "result_store_database_limit_bytes", "What they may need: retention.bytes", registry=registry
        )
        self.evicted = Counter(
            "result_store_forgotten",
            "Results forgotten: after their time (expired), or before it for want of room (crowded_out)",
            ["why"],
            registry=registry,
        )
        self.queries = Counter("result_store_look_ups", "Questions answered", ["question", "answer"], registry=registry)
