"""The client writes to and reads from a real API server, and maps its errors to error classes."""

from typing import Any

import msgspec
import pytest
from lightkube import Client as LightkubeClient
from lightkube.resources.apps_v1 import Deployment as LightDeployment
from lightkube.resources.core_v1 import ConfigMap

from gpu_runtime.kube.builtin_kinds import PODS
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.errors import (
    KubeAlreadyExists,
    KubeConflict,
    KubeForbidden,
    KubeInvalid,
    KubeNoKindMatch,
    KubeNotFound,
)
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from localcluster.control_plane import ControlPlane
from tests.integration.kube.polling import CONFIG_MAPS
from tests.kube_kinds import DEPLOYMENTS, NODES


class Ingress(KubeObject, frozen=True, kw_only=True):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


INGRESSES = ApiResource("networking.k8s.io", "v1", "Ingress", "ingresses", Ingress)


def load_balancer(hostname: str) -> dict[str, Any]:
    return {"loadBalancer": {"ingress": [{"hostname": hostname}]}}


def config_map(namespace: str, name: str, **data: str) -> Manifest:
    return {"metadata": {"namespace": namespace, "name": name, "labels": {"made": "here"}}, "data": data}


def deployment(namespace: str, name: str, replicas: int = 0, image: str = "anything:1") -> Manifest:
    pod = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": image}]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": pod}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


async def test_object_create_read_update_delete(client: KubeClient, kube: LightkubeClient, namespace: str) -> None:
    key = ObjectKey(namespace, "a")
    created = await client.create(CONFIG_MAPS, config_map(namespace, "a", n="1"))
    assert await client.get(CONFIG_MAPS, key) == created
    await client.merge_patch(CONFIG_MAPS, key, {"data": {"n": "3", "m": "2"}})
    assert kube.get(ConfigMap, "a", namespace=namespace).data == {"n": "3", "m": "2"}
    await client.delete(CONFIG_MAPS, key, uid=created.metadata.uid)
    with pytest.raises(KubeNotFound):
        await client.get(CONFIG_MAPS, key)


async def test_write_with_an_old_version_is_a_conflict(
    client: KubeClient, kube: LightkubeClient, namespace: str
) -> None:
    key = ObjectKey(namespace, "a")
    first = await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    version = first.metadata.resource_version
    with pytest.raises(KubeAlreadyExists):
        await client.create(CONFIG_MAPS, config_map(namespace, "a"))
    manifest = config_map(namespace, "a", by="us")
    manifest["metadata"]["resourceVersion"] = version
    second = await client.replace(CONFIG_MAPS, manifest)
    with pytest.raises(KubeConflict):
        await client.replace(CONFIG_MAPS, manifest)
    with pytest.raises(KubeConflict):
        await client.merge_patch(CONFIG_MAPS, key, {"data": {"by": "them"}}, resource_version=version)
    with pytest.raises(KubeConflict):
        await client.delete(CONFIG_MAPS, key, resource_version=version)
    with pytest.raises(KubeConflict):
        await client.delete(CONFIG_MAPS, key, uid="00000000-0000-0000-0000-000000000000")
    assert kube.get(ConfigMap, "a", namespace=namespace).data == {"by": "us"}
    await client.delete(CONFIG_MAPS, key, uid=second.metadata.uid, resource_version=second.metadata.resource_version)


async def test_unknown_fields_and_invalid_values_are_rejected_by_field(client: KubeClient, namespace: str) -> None:
    typo = deployment(namespace, "web")
    typo["spec"]["replicsa"] = 3
    with pytest.raises(KubeInvalid, match=r'unknown field "spec\.replicsa"'):
        await client.create(DEPLOYMENTS, typo)
    await client.create(DEPLOYMENTS, deployment(namespace, "web"))
    with pytest.raises(KubeInvalid, match=r'unknown field "spec\.replicsa"'):
        await client.merge_patch(DEPLOYMENTS, ObjectKey(namespace, "web"), {"spec": {"replicsa": 3}})
    with pytest.raises(KubeInvalid) as rejection:
        await client.merge_patch(DEPLOYMENTS, ObjectKey(namespace, "web"), {"spec": {"replicas": -1}})
    assert [cause.field for cause in rejection.value.causes] == ["spec.replicas"]


async def test_status_subresource_changes_only_the_status(client: KubeClient, namespace: str) -> None:
    """The test uses an Ingress, because no controller of the control plane writes its status at the same time."""
    backend = {"service": {"name": "web", "port": {"number": 80}}}
    metadata = {"namespace": namespace, "name": "web"}
    created = await client.create(INGRESSES, {"metadata": metadata, "spec": {"defaultBackend": backend}})
    patch = {"spec": {"ingressClassName": "other"}, "status": load_balancer("a.example")}
    patched = await client.merge_patch(INGRESSES, created.metadata.key, patch, subresource="status")
    assert (patched.spec, patched.status) == (created.spec, load_balancer("a.example"))
    manifest: Manifest = {
        "metadata": metadata | {"resourceVersion": patched.metadata.resource_version},
        "spec": {"defaultBackend": backend, "ingressClassName": "other"},
        "status": load_balancer("b.example"),
    }
    replaced = await client.replace(INGRESSES, manifest, subresource="status")
    assert (replaced.spec, replaced.status) == (created.spec, load_balancer("b.example"))


async def test_list_reads_all_pages(control_plane: ControlPlane, namespace: str) -> None:
    metrics = KubeMetrics()
    async with open_kube_client(
        load_cluster_config(control_plane.kubeconfig), field_manager="test", metrics=metrics
    ) as client:
        for number in range(7):
            await client.create(CONFIG_MAPS, config_map(namespace, f"m-{number}"))
        listed = await client.list(CONFIG_MAPS, ListOptions(namespace, label_selector="made=here"), page_size=3)
        assert [item.metadata.name for item in listed.items] == [f"m-{number}" for number in range(7)]
        labels = {"method": "GET", "code": "200", "host": f"{control_plane.address}:{control_plane.port}"}
        assert metrics.registry.get_sample_value("rest_client_requests_total", labels) == 3
        sizes = [
            len(page.items)
            async for page in client.pages(CONFIG_MAPS, ListOptions(namespace, "made=here"), page_size=4)
        ]
        assert sizes == [4, 3]
        named = await client.list(CONFIG_MAPS, ListOptions(namespace, field_selector="metadata.name=m-5"))
        assert [item.metadata.name for item in named.items] == ["m-5"]


async def test_forbidden_and_unserved_kinds_have_their_own_errors(
    control_plane: ControlPlane, client: KubeClient
) -> None:
    unprivileged = load_cluster_config(control_plane.kubeconfig_for("unprivileged", "unprivileged"))
    async with open_kube_client(unprivileged, field_manager="test") as unprivileged_client:
        with pytest.raises(KubeForbidden, match='User "unprivileged" cannot list resource "pods"'):
            await unprivileged_client.list(PODS)
    unknown = ApiResource("example.org", "v1", "Thing", "things", KubeObject)
    with pytest.raises(KubeNoKindMatch):
        await client.get(unknown, ObjectKey("default", "a"))
    with pytest.raises(KubeNoKindMatch):
        await client.list(unknown)


async def test_cluster_scoped_kinds_need_no_namespace(client: KubeClient) -> None:
    nodes = await client.list(NODES)
    assert nodes.items[0].status.allocatable["nvidia.com/gpu"] == "8"
    assert (await client.get(NODES, nodes.items[0].metadata.key)).metadata.uid == nodes.items[0].metadata.uid
    assert (await client.server_version()).startswith("v1.")


async def test_models_decode_only_declared_fields(client: KubeClient, kube: LightkubeClient, namespace: str) -> None:
    await client.create(DEPLOYMENTS, deployment(namespace, "web"))
    found = await client.get(DEPLOYMENTS, ObjectKey(namespace, "web"))
    assert kube.get(LightDeployment, "web", namespace=namespace).metadata.managedFields  # type: ignore[union-attr]
    assert b"managedFields" not in msgspec.json.encode(found)
