"""Prometheus metrics of invocation requests. They have no function label, because thousands of functions may exist."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Histogram

from gpu_runtime.contract.errors import RuntimeFault, SyncTimeout
from gpu_runtime.contract.messages.invocation import InvocationMode
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.process.nats_setup import fault_from_nats_error

_WAIT_BUCKETS_SECONDS = (0.002, 0.004, 0.007, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ACCEPTED, REPLAYED, TIMED_OUT = "accepted", "replayed", "timed_out"


class InvocationMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.invocations = Counter(
            "gpu_runtime_invocation_requests",
            "Number of invocation requests by mode and outcome: accepted, replayed, or the error code of a rejection",
            ["mode", "outcome"],
            registry=registry,
        )
        self._sync_wait = Histogram(
            "gpu_runtime_invocation_sync_wait_seconds",
            "Time in seconds that a synchronous caller waited for a result, by outcome: answered or timed_out",
            ["outcome"],
            buckets=_WAIT_BUCKETS_SECONDS,
            registry=registry,
        )

    @contextmanager
    def count_rejections(self, mode: InvocationMode) -> Iterator[None]:
        """Count requests that the block rejects. SyncTimeout is not a rejection: the invocation was accepted."""
        try:
            yield
        except (RuntimeFault, JetStreamError) as error:
            fault = error if isinstance(error, RuntimeFault) else fault_from_nats_error(error)
            if not isinstance(fault, SyncTimeout):
                self.invocations.labels(mode, fault.code).inc()
            raise

    def count_accepted(self, mode: InvocationMode, *, new: bool) -> None:
        self.invocations.labels(mode, ACCEPTED if new else REPLAYED).inc()

    def observe_sync_wait(self, seconds: float, *, answered: bool) -> None:
        self._sync_wait.labels("answered" if answered else TIMED_OUT).observe(seconds)
