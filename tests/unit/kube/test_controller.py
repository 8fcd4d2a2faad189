"""The controller reconciles changed objects and requeues them by result. A failure of one object affects no other."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.controller import Controller, ControllerOptions, Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.errors import ApiStatus, KubeConflict, KubeUnreachable
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey, ObjectMeta, OwnerReference
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.store import ObjectChange, Store
from tests.unit.kube.fake_time import now, on_fake_time

OWNERS = ApiResource("example.org", "v1", "Thing", "things", KubeObject)
CHILDREN = ApiResource("", "v1", "Part", "parts", KubeObject)
STEADY = ControllerOptions(
    max_concurrent_reconciles=2, backoff=Backoff(initial_seconds=1, max_seconds=8, jitter=0), reconcile_timeout=30
)


class FakeSource:
    """A watch source with the objects that a test puts into it."""

    def __init__(self, resource: ApiResource[KubeObject]) -> None:
        self.resource = resource
        self.store: Store[KubeObject] = Store()
        self.complete = asyncio.Event()
        self.complete.set()
        self._handlers: list[Callable[[ObjectChange[KubeObject]], None]] = []

    def add_event_handler(self, handler: Callable[[ObjectChange[KubeObject]], None]) -> None:
        self._handlers.append(handler)

    async def wait_for_sync(self) -> None:
        await self.complete.wait()

    def put(self, name: str, version: int = 1, owner: str = "", api_version: str = "example.org/v1") -> None:
        owners = (OwnerReference(api_version=api_version, kind="Thing", name=owner, uid=owner, controller=True),)
        metadata = ObjectMeta(
            namespace="ns", name=name, uid=name, resource_version=str(version), owner_references=owners if owner else ()
        )
        self._notify(self.store.put(KubeObject(metadata=metadata)))

    def remove(self, name: str) -> None:
        self._notify(self.store.remove(ObjectKey("ns", name)))

    def _notify(self, change: ObjectChange[KubeObject] | None) -> None:
        if change is not None:
            for handler in self._handlers:
                handler(change)


class Reconciler:
    """Returns or raises the results of a script, then Done, and records the name and the time of every call."""

    def __init__(self, *script: ReconcileResult | Exception, duration: float = 0.0) -> None:
        self.script = list(script)
        self.duration = duration
        self.calls: list[tuple[str, float]] = []
        self.concurrent = self.max_concurrent = 0
        self.started = now()

    async def __call__(self, reconciled: KubeObject) -> ReconcileResult:
        self.calls.append((reconciled.metadata.name, now() - self.started))
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            await asyncio.sleep(self.duration)
        finally:
            self.concurrent -= 1
        step = self.script.pop(0) if self.script else Done()
        if isinstance(step, Exception):
            raise step
        return step


@asynccontextmanager
async def running(controller: Controller[KubeObject]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(controller.run())
        await asyncio.sleep(0.001)
        yield
        controller.stop()


def make_controller(
    things: FakeSource,
    reconcile: Callable[[KubeObject], Awaitable[ReconcileResult]],
    metrics: KubeMetrics | None = None,
) -> Controller[KubeObject]:
    return Controller("things", things, reconcile, STEADY, metrics)


def samples(metrics: KubeMetrics, prefix: str) -> dict[str, float]:
    """Return the samples of the controller `things` whose names start with the prefix, by name and other labels.

    The creation times and the buckets are left out.
    """
    values = {}
    for sample in (each for family in metrics.registry.collect() for each in family.samples):
        labels = dict(sample.labels)
        if sample.name.startswith(prefix) and not sample.name.endswith(("_created", "_bucket")):
            assert labels.pop("controller") == "things"
            assert labels.pop("name", "things") == "things"
            values[" ".join([sample.name.removeprefix(prefix), *labels.values()])] = sample.value
    return values


@on_fake_time
async def test_existing_objects_are_reconciled_after_all_caches_synced() -> None:
    things, parts, reconcile = FakeSource(OWNERS), FakeSource(CHILDREN), Reconciler()
    things.put("a")
    parts.complete.clear()
    controller = make_controller(things, reconcile)
    controller.owns(parts)
    async with running(controller):
        await asyncio.sleep(100)
        assert reconcile.calls == []
        parts.complete.set()
        await asyncio.sleep(1)
    assert [name for name, _ in reconcile.calls] == ["a"]


@on_fake_time
async def test_changes_of_owned_objects_reconcile_their_owner() -> None:
    things, parts, reconcile = FakeSource(OWNERS), FakeSource(CHILDREN), Reconciler()
    for name in "abc":
        things.put(name)
    controller = make_controller(things, reconcile)
    controller.owns(parts)
    async with running(controller):
        await asyncio.sleep(1)
        reconcile.calls.clear()
        parts.put("part-1", owner="a")
        parts.put("without owner")
        parts.put("of another kind", owner="b", api_version="other.org/v1")
        await asyncio.sleep(1)
        parts.put("part-1", version=2, owner="c")
        await asyncio.sleep(1)
        parts.remove("part-1")
        await asyncio.sleep(1)
    assert [name for name, _ in reconcile.calls] == ["a", "a", "c", "c"], "the previous owner is reconciled too"


@on_fake_time
async def test_results_and_errors_decide_the_requeue_delay() -> None:
    conflict = KubeConflict(ApiStatus(code=409))
    unreachable = KubeUnreachable("away", sent=True)
    things, metrics = FakeSource(OWNERS), KubeMetrics()
    things.put("a")
    reconcile = Reconciler(
        unreachable, unreachable, conflict, RuntimeError("a bug"), RequeueAfter(100), unreachable, Done()
    )
    async with running(make_controller(things, reconcile, metrics)):
        await asyncio.sleep(10_000)
    assert [round(at) for _, at in reconcile.calls] == [0, 1, 3, 7, 15, 115, 116], "a success resets the backoff"
    results = samples(metrics, "controller_runtime_reconcile_total")
    assert results == {" error": 4, " requeue": 1, " requeue_after": 1, " success": 1}


@on_fake_time
async def test_controller_metrics_are_zero_before_the_first_reconcile() -> None:
    metrics = KubeMetrics()
    make_controller(FakeSource(OWNERS), Reconciler(), metrics)
    assert samples(metrics, "controller_runtime_") == {
        "reconcile_total success": 0,
        "reconcile_total error": 0,
        "reconcile_total requeue": 0,
        "reconcile_total requeue_after": 0,
        "reconcile_errors_total": 0,
        "reconcile_timeouts_total": 0,
        "reconcile_panics_total": 0,
        "reconcile_time_seconds_count": 0,
        "reconcile_time_seconds_sum": 0,
        "max_concurrent_reconciles": 2,
        "active_workers": 0,
    }
    assert samples(metrics, "workqueue_") == {
        "depth": 0,
        "adds_total": 0,
        "queue_duration_seconds_count": 0,
        "queue_duration_seconds_sum": 0,
        "work_duration_seconds_count": 0,
        "work_duration_seconds_sum": 0,
        "unfinished_work_seconds": 0,
        "longest_running_processor_seconds": 0,
        "retries_total": 0,
    }


@on_fake_time
async def test_timeouts_and_panics_also_count_as_errors_and_conflicts_do_not() -> None:
    things, metrics = FakeSource(OWNERS), KubeMetrics()
    things.put("a")
    errors = (
        KubeUnreachable("away", sent=True),
        RuntimeError("a bug"),
        TimeoutError("of the reconcile function itself"),
        KubeConflict(ApiStatus(code=409)),
    )
    reconcile = Reconciler(*errors, duration=1)
    async with running(make_controller(things, reconcile, metrics)):
        await asyncio.sleep(60)
        assert reconcile.script == []
        reconcile.duration = 1000
        things.put("a", version=2)
        await asyncio.sleep(30.5)  # past the timeout, before the next attempt
        reconcile.duration = 0
        await asyncio.sleep(100)
    counted = samples(metrics, "controller_runtime_reconcile_")
    assert (counted["panics_total"], counted["timeouts_total"]) == (1, 1)
    assert counted["errors_total"] == counted["total error"] == 4
    assert counted["total requeue"] == 1
    assert counted["time_seconds_count"] == len(reconcile.calls)


@on_fake_time
async def test_active_workers_and_the_workqueue_are_measured() -> None:
    things, metrics, reconcile = FakeSource(OWNERS), KubeMetrics(), Reconciler(duration=10)
    for name in "abc":
        things.put(name)
    async with running(make_controller(things, reconcile, metrics)):
        await asyncio.sleep(5)
        things.put("a", version=2)
        assert samples(metrics, "controller_runtime_active_workers") == {"": 2}
        queue = samples(metrics, "workqueue_")
        assert (queue["adds_total"], queue["depth"], queue["queue_duration_seconds_count"]) == (4, 2, 2)
        assert queue["unfinished_work_seconds"] > queue["longest_running_processor_seconds"] > 0
        await asyncio.sleep(100)
        assert samples(metrics, "controller_runtime_active_workers") == {"": 0}
        queue = samples(metrics, "workqueue_")
        assert (queue["depth"], queue["work_duration_seconds_count"], queue["retries_total"]) == (0, 4, 0)
        assert (queue["unfinished_work_seconds"], queue["longest_running_processor_seconds"]) == (0, 0)


@on_fake_time
async def test_bug_is_logged_with_traceback_and_expected_error_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    things = FakeSource(OWNERS)
    things.put("a")
    with caplog.at_level(logging.WARNING):
        async with running(
            make_controller(things, Reconciler(KubeUnreachable("away", sent=True), RuntimeError("a bug")))
        ):
            await asyncio.sleep(100)
    expected, bug = caplog.records
    assert (expected.message, expected.exc_info) == ("reconcile failed; the object was requeued", None)
    assert expected.__dict__["object_name"] == "a"
    assert bug.message == "reconcile raised an unexpected exception; the object was requeued"
    assert bug.exc_info is not None
    assert (bug.__dict__["error"], bug.__dict__["error_type"]) == ("a bug", "RuntimeError")


@on_fake_time
async def test_one_reconcile_per_key_and_several_keys_concurrently() -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler(duration=10)
    async with running(make_controller(things, reconcile)):
        for version in range(1, 6):
            things.put("a", version)
            await asyncio.sleep(1)
        assert reconcile.max_concurrent == 1
        for name in "bcd":
            things.put(name)
        await asyncio.sleep(100)
        assert reconcile.max_concurrent == 2, "max_concurrent_reconciles is 2"
    assert [name for name, _ in reconcile.calls].count("a") == 2, "changes during a reconcile cause one more reconcile"


@on_fake_time
async def test_hanging_reconcile_is_cancelled_at_the_timeout(caplog: pytest.LogCaptureFixture) -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler(duration=1000)
    things.put("a")
    async with running(make_controller(things, reconcile)):
        await asyncio.sleep(40)
        reconcile.duration = 0
        await asyncio.sleep(100)
    assert [round(at) for _, at in reconcile.calls] == [0, 31, 63]
    assert [record.message for record in caplog.records] == ["reconcile timed out; the object was requeued"] * 2
    assert caplog.records[0].__dict__["timeout_seconds"] == 30


@on_fake_time
async def test_work_in_progress_finishes_before_the_controller_stops() -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler(duration=5)
    for name in "abc":
        things.put(name)
    async with running(make_controller(things, reconcile)):
        await asyncio.sleep(1)
    assert len(reconcile.calls) == 2
    assert now() - reconcile.started == pytest.approx(5, abs=0.1)


@on_fake_time
async def test_object_that_does_not_exist_is_not_reconciled_and_counts_as_success() -> None:
    things, reconcile, metrics = FakeSource(OWNERS), Reconciler(), KubeMetrics()
    controller = make_controller(things, reconcile, metrics)
    async with running(controller):
        controller.enqueue(ObjectKey("ns", "missing"))
        things.put("a")
        controller.enqueue(ObjectKey("ns", "a"), after=50)
        await asyncio.sleep(100)
    assert [(name, round(at)) for name, at in reconcile.calls] == [("a", 0), ("a", 50)]
    counted = samples(metrics, "controller_runtime_reconcile_")
    assert (counted["total success"], counted["time_seconds_count"]) == (3, 3)
    assert samples(metrics, "workqueue_retries_total") == {"": 1}, "a delayed enqueue counts as a retry"
