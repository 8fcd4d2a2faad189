"""A cache stays true whatever happens to the watch: a dead server, a silent one, history that is gone."""

import asyncio
import json
import signal
import tracemalloc
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightkube import Client as OtherEyes
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap

from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.codec import Page, Selection
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.informer import Informer, Pace
from gpu_runtime.kube.meta import Key, Object
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.store import Change
from localcluster import control_plane as control_planes
from localcluster.control_plane import ControlPlane
from tests.conftest import available
from tests.integration.kube.waiting import CONFIG_MAPS, eventually


@asynccontextmanager
async def running(informer: Informer[Object]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(informer.run())
        async with asyncio.timeout(60):
            await informer.synced()
        yield
        task.cancel()


def make(kube: OtherEyes, namespace: str, name: str, **labels: str) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels), data={"size": "x" * 100}))


def names(informer: Informer[Object]) -> set[str]:
    return {found.metadata.name for found in informer.store.all()}


def sample(metrics: KubeMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_changes_are_told_and_the_selection_is_kept(client: Client, kube: OtherEyes, namespace: str) -> None:
    make(kube, namespace, "old", colour="red")
    make(kube, namespace, "other", colour="blue")
    informer = Informer(client, CONFIG_MAPS, Selection(namespace, labels="colour=red"))
    informer.store.index_by("shade", lambda item: [item.metadata.labels.get("shade", "")])
    told: list[Change[Object]] = []
    informer.on_change(told.append)
    async with running(informer):
        assert names(informer) == {"old"}
        make(kube, namespace, "new", colour="red", shade="dark")
        await eventually(lambda: names(informer) == {"old", "new"}, "the new one is known")
        assert [found.metadata.name for found in informer.store.by("shade", "dark")] == ["new"]
        kube.patch(ConfigMap, "new", {"metadata": {"labels": {"colour": "blue"}}}, namespace=namespace)
        await eventually(lambda: names(informer) == {"old"}, "what no longer matches is gone")
        kube.delete(ConfigMap, "old", namespace=namespace)
        await eventually(lambda: not names(informer), "the deleted one is gone")
    story = [(change.before is not None, change.after is not None) for change in told]
    assert story == [(False, True), (False, True), (True, False), (True, False)]


async def test_every_namespace_can_be_watched_and_everything_told_again(client: Client, namespace: str) -> None:
    informer = Informer(client, CONFIG_MAPS, Selection(fields="metadata.name=everywhere"), pace=Pace(resync=0.2))
    told: list[Change[Object]] = []
    informer.on_change(told.append)
    async with running(informer):
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "everywhere"}})
        await eventually(lambda: len(told) >= 3, "it is told again although nothing changed")
    assert told[1] == told[2]


async def test_what_a_write_returned_is_known_at_once(client: Client, namespace: str) -> None:
    informer = Informer(client, CONFIG_MAPS, Selection(namespace, fields="metadata.name=a"))
    async with running(informer):
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "a"}})
        await eventually(lambda: names(informer) == {"a"}, "it is known")
        written = await client.merge_patch(CONFIG_MAPS, Key(namespace, "a"), {"metadata": {"labels": {"b": "c"}}})
        informer.learn(written)
        assert informer.store.get(Key(namespace, "a")) == written


async def test_a_watch_ends_and_is_opened_again_without_a_new_list(client: Client, namespace: str) -> None:
    metrics = KubeMetrics()
    informer = Informer(client, CONFIG_MAPS, Selection(namespace), pace=Pace(watch=1), metrics=metrics)
    async with running(informer):
        await eventually(lambda: sample(metrics, "kube_informer_watches_total", kind="ConfigMap") >= 3, "watched again")
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "late"}})
        await eventually(lambda: "late" in names(informer), "the late one is known")
    assert sample(metrics, "kube_informer_lists_total", kind="ConfigMap") == 1


async def test_two_thousand_objects_cost_little_memory(client: Client, kube: OtherEyes, namespace: str) -> None:
    """Each has 2 KB of data that the model does not name, besides the bookkeeping of the server."""
    count = 2000

    async def create(numbers: Iterator[int]) -> None:
        for number in numbers:
            metadata = {"namespace": namespace, "name": f"m-{number}", "labels": {"app": "many"}}
            await client.create(CONFIG_MAPS, {"metadata": metadata, "data": {"text": "x" * 2000}})

    numbers = iter(range(count))
    async with asyncio.TaskGroup() as tasks:
        for _ in range(16):
            tasks.create_task(create(numbers))
    informer = Informer(client, CONFIG_MAPS, Selection(namespace, labels="app=many"))
    tracemalloc.start()
    try:
        async with running(informer):
            assert len(informer.store) == count
            kept = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    print(f"{kept:.0f} bytes per object")
    assert kept < 2500


@pytest.fixture(scope="module")
def own_plane() -> Iterator[ControlPlane]:
    """A control plane that a test may break, as long as it mends it again."""
    with available(control_planes.control_plane(nodes=0)) as plane:
        yield plane


def compact(plane: ControlPlane) -> None:
    """Make etcd forget every version but the current ones."""
    etcd = f"http://{plane.address}:{plane.etcd_ports[0]}/v3"

    def post(path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(f"{etcd}{path}", json.dumps(body).encode())  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            found: dict[str, dict[str, str]] = json.load(answer)
            return found

    revision = post("/kv/range", {"key": "AA=="})["header"]["revision"]
    post("/kv/compaction", {"revision": revision, "physical": True})


async def test_a_killed_server_costs_nothing_but_time(own_plane: ControlPlane) -> None:
    """After the restart the server no longer has the history between, so this is a real 410 and a new list."""
    metrics = KubeMetrics()
    with own_plane.client() as kube:
        make(kube, "default", "stays")
        make(kube, "default", "goes")
        async with connect(load_config(own_plane.kubeconfig), field_manager="test") as client:
            informer = Informer(client, CONFIG_MAPS, Selection("default", fields="metadata.name!=x"), metrics=metrics)
            told: list[Change[Object]] = []
            async with running(informer):
                informer.on_change(told.append)
                kube.create(ConfigMap(metadata=ObjectMeta(name="elsewhere", namespace="kube-system")))
                own_plane.processes.stop("kube-apiserver", signal.SIGKILL)
                own_plane.start_apiserver()
                await asyncio.to_thread(own_plane.wait_ready)
                kube.delete(ConfigMap, "goes", namespace="default")
                make(kube, "default", "comes")
                await eventually(lambda: {"stays", "comes"} <= names(informer), "the cache is true again")
                await eventually(lambda: "goes" not in names(informer), "what went missing is gone")
    assert any(change.after is None and change.before and change.before.metadata.name == "goes" for change in told)
    assert sample(metrics, "kube_informer_lists_total", kind="ConfigMap") == 2


async def test_a_server_that_falls_silent_is_noticed(own_plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    with own_plane.client() as kube:
        async with connect(load_config(own_plane.kubeconfig), field_manager="test") as client:
            informer = Informer(client, CONFIG_MAPS, Selection("default"), pace=Pace(idle=1.0))
            async with running(informer):
                own_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
                try:
                    await eventually(lambda: "informer interrupted" in caplog.messages, "the silence is noticed")
                finally:
                    own_plane.processes.signal("kube-apiserver", signal.SIGCONT)
                make(kube, "default", "after-the-silence")
                await eventually(lambda: "after-the-silence" in names(informer), "the cache is true again")
    assert "no answer within 1 s" in str(caplog.records[0].__dict__["error"])


async def test_a_list_that_outlives_the_history_is_read_at_once(
    own_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages the history is compacted and the server, which also keeps some of it, restarted: a real 410."""
    metrics, page, forgotten = KubeMetrics(), Client.page, False

    async def forgetting(self: Client, *args: Any, **kwargs: Any) -> Page[Any]:
        nonlocal forgotten
        if kwargs.get("continuation") and not forgotten:
            forgotten = True
            await asyncio.to_thread(forget_history, own_plane)
        return await page(self, *args, **kwargs)

    async with connect(load_config(own_plane.kubeconfig), field_manager="test", metrics=metrics) as client:
        for number in range(6):
            metadata = {"namespace": "default", "name": f"page-{number}", "labels": {"app": "paged"}}
            await client.create(CONFIG_MAPS, {"metadata": metadata})
        monkeypatch.setattr(Client, "page", forgetting)
        found = await client.list(CONFIG_MAPS, Selection("default", labels="app=paged"), page=2)
    assert len(found.items) == 6
    assert sample(metrics, "kube_client_requests_total", method="GET", code="410") == 1


def forget_history(plane: ControlPlane) -> None:
    with plane.client() as kube:
        kube.create(ConfigMap(metadata=ObjectMeta(generateName="noise-", namespace="default")))
    compact(plane)
    plane.processes.stop("kube-apiserver", signal.SIGKILL)
    plane.start_apiserver()
    plane.wait_ready()
