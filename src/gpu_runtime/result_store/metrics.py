"""Prometheus metrics of the result store."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ResultStoreMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.stored = Counter(
            "gpu_runtime_results_stored",
            "Number of stored results, by state of the result",
            ["state"],
            registry=registry,
        )
        self.duplicates = Counter(
            "gpu_runtime_results_duplicate",
            "Number of results that were not stored, because the invocation already has a result",
            registry=registry,
        )
        self.invalid_messages = Counter(
            "gpu_runtime_results_invalid",
            "Number of messages of the RESULT stream that were dead-lettered, because they are not valid results",
            registry=registry,
        )
        self.batch_results = Histogram(
            "gpu_runtime_result_batch_size",
            "Number of results in one database transaction",
            buckets=_BATCH_SIZE_BUCKETS,
            registry=registry,
        )
        self.batch_duration = Histogram(
            "gpu_runtime_result_batch_duration_seconds",
            "Duration of one database transaction in seconds, including the fsync",
            buckets=_DURATION_BUCKETS_SECONDS,
            registry=registry,
        )
        self.batch_failures = Counter(
            "gpu_runtime_result_batch_failures",
            "Number of database transactions that failed. Each is retried.",
            registry=registry,
        )
        self.results = Gauge("gpu_runtime_results", "Number of results in the database", registry=registry)
        self.database_bytes = Gauge(
            "gpu_runtime_result_database_bytes",
            "Size of the results in the database in bytes, with indexes and without free pages",
            registry=registry,
        )
        self.database_limit = Gauge(
            "gpu_runtime_result_database_limit_bytes",
            "Maximum size of the results in bytes, from the setting retention.maxBytes",
            registry=registry,
        )
        self.evicted = Counter(
            "gpu_runtime_results_evicted",
            "Number of evicted results, by reason: ttl (older than retention.maxAgeSeconds) or size (larger than"
            " retention.maxBytes)",
            ["reason"],
            registry=registry,
        )
        for reason in ("ttl", "size"):  # with value 0, so that increase() sees the first eviction
            self.evicted.labels(reason)
        self.queries = Counter(
            "gpu_runtime_result_queries",
            "Number of result queries by query (result or results) and result: found, not_found or invalid",
            ["query", "result"],
            registry=registry,
        )
