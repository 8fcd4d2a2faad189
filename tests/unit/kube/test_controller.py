"""Changes become reconciliations, outcomes decide what follows, and no failure stops the others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_runtime.kube.controller import Controller, ControllerOptions, Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.errors import ApiStatus, KubeConflict, KubeUnreachable
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey, ObjectMeta, OwnerReference
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.kube.store import ObjectChange, Store
from tests.unit.kube.fake_time import now, on_fake_time

OWNERS = ApiResource("example.org", "v1", "Thing", "things", KubeObject)
CHILDREN = ApiResource("", "v1", "Part", "parts", KubeObject)
STEADY = ControllerOptions(
    max_concurrent_reconciles=2, backoff=Backoff(initial_seconds=1, max_seconds=8, jitter=0), reconcile_timeout=30
)


class FakeSource:
    """A cache that a test fills by hand."""

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
    """Plays a script of outcomes and errors, and remembers when it was asked for what."""

    def __init__(self, *script: ReconcileResult | Exception, takes: float = 0.0) -> None:
        self.script = list(script)
        self.takes = takes
        self.seen: list[tuple[str, float]] = []
        self.concurrent = self.max_concurrent = 0
        self.started = now()

    async def __call__(self, found: KubeObject) -> ReconcileResult:
        self.seen.append((found.metadata.name, now() - self.started))
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            await asyncio.sleep(self.takes)
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
    things: FakeSource, reconcile: Callable[[KubeObject], Awaitable[ReconcileResult]], **more: KubeMetrics
) -> Controller[KubeObject]:
    return Controller("things", things, reconcile, STEADY, more.get("metrics"))


@on_fake_time
async def test_existing_objects_are_reconciled_after_all_caches_synced() -> None:
    things, parts, reconcile = FakeSource(OWNERS), FakeSource(CHILDREN), Reconciler()
    things.put("a")
    parts.complete.clear()
    controller = make_controller(things, reconcile)
    controller.owns(parts)
    async with running(controller):
        await asyncio.sleep(100)
        assert reconcile.seen == []
        parts.complete.set()
        await asyncio.sleep(1)
    assert [name for name, _ in reconcile.seen] == ["a"]


@on_fake_time
async def test_changes_of_owned_objects_reconcile_their_owner() -> None:
    things, parts, reconcile = FakeSource(OWNERS), FakeSource(CHILDREN), Reconciler()
    for name in "abc":
        things.put(name)
    controller = make_controller(things, reconcile)
    controller.owns(parts)
    async with running(controller):
        await asyncio.sleep(1)
        reconcile.seen.clear()
        parts.put("part-1", owner="a")
        parts.put("stray")
        parts.put("of another kind", owner="b", api_version="other.org/v1")
        await asyncio.sleep(1)
        parts.put("part-1", version=2, owner="c")
        await asyncio.sleep(1)
        parts.remove("part-1")
        await asyncio.sleep(1)
    assert [name for name, _ in reconcile.seen] == ["a", "a", "c", "c"], "an owner that lost its part hears of it too"


@on_fake_time
async def test_outcomes_and_errors_decide_the_requeue_delay() -> None:
    lost_race = KubeConflict(ApiStatus(code=409))
    away = KubeUnreachable("away", sent=True)
    things, metrics = FakeSource(OWNERS), KubeMetrics()
    things.put("a")
    reconcile = Reconciler(away, away, lost_race, RuntimeError("a bug"), RequeueAfter(100), away, Done())
    async with running(make_controller(things, reconcile, metrics=metrics)):
        await asyncio.sleep(10_000)
    assert [round(at) for _, at in reconcile.seen] == [0, 1, 3, 7, 15, 115, 116], "success forgets earlier failures"
    counted = {
        sample.labels["result"]: sample.value
        for sample in next(iter(metrics.reconcile_total.collect())).samples
        if sample.name.endswith("_total") and sample.value
    }
    assert counted == {"error": 3, "conflict": 1, "crash": 1, "recheck": 1, "settled": 1}


@on_fake_time
async def test_a_bug_is_logged_with_its_trace_and_an_expected_error_in_one_line(
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
    assert (expected.message, expected.exc_info, expected.__dict__["object"]) == ("reconcile failed", None, "a")
    assert bug.exc_info is not None


@on_fake_time
async def test_one_reconcile_per_key_and_several_keys_concurrently() -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler(takes=10)
    async with running(make_controller(things, reconcile)):
        for version in range(1, 6):
            things.put("a", version)
            await asyncio.sleep(1)
        assert reconcile.max_concurrent == 1
        for name in "bcd":
            things.put(name)
        await asyncio.sleep(100)
        assert reconcile.max_concurrent == 2, "as many as there are workers"
    assert [name for name, _ in reconcile.seen].count("a") == 2, "changes during the work are looked at once, after it"


@on_fake_time
async def test_hanging_reconcile_is_cancelled_at_the_timeout() -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler(takes=1000)
    things.put("a")
    async with running(make_controller(things, reconcile)):
        await asyncio.sleep(40)
        reconcile.takes = 0
        await asyncio.sleep(100)
    assert [round(at) for _, at in reconcile.seen] == [0, 31, 63]


@on_fake_time
async def test_work_in_progress_finishes_before_the_controller_stops() -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler(takes=5)
    for name in "abc":
        things.put(name)
    async with running(make_controller(things, reconcile)):
        await asyncio.sleep(1)
    assert len(reconcile.seen) == 2
    assert now() - reconcile.started == pytest.approx(5, abs=0.1)


@on_fake_time
async def test_deleted_object_is_not_reconciled() -> None:
    things, reconcile = FakeSource(OWNERS), Reconciler()
    controller = make_controller(things, reconcile)
    async with running(controller):
        controller.enqueue(ObjectKey("ns", "never was"))
        things.put("a")
        controller.enqueue(ObjectKey("ns", "a"), after=50)
        await asyncio.sleep(100)
    assert [(name, round(at)) for name, at in reconcile.seen] == [("a", 0), ("a", 50)]
