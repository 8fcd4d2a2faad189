"""Changes become reconciliations, outcomes decide what follows, and no failure stops the others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpu_runtime.kube.controller import Controller, ControllerOptions, Outcome, RecheckIn, Settled
from gpu_runtime.kube.errors import Conflict, Status, Unreachable
from gpu_runtime.kube.meta import Key, Object, ObjectMeta, OwnerReference, Resource
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.kube.store import Change, Store
from tests.unit.kube.fake_time import now, on_fake_time

THINGS = Resource("example.org", "v1", "Thing", "things", Object)
PARTS = Resource("", "v1", "Part", "parts", Object)
STEADY = ControllerOptions(workers=2, backoff=Backoff(first=1, longest=8, spread=0), deadline=30)


class FakeSource:
    """A cache that a test fills by hand."""

    def __init__(self, resource: Resource[Object]) -> None:
        self.resource = resource
        self.store: Store[Object] = Store()
        self.complete = asyncio.Event()
        self.complete.set()
        self._handlers: list[Callable[[Change[Object]], None]] = []

    def on_change(self, handler: Callable[[Change[Object]], None]) -> None:
        self._handlers.append(handler)

    async def synced(self) -> None:
        await self.complete.wait()

    def put(self, name: str, version: int = 1, owner: str = "", api_version: str = "example.org/v1") -> None:
        owners = (OwnerReference(api_version=api_version, kind="Thing", name=owner, uid=owner, controller=True),)
        metadata = ObjectMeta(
            namespace="ns", name=name, uid=name, resource_version=str(version), owner_references=owners if owner else ()
        )
        self._tell(self.store.put(Object(metadata=metadata)))

    def remove(self, name: str) -> None:
        self._tell(self.store.remove(Key("ns", name)))

    def _tell(self, change: Change[Object] | None) -> None:
        if change is not None:
            for handler in self._handlers:
                handler(change)


class Reconciler:
    """Plays a script of outcomes and errors, and remembers when it was asked for what."""

    def __init__(self, *script: Outcome | Exception, takes: float = 0.0) -> None:
        self.script = list(script)
        self.takes = takes
        self.seen: list[tuple[str, float]] = []
        self.at_once = self.most_at_once = 0
        self.started = now()

    async def __call__(self, found: Object) -> Outcome:
        self.seen.append((found.metadata.name, now() - self.started))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.at_once -= 1
        step = self.script.pop(0) if self.script else Settled()
        if isinstance(step, Exception):
            raise step
        return step


@asynccontextmanager
async def running(controller: Controller[Object]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(controller.run())
        await asyncio.sleep(0.001)
        yield
        controller.stop()


def controller_of(
    things: FakeSource, reconcile: Callable[[Object], Awaitable[Outcome]], **more: KubeMetrics
) -> Controller[Object]:
    return Controller("things", things, reconcile, STEADY, more.get("metrics"))


@on_fake_time
async def test_what_exists_is_reconciled_when_every_cache_is_complete() -> None:
    things, parts, reconcile = FakeSource(THINGS), FakeSource(PARTS), Reconciler()
    things.put("a")
    parts.complete.clear()
    controller = controller_of(things, reconcile)
    controller.owns(parts)
    async with running(controller):
        await asyncio.sleep(100)
        assert reconcile.seen == []
        parts.complete.set()
        await asyncio.sleep(1)
    assert [name for name, _ in reconcile.seen] == ["a"]


@on_fake_time
async def test_changes_of_owned_objects_reconcile_their_owner() -> None:
    things, parts, reconcile = FakeSource(THINGS), FakeSource(PARTS), Reconciler()
    for name in "abc":
        things.put(name)
    controller = controller_of(things, reconcile)
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
async def test_outcomes_and_errors_decide_when_an_object_is_looked_at_again() -> None:
    lost_race = Conflict(Status(code=409))
    away = Unreachable("away", sent=True)
    things, metrics = FakeSource(THINGS), KubeMetrics()
    things.put("a")
    reconcile = Reconciler(away, away, lost_race, RuntimeError("a bug"), RecheckIn(100), away, Settled())
    async with running(controller_of(things, reconcile, metrics=metrics)):
        await asyncio.sleep(10_000)
    assert [round(at) for _, at in reconcile.seen] == [0, 1, 3, 7, 15, 115, 116], "success forgets earlier failures"
    counted = {
        sample.labels["result"]: sample.value
        for sample in next(iter(metrics.reconciles.collect())).samples
        if sample.name.endswith("_total") and sample.value
    }
    assert counted == {"error": 3, "conflict": 1, "crash": 1, "recheck": 1, "settled": 1}


@on_fake_time
async def test_a_bug_is_logged_with_its_trace_and_an_expected_error_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    things = FakeSource(THINGS)
    things.put("a")
    with caplog.at_level(logging.WARNING):
        async with running(controller_of(things, Reconciler(Unreachable("away", sent=True), RuntimeError("a bug")))):
            await asyncio.sleep(100)
    expected, bug = caplog.records
    assert (expected.message, expected.exc_info, expected.__dict__["object"]) == ("reconcile failed", None, "a")
    assert bug.exc_info is not None


@on_fake_time
async def test_one_object_is_reconciled_by_one_worker_and_several_objects_at_once() -> None:
    things, reconcile = FakeSource(THINGS), Reconciler(takes=10)
    async with running(controller_of(things, reconcile)):
        for version in range(1, 6):
            things.put("a", version)
            await asyncio.sleep(1)
        assert reconcile.most_at_once == 1
        for name in "bcd":
            things.put(name)
        await asyncio.sleep(100)
        assert reconcile.most_at_once == 2, "as many as there are workers"
    assert [name for name, _ in reconcile.seen].count("a") == 2, "changes during the work are looked at once, after it"


@on_fake_time
async def test_a_reconcile_that_hangs_is_given_up() -> None:
    things, reconcile = FakeSource(THINGS), Reconciler(takes=1000)
    things.put("a")
    async with running(controller_of(things, reconcile)):
        await asyncio.sleep(40)
        reconcile.takes = 0
        await asyncio.sleep(100)
    assert [round(at) for _, at in reconcile.seen] == [0, 31, 63]


@on_fake_time
async def test_work_in_progress_finishes_before_the_controller_stops() -> None:
    things, reconcile = FakeSource(THINGS), Reconciler(takes=5)
    for name in "abc":
        things.put(name)
    async with running(controller_of(things, reconcile)):
        await asyncio.sleep(1)
    assert len(reconcile.seen) == 2
    assert now() - reconcile.started == pytest.approx(5, abs=0.1)


@on_fake_time
async def test_what_is_gone_is_not_reconciled() -> None:
    things, reconcile = FakeSource(THINGS), Reconciler()
    controller = controller_of(things, reconcile)
    async with running(controller):
        controller.enqueue(Key("ns", "never was"))
        things.put("a")
        controller.enqueue(Key("ns", "a"), after=50)
        await asyncio.sleep(100)
    assert [(name, round(at)) for name, at in reconcile.seen] == [("a", 0), ("a", 50)]
