"""The metrics have the names, labels, types and buckets of client-go and controller-runtime, and the same meaning.

The tests of the transport, the workqueue and the controller cover the metrics of these.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics import MetricWrapperBase

from gpu_runtime.kube.builtin_kinds import LEASES, Lease
from gpu_runtime.kube.codec import ListPage, ObjectApplied, ObjectDeleted, WatchEvent
from gpu_runtime.kube.election import LeaderElector
from gpu_runtime.kube.errors import ApiStatus, KubeNotFound, KubeServerError
from gpu_runtime.kube.event_recorder import EventLimits, EventRecorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey, ObjectMeta
from gpu_runtime.kube.metrics import KubeMetrics
from tests.kube_kinds import NODES, Node
from tests.unit.kube.fake_time import on_fake_time

WORKQUEUE = ("name", "controller")
METRICS = {
    "rest_client_requests_total": ("counter", ("code", "method", "host")),
    "reflector_lists_total": ("counter", ("name",)),
    "reflector_watches_total": ("counter", ("name",)),
    "gpu_runtime_informer_objects": ("gauge", ("kind",)),
    "leader_election_master_status": ("gauge", ("name",)),
    "gpu_runtime_kubernetes_events_total": ("counter", ("result",)),
    "workqueue_depth": ("gauge", WORKQUEUE),
    "workqueue_adds_total": ("counter", WORKQUEUE),
    "workqueue_queue_duration_seconds": ("histogram", WORKQUEUE),
    "workqueue_work_duration_seconds": ("histogram", WORKQUEUE),
    "workqueue_unfinished_work_seconds": ("gauge", WORKQUEUE),
    "workqueue_longest_running_processor_seconds": ("gauge", WORKQUEUE),
    "workqueue_retries_total": ("counter", WORKQUEUE),
    "controller_runtime_reconcile_total": ("counter", ("controller", "result")),
    "controller_runtime_reconcile_errors_total": ("counter", ("controller",)),
    "controller_runtime_reconcile_timeouts_total": ("counter", ("controller",)),
    "controller_runtime_reconcile_panics_total": ("counter", ("controller",)),
    "controller_runtime_reconcile_time_seconds": ("histogram", ("controller",)),
    "controller_runtime_max_concurrent_reconciles": ("gauge", ("controller",)),
    "controller_runtime_active_workers": ("gauge", ("controller",)),
}


class RecordingRegistry(CollectorRegistry):
    """A registry that remembers the metrics: one with labels has no samples before its first use."""

    def __init__(self) -> None:
        super().__init__()
        self.metrics: list[MetricWrapperBase] = []

    def register(self, collector: Any) -> None:
        super().register(collector)
        self.metrics.append(collector)


def test_metrics_have_the_names_types_and_labels_of_client_go() -> None:
    registry = RecordingRegistry()
    KubeMetrics(registry)
    found = {}
    for metric in registry.metrics:
        (family,) = metric.describe()
        suffix = "_total" if family.type == "counter" else ""
        found[f"{family.name}{suffix}"] = (family.type, tuple(metric._labelnames))
    assert found == METRICS


def test_histograms_have_the_buckets_of_client_go_and_controller_runtime() -> None:
    metrics = KubeMetrics()
    powers_of_ten = [10.0**power for power in range(-8, 4)]
    assert bucket_bounds(metrics.of_workqueue("a").queue_duration) == pytest.approx(powers_of_ten)
    assert bucket_bounds(metrics.of_workqueue("a").work_duration) == pytest.approx(powers_of_ten)
    reconcile_bounds = bucket_bounds(metrics.reconcile_time.labels("a"))
    assert (reconcile_bounds[0], reconcile_bounds[-1], len(reconcile_bounds)) == (0.005, 60, 40)


def bucket_bounds(histogram: Histogram) -> list[float]:
    """Return the upper bounds of the buckets without +Inf. The library has no public way to get them."""
    return [float(bound) for bound in histogram._upper_bounds[:-1]]


class FakeLeaseClient:
    """Accepts every write of the Lease, which does not exist at the beginning."""

    lease: Lease | None = None

    def without_connection_limit(self) -> "FakeLeaseClient":
        return self

    def with_options(self, **_options: Any) -> "FakeLeaseClient":
        return self

    async def get(self, _resource: ApiResource[Any], _key: ObjectKey) -> Lease:
        if self.lease is None:
            raise KubeNotFound(ApiStatus(code=404))
        return self.lease

    async def create(self, resource: ApiResource[Any], manifest: Manifest) -> Lease:
        assert resource is LEASES
        self.lease = Lease(metadata=ObjectMeta(**manifest["metadata"], resource_version="1"))
        return self.lease

    async def merge_patch(self, *_args: Any, **_options: Any) -> Lease:
        assert self.lease is not None
        return self.lease


@on_fake_time
async def test_master_status_is_1_exactly_while_the_process_leads() -> None:
    metrics, client = KubeMetrics(), FakeLeaseClient()
    elector = LeaderElector(client, ObjectKey("system", "activator"), "me", metrics=metrics)  # type: ignore[arg-type]

    def master_status() -> float | None:
        return metrics.registry.get_sample_value("leader_election_master_status", {"name": "activator"})

    async def work() -> None:
        assert master_status() == 1
        elector.leadership.end()
        assert master_status() == 0, "a leader whose leadership has expired does not lead, although its work still runs"

    assert master_status() == 0
    await elector.run(work)
    assert master_status() == 0


class FakeListWatchClient:
    """Lists one node. Every watch delivers the events of the script and then ends."""

    def __init__(self, *events: WatchEvent[Node]) -> None:
        self.events = events

    def with_options(self, **_options: Any) -> "FakeListWatchClient":
        return self

    async def list(self, *_args: Any, **_options: Any) -> ListPage[Node]:
        return ListPage((node("a", 1),), "1")

    @asynccontextmanager
    async def watch(self, *_args: Any, **_options: Any) -> AsyncIterator[AsyncIterator[WatchEvent[Node]]]:
        async def deliver() -> AsyncIterator[WatchEvent[Node]]:
            for event in self.events:
                yield event
            await asyncio.sleep(100)

        yield deliver()


def node(name: str, version: int) -> Node:
    return Node(metadata=ObjectMeta(name=name, uid=name, resource_version=str(version)))


@on_fake_time
async def test_lists_watches_and_cached_objects_are_measured_per_kind() -> None:
    metrics = KubeMetrics()
    client = FakeListWatchClient(ObjectApplied(node("b", 2)), ObjectApplied(node("c", 3)), ObjectDeleted(node("a", 4)))
    informer = Informer(client, NODES, metrics=metrics)  # type: ignore[arg-type]
    task = asyncio.create_task(informer.run())
    await asyncio.sleep(250)
    task.cancel()
    sample = metrics.registry.get_sample_value
    assert sample("reflector_lists_total", {"name": "Node"}) == 1
    assert sample("reflector_watches_total", {"name": "Node"}) == 3
    assert sample("gpu_runtime_informer_objects", {"kind": "Node"}) == 2


class FakeEventClient:
    """Creates Events, or fails for the reason `Rejected`."""

    def with_options(self, **_options: Any) -> "FakeEventClient":
        return self

    async def create(self, _resource: ApiResource[Any], manifest: Manifest) -> KubeObject:
        if manifest["reason"] == "Rejected":
            raise KubeServerError(ApiStatus(code=500))
        return KubeObject()


@on_fake_time
async def test_events_are_counted_as_written_failed_or_dropped() -> None:
    metrics = KubeMetrics()
    recorder = EventRecorder(FakeEventClient(), "test", "test-1", EventLimits(burst=3), metrics)  # type: ignore[arg-type]
    recorder.normal(NODES, node("a", 1), "Fine", "first")
    recorder.normal(NODES, node("a", 1), "Fine", "second")
    recorder.warning(NODES, node("a", 1), "Rejected", "third")
    recorder.normal(NODES, node("a", 1), "Fine", "above the burst")
    await recorder.flush_all(timeout=1)
    counts = [
        metrics.registry.get_sample_value("gpu_runtime_kubernetes_events_total", {"result": result})
        for result in ("written", "failed", "dropped")
    ]
    assert counts == [2, 1, 1]
