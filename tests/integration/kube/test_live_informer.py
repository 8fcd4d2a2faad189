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

from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.codec import ListOptions, ListPage
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.informer import Informer, InformerOptions
from gpu_runtime.kube.meta import KubeObject, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.store import ObjectChange
from localcluster import control_plane as control_planes
from localcluster.control_plane import ControlPlane
from tests.conftest import enter_or_skip
from tests.integration.kube.polling import CONFIG_MAPS, eventually


@asynccontextmanager
async def running(informer: Informer[KubeObject]) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(informer.run())
        async with asyncio.timeout(60):
            await informer.wait_for_sync()
        yield
        task.cancel()


def create_config_map(kube: OtherEyes, namespace: str, name: str, **labels: str) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels), data={"size": "x" * 100}))


def names(informer: Informer[KubeObject]) -> set[str]:
    return {found.metadata.name for found in informer.store.all()}


def sample(metrics: KubeMetrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, labels) or 0.0


async def test_informer_reports_changes_of_selected_objects(
    client: KubeClient, kube: OtherEyes, namespace: str
) -> None:
    create_config_map(kube, namespace, "old", colour="red")
    create_config_map(kube, namespace, "other", colour="blue")
    informer = Informer(client, CONFIG_MAPS, ListOptions(namespace, label_selector="colour=red"))
    informer.store.add_index("shade", lambda item: [item.metadata.labels.get("shade", "")])
    told: list[ObjectChange[KubeObject]] = []
    informer.add_event_handler(told.append)
    async with running(informer):
        assert names(informer) == {"old"}
        create_config_map(kube, namespace, "new", colour="red", shade="dark")
        await eventually(lambda: names(informer) == {"old", "new"}, "the new one is known")
        assert [found.metadata.name for found in informer.store.by_index("shade", "dark")] == ["new"]
        kube.patch(ConfigMap, "new", {"metadata": {"labels": {"colour": "blue"}}}, namespace=namespace)
        await eventually(lambda: names(informer) == {"old"}, "what no longer matches is gone")
        kube.delete(ConfigMap, "old", namespace=namespace)
        await eventually(lambda: not names(informer), "the deleted one is gone")
    story = [(change.old is not None, change.new is not None) for change in told]
    assert story == [(False, True), (False, True), (True, False), (True, False)]


async def test_informer_watches_all_namespaces_and_resyncs(client: KubeClient, namespace: str) -> None:
    informer = Informer(
        client,
        CONFIG_MAPS,
        ListOptions(field_selector="metadata.name=everywhere"),
        options=InformerOptions(resync_period=0.2),
    )
    told: list[ObjectChange[KubeObject]] = []
    informer.add_event_handler(told.append)
    async with running(informer):
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "everywhere"}})
        await eventually(lambda: len(told) >= 3, "it is told again although nothing changed")
    assert told[1] == told[2]


async def test_recorded_write_is_visible_in_the_store_immediately(client: KubeClient, namespace: str) -> None:
    informer = Informer(client, CONFIG_MAPS, ListOptions(namespace, field_selector="metadata.name=a"))
    async with running(informer):
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "a"}})
        await eventually(lambda: names(informer) == {"a"}, "it is known")
        written = await client.merge_patch(CONFIG_MAPS, ObjectKey(namespace, "a"), {"metadata": {"labels": {"b": "c"}}})
        informer.record_write(written)
        assert informer.store.get(ObjectKey(namespace, "a")) == written


async def test_watch_restarts_without_a_new_list(client: KubeClient, namespace: str) -> None:
    metrics = KubeMetrics()
    informer = Informer(
        client, CONFIG_MAPS, ListOptions(namespace), options=InformerOptions(watch_timeout_seconds=1), metrics=metrics
    )
    async with running(informer):
        await eventually(lambda: sample(metrics, "kube_informer_watches_total", kind="ConfigMap") >= 3, "watched again")
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "late"}})
        await eventually(lambda: "late" in names(informer), "the late one is known")
    assert sample(metrics, "kube_informer_lists_total", kind="ConfigMap") == 1


async def test_two_thousand_objects_use_little_memory(client: KubeClient, kube: OtherEyes, namespace: str) -> None:
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
    informer = Informer(client, CONFIG_MAPS, ListOptions(namespace, label_selector="app=many"))
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
def own_control_plane() -> Iterator[ControlPlane]:
    """A control plane that a test may break, as long as it mends it again."""
    with enter_or_skip(control_planes.temporary_control_plane(nodes=0)) as plane:
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


async def test_informer_recovers_after_an_api_server_kill(own_control_plane: ControlPlane) -> None:
    """After the restart the server no longer has the history between, so this is a real 410 and a new list."""
    metrics = KubeMetrics()
    with own_control_plane.client() as kube:
        create_config_map(kube, "default", "stays")
        create_config_map(kube, "default", "goes")
        async with open_kube_client(load_cluster_config(own_control_plane.kubeconfig), field_manager="test") as client:
            informer = Informer(
                client, CONFIG_MAPS, ListOptions("default", field_selector="metadata.name!=x"), metrics=metrics
            )
            told: list[ObjectChange[KubeObject]] = []
            async with running(informer):
                informer.add_event_handler(told.append)
                kube.create(ConfigMap(metadata=ObjectMeta(name="elsewhere", namespace="kube-system")))
                own_control_plane.processes.stop("kube-apiserver", signal.SIGKILL)
                own_control_plane.start_apiserver()
                await asyncio.to_thread(own_control_plane.wait_ready)
                kube.delete(ConfigMap, "goes", namespace="default")
                create_config_map(kube, "default", "comes")
                await eventually(lambda: {"stays", "comes"} <= names(informer), "the cache is true again")
                await eventually(lambda: "goes" not in names(informer), "what went missing is gone")
    assert any(change.new is None and change.old and change.old.metadata.name == "goes" for change in told)
    assert sample(metrics, "kube_informer_lists_total", kind="ConfigMap") == 2


async def test_silent_api_server_is_detected(own_control_plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    with own_control_plane.client() as kube:
        async with open_kube_client(load_cluster_config(own_control_plane.kubeconfig), field_manager="test") as client:
            informer = Informer(
                client, CONFIG_MAPS, ListOptions("default"), options=InformerOptions(watch_idle_timeout=1.0)
            )
            async with running(informer):
                own_control_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
                try:
                    await eventually(lambda: "informer interrupted" in caplog.messages, "the silence is noticed")
                finally:
                    own_control_plane.processes.signal("kube-apiserver", signal.SIGCONT)
                create_config_map(kube, "default", "after-the-silence")
                await eventually(lambda: "after-the-silence" in names(informer), "the cache is true again")
    assert "no answer within 1 s" in str(caplog.records[0].__dict__["error"])


async def test_list_with_an_expired_continue_token_is_read_in_one_page(
    own_control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages the history is compacted and the server, which also keeps some of it, restarted: a real 410."""
    metrics, page, forgotten = KubeMetrics(), KubeClient.page, False

    async def forgetting(self: KubeClient, *args: Any, **kwargs: Any) -> ListPage[Any]:
        nonlocal forgotten
        if kwargs.get("continuation") and not forgotten:
            forgotten = True
            await asyncio.to_thread(compact_and_restart, own_control_plane)
        return await page(self, *args, **kwargs)

    async with open_kube_client(
        load_cluster_config(own_control_plane.kubeconfig), field_manager="test", metrics=metrics
    ) as client:
        for number in range(6):
            metadata = {"namespace": "default", "name": f"page-{number}", "labels": {"app": "paged"}}
            await client.create(CONFIG_MAPS, {"metadata": metadata})
        monkeypatch.setattr(KubeClient, "page", forgetting)
        found = await client.list(CONFIG_MAPS, ListOptions("default", label_selector="app=paged"), page_size=2)
    assert len(found.items) == 6
    assert sample(metrics, "kube_client_requests_total", method="GET", code="410") == 1


def compact_and_restart(plane: ControlPlane) -> None:
    with plane.client() as kube:
        kube.create(ConfigMap(metadata=ObjectMeta(generateName="noise-", namespace="default")))
    compact(plane)
    plane.processes.stop("kube-apiserver", signal.SIGKILL)
    plane.start_apiserver()
    plane.wait_ready()
