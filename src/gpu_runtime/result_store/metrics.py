"""Prometheus metrics of the result store."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gpu_runtime.contract.messages.subjects import Stream

_DURATION_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_BATCH_SIZE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ResultStoreMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.stored = counter(
            "gpu_runtime_results_stored", "Number of stored results, by state of the result", ["state"]
        )
        self.duplicates = counter(
            "gpu_runtime_results_duplicate",
            "Number of results that the result store ignored, because the invocation already had a result",
        )
        self.invalid_messages = counter(
            "gpu_runtime_results_invalid",
            "Number of messages of the RESULT stream that the result store dead-lettered, because they are not valid"
            " results",
        )
        self.ignored_messages = counter(
            "gpu_runtime_messages_ignored",
            "Number of messages that this process ignored because they have no valid ticket, by stream",
            ["stream"],
        )
        self.ignored_messages.labels(Stream.RESULT.name)  # start at 0, so that increase() sees the first message
        self.batch_results = histogram(
            "gpu_runtime_result_batch_size",
            "Number of results in one database transaction",
            buckets=_BATCH_SIZE_BUCKETS,
        )
        self.batch_duration = histogram(
            "gpu_runtime_result_batch_duration_seconds",
            "Duration of one database transaction in seconds, including the fsync",
            buckets=_DURATION_BUCKETS_SECONDS,
        )
        self.batch_failures = counter(
            "gpu_runtime_result_batch_failures",
            "Number of database transactions that failed. The result store retries each of them.",
        )
        self.results = gauge("gpu_runtime_results", "Number of results in the database")
        self.database_bytes = gauge(
            "gpu_runtime_result_database_bytes",
            "Size of the results in the database in bytes, with indexes and without free pages",
        )
        self.database_limit = gauge(
            "gpu_runtime_result_database_limit_bytes",
            "Maximum size of the results in bytes, from the setting retention.maxBytes",
        )
        self.evicted = counter(
            "gpu_runtime_results_evicted",
            "Number of evicted results, by reason: ttl (the result was older than retention.maxAgeSeconds) or size (the"
            " results together exceeded retention.maxBytes)",
            ["reason"],
        )
        for reason in ("ttl", "size"):  # with value 0, so that increase() sees the first eviction
            self.evicted.labels(reason)
        self.queries = counter(
            "gpu_runtime_result_queries",
            "Number of queries to the result store. The label `query` is `result` (a query for one result), `results`"
            " (a query for a page of results) or `result-count` (a query for the number of results). The label `result`"
            " is `found`, `not_found` or `invalid`.",
            ["query", "result"],
        )
