"""The cache becomes current again after failed watches: killed server, silent server, expired resource versions."""

import asyncio
import json
import signal
import tracemalloc
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightkube import Client as LightkubeClient
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


def create_config_map(kube: LightkubeClient, namespace: str, name: str, **labels: str) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels=labels), data={"size": "x" * 100}))


def names(informer: Informer[KubeObject]) -> set[str]:
    return {item.metadata.name for item in informer.store.all()}


def sample(metrics: KubeMetrics, metric: str, /, **labels: str) -> float:
    return metrics.registry.get_sample_value(metric, labels) or 0.0


async def test_informer_reports_changes_of_selected_objects(
    client: KubeClient, kube: LightkubeClient, namespace: str
) -> None:
    create_config_map(kube, namespace, "old", color="red")
    create_config_map(kube, namespace, "other", color="blue")
    informer = Informer(client, CONFIG_MAPS, ListOptions(namespace, label_selector="color=red"))
    informer.store.add_index("shade", lambda item: [item.metadata.labels.get("shade", "")])
    changes: list[ObjectChange[KubeObject]] = []
    informer.add_event_handler(changes.append)
    async with running(informer):
        assert names(informer) == {"old"}
        create_config_map(kube, namespace, "new", color="red", shade="dark")
        await eventually(lambda: names(informer) == {"old", "new"}, "the new object is cached")
        assert [item.metadata.name for item in informer.store.by_index("shade", "dark")] == ["new"]
        kube.patch(ConfigMap, "new", {"metadata": {"labels": {"color": "blue"}}}, namespace=namespace)
        await eventually(lambda: names(informer) == {"old"}, "an object that no longer matches is removed")
        kube.delete(ConfigMap, "old", namespace=namespace)
        await eventually(lambda: not names(informer), "the deleted object is removed")
    transitions = [(change.old is not None, change.new is not None) for change in changes]
    assert transitions == [(False, True), (False, True), (True, False), (True, False)]


async def test_informer_watches_all_namespaces_and_resyncs(client: KubeClient, namespace: str) -> None:
    informer = Informer(
        client,
        CONFIG_MAPS,
        ListOptions(field_selector="metadata.name=everywhere"),
        options=InformerOptions(resync_period=0.2),
    )
    changes: list[ObjectChange[KubeObject]] = []
    informer.add_event_handler(changes.append)
    async with running(informer):
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "everywhere"}})
        await eventually(lambda: len(changes) >= 3, "the resync reports the unchanged object")
    assert changes[1] == changes[2]


async def test_recorded_write_is_visible_in_the_store_immediately(client: KubeClient, namespace: str) -> None:
    informer = Informer(client, CONFIG_MAPS, ListOptions(namespace, field_selector="metadata.name=a"))
    async with running(informer):
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "a"}})
        await eventually(lambda: names(informer) == {"a"}, "the object is cached")
        written = await client.merge_patch(CONFIG_MAPS, ObjectKey(namespace, "a"), {"metadata": {"labels": {"b": "c"}}})
        informer.record_write(written)
        assert informer.store.get(ObjectKey(namespace, "a")) == written


async def test_watch_restarts_without_a_new_list(client: KubeClient, namespace: str) -> None:
    metrics = KubeMetrics()
    informer = Informer(
        client, CONFIG_MAPS, ListOptions(namespace), options=InformerOptions(watch_timeout_seconds=1), metrics=metrics
    )
    async with running(informer):
        await eventually(
            lambda: sample(metrics, "reflector_watches_total", name="ConfigMap") >= 3, "the watch restarts"
        )
        await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "late"}})
        await eventually(lambda: "late" in names(informer), "the late object is cached")
    assert sample(metrics, "reflector_lists_total", name="ConfigMap") == 1


async def test_two_thousand_objects_use_little_memory(
    client: KubeClient, kube: LightkubeClient, namespace: str
) -> None:
    """Each object has 2 KB of data that the model does not declare, in addition to the managed fields of the server."""
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
            memory = tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()
    print(f"{memory:.0f} bytes per object")
    assert memory < 2500


@pytest.fixture(scope="module")
def own_control_plane() -> Iterator[ControlPlane]:
    """A control plane that a test may break if it repairs it again."""
    with enter_or_skip(control_planes.temporary_control_plane(nodes=0)) as plane:
        yield plane


def compact(plane: ControlPlane) -> None:
    """Compact etcd, which deletes all versions but the current ones."""
    etcd = f"http://{plane.address}:{plane.etcd_ports[0]}/v3"

    def post(path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(f"{etcd}{path}", json.dumps(body).encode())  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            decoded: dict[str, dict[str, str]] = json.load(response)
            return decoded

    revision = post("/kv/range", {"key": "AA=="})["header"]["revision"]
    post("/kv/compaction", {"revision": revision, "physical": True})


async def test_informer_recovers_after_an_api_server_kill(own_control_plane: ControlPlane) -> None:
    """After the restart the server no longer has the versions in between: the informer gets a real 410 and relists."""
    metrics = KubeMetrics()
    with own_control_plane.client() as kube:
        create_config_map(kube, "default", "unchanged")
        create_config_map(kube, "default", "deleted")
        async with open_kube_client(load_cluster_config(own_control_plane.kubeconfig), field_manager="test") as client:
            informer = Informer(
                client, CONFIG_MAPS, ListOptions("default", field_selector="metadata.name!=x"), metrics=metrics
            )
            changes: list[ObjectChange[KubeObject]] = []
            async with running(informer):
                informer.add_event_handler(changes.append)
                kube.create(ConfigMap(metadata=ObjectMeta(name="elsewhere", namespace="kube-system")))
                own_control_plane.processes.stop("kube-apiserver", signal.SIGKILL)
                own_control_plane.start_apiserver()
                await asyncio.to_thread(own_control_plane.wait_ready)
                kube.delete(ConfigMap, "deleted", namespace="default")
                create_config_map(kube, "default", "created")
                await eventually(lambda: {"unchanged", "created"} <= names(informer), "the cache is current again")
                await eventually(lambda: "deleted" not in names(informer), "the deleted object is removed")
    assert any(change.new is None and change.old and change.old.metadata.name == "deleted" for change in changes)
    assert sample(metrics, "reflector_lists_total", name="ConfigMap") == 2


async def test_silent_api_server_is_detected(own_control_plane: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    with own_control_plane.client() as kube:
        async with open_kube_client(load_cluster_config(own_control_plane.kubeconfig), field_manager="test") as client:
            informer = Informer(
                client, CONFIG_MAPS, ListOptions("default"), options=InformerOptions(watch_idle_timeout=1.0)
            )
            async with running(informer):
                own_control_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
                try:
                    await eventually(
                        lambda: "informer list or watch failed; the informer will retry" in caplog.messages,
                        "the informer notices the silence",
                    )
                finally:
                    own_control_plane.processes.signal("kube-apiserver", signal.SIGCONT)
                create_config_map(kube, "default", "after-the-silence")
                await eventually(lambda: "after-the-silence" in names(informer), "the cache is current again")
    assert "no response within 1 s" in str(caplog.records[0].__dict__["error"])


async def test_list_with_an_expired_continue_token_is_read_in_one_page(
    own_control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pages, etcd is compacted and the API server, which caches old versions, restarted: a real 410."""
    metrics, page, compacted = KubeMetrics(), KubeClient.page, False

    async def compact_before_second_page(self: KubeClient, *args: Any, **kwargs: Any) -> ListPage[Any]:
        nonlocal compacted
        if kwargs.get("continue_token") and not compacted:
            compacted = True
            await asyncio.to_thread(compact_and_restart, own_control_plane)
        return await page(self, *args, **kwargs)

    async with open_kube_client(
        load_cluster_config(own_control_plane.kubeconfig), field_manager="test", metrics=metrics
    ) as client:
        for number in range(6):
            metadata = {"namespace": "default", "name": f"page-{number}", "labels": {"app": "paged"}}
            await client.create(CONFIG_MAPS, {"metadata": metadata})
        monkeypatch.setattr(KubeClient, "page", compact_before_second_page)
        listed = await client.list(CONFIG_MAPS, ListOptions("default", label_selector="app=paged"), page_size=2)
    assert len(listed.items) == 6
    host = f"{own_control_plane.address}:{own_control_plane.port}"
    assert sample(metrics, "rest_client_requests_total", method="GET", code="410", host=host) == 1


def compact_and_restart(plane: ControlPlane) -> None:
    with plane.client() as kube:
        kube.create(ConfigMap(metadata=ObjectMeta(generateName="noise-", namespace="default")))
    compact(plane)
    plane.processes.stop("kube-apiserver", signal.SIGKILL)
    plane.start_apiserver()
    plane.wait_ready()
