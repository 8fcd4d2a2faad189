"""A worker drains itself in a loop. Each replacement leaves Operations, which count against the limits of others."""

from gpu_runtime.activator.autoscaler import Worker, WorkerState
from gpu_runtime.activator.worker_backoff import WorkerBackoff
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, Serverless
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import ObjectKey, ObjectMeta

FUNCTION = ObjectKey("units", "f")


def worker_unit(number: int) -> GPUUnit:
    metadata = ObjectMeta(namespace="units", name="f-w0", uid=f"uid-{number}")
    return GPUUnit(metadata=metadata, spec=GPUUnitSpec(spec_name="g1.1", serverless=Serverless(worker_of="f")))


class DrainLoop:
    """Replaces a worker as the activator does. Every worker serves for a short time and then drains itself."""

    def __init__(self) -> None:
        self.now, self.created = 0.0, 0
        self.liveness = WorkerLiveness(lambda: self.now)
        self.backoff = WorkerBackoff(Backoff(initial_seconds=5, max_seconds=300, jitter=0))

    def run(self, until: float, serving_seconds: float, *, requested: bool = False) -> None:
        while self.now < until:
            self.now += 1
            if not self.backoff.allows_create(FUNCTION, self.now):
                self.backoff.observe(FUNCTION, [], self.liveness, self.now)
                continue
            self.created += 1
            unit = worker_unit(self.created)
            self._observe(unit, WorkerEventKind.REGISTERED, WorkerState.SERVING)
            self.now += serving_seconds
            self.backoff.observe(FUNCTION, [Worker(unit, WorkerState.SERVING)], self.liveness, self.now)
            if requested:
                self.backoff.record_drain_request(unit)
            self._observe(unit, WorkerEventKind.DRAINING, WorkerState.DRAINING)
            self.liveness.remove(unit.metadata.key)

    def _observe(self, unit: GPUUnit, kind: WorkerEventKind, state: WorkerState) -> None:
        event = WorkerEvent(
            kind=kind,
            function_id="f",
            unit="f-w0",
            namespace="units",
            pod_uid=f"pod-{self.created}",
            sequence=int(self.now) + 1,
            in_flight=0,
            concurrency=1,
            heartbeat_seconds=5,
        )
        self.liveness.observe(event)
        self.backoff.observe(FUNCTION, [Worker(unit, state)], self.liveness, self.now)


def test_worker_that_drains_itself_is_replaced_after_a_growing_backoff() -> None:
    loop = DrainLoop()
    loop.run(until=3600, serving_seconds=1)
    assert loop.created <= 20


def test_drain_that_the_activator_requested_causes_no_backoff() -> None:
    loop = DrainLoop()
    loop.run(until=100, serving_seconds=1, requested=True)
    assert loop.created >= 40


def test_worker_that_drains_after_a_minute_causes_no_backoff() -> None:
    """The drain of a node ends workers that have served for a long time. Their replacements start immediately."""
    loop = DrainLoop()
    loop.run(until=3600, serving_seconds=70)
    assert loop.created >= 45
