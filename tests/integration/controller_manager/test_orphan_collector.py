"""What Kubernetes' garbage collector overlooks goes all the same. Here it does not run at all."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import Pod, ServiceAccount

from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.controller_informers import new_informers
from gpu_runtime.controller_manager.orphan_collector import OrphanCollector
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.metrics import new_registry
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import CONTROLLER_MANAGER_USER, UNIT, ControllerCluster, Object
from tests.integration.kube.polling import eventually

SMALL = {"specName": "g1.1", "image": "python", "template": {"ports": [{"name": "http", "port": 80}]}}
PODS: Object = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "x"}]},
}
SELECTED = {"matchLabels": {"app": "a"}}


@pytest.fixture
def cluster_without_gc(unmanaged_cluster: ControllerCluster, unmanaged_namespace: str) -> Iterator[ControllerCluster]:
    wait_until(
        lambda: not unmanaged_cluster.is_deleted(ServiceAccount, unmanaged_namespace, "default"),
        60,
        lambda: "pods need an account",
    )
    unmanaged_cluster.control_plane.processes.stop("kube-controller-manager")
    yield unmanaged_cluster
    unmanaged_cluster.control_plane.start_controller_manager()


def test_unit_replaces_orphaned_children_of_its_predecessor(
    cluster_without_gc: ControllerCluster, unmanaged_namespace: str
) -> None:
    cluster_without_gc.start_manager().wait_leading()
    first = cluster_without_gc.create(UNIT, unmanaged_namespace, "a", SMALL)["metadata"]["uid"]
    cluster_without_gc.wait_for(Deployment, unmanaged_namespace, "a", lambda found: owner_of(found) == first)
    cluster_without_gc.kube.delete(UNIT, "a", namespace=unmanaged_namespace)
    second = cluster_without_gc.create(UNIT, unmanaged_namespace, "a", SMALL)["metadata"]["uid"]
    cluster_without_gc.wait_for(Deployment, unmanaged_namespace, "a", lambda found: owner_of(found) == second)


async def test_only_replica_sets_without_deployment_and_unit_are_deleted(
    cluster_without_gc: ControllerCluster, unmanaged_namespace: str
) -> None:
    here = cluster_without_gc, unmanaged_namespace
    unit = cluster_without_gc.create(UNIT, unmanaged_namespace, "there", SMALL)["metadata"]["uid"]
    kept = create_deployment(*here, "kept")
    create_pod(*here, "stray", create_replica_set(*here, "stray", "kept", str(uuid.uuid4())), "gone")
    create_pod(*here, "left-on-purpose", create_replica_set(*here, "left-on-purpose", "kept", kept), "gone")
    create_pod(*here, "let-go", create_replica_set(*here, "let-go", "", ""), "gone")
    create_pod(*here, "wanted", create_replica_set(*here, "wanted", "kept", str(uuid.uuid4())), unit)
    now = [0.0]
    async with running_orphan_collector(cluster_without_gc, lambda: now[0]) as looking:

        async def left() -> set[str]:
            await looking.collect()
            found = cluster_without_gc.kube.list(ReplicaSet, namespace=unmanaged_namespace)
            return {str(each.metadata and each.metadata.name) for each in found}

        everything = {"stray", "left-on-purpose", "let-go", "wanted"}
        await eventually(lambda: len(looking.informers.pods.store) == 4, "all are known")
        assert await left() == everything
        now[0] = looking.grace_seconds - 1
        assert await left() == everything, "Kubernetes has its time"
        now[0] = looking.grace_seconds
        assert await left() == everything - {"stray"}


@asynccontextmanager
async def running_orphan_collector(cluster: ControllerCluster, clock: Any) -> AsyncIterator[OrphanCollector]:
    """Under the rights that the manifests give."""
    metrics, kubeconfig = (
        KubeMetrics(new_registry("test")),
        cluster.control_plane.kubeconfig_for("strays", CONTROLLER_MANAGER_USER),
    )
    async with open_kube_client(load_cluster_config(kubeconfig, None), field_manager="test", metrics=metrics) as client:
        caches = new_informers(client, metrics, 600)
        running = [asyncio.create_task(each.run()) for each in caches.all]
        for cache in caches.all:
            await cache.wait_for_sync()
        yield OrphanCollector(client, caches, clock)
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def owner_of(found: dict[str, Any]) -> str:
    return str(found["metadata"]["ownerReferences"][0]["uid"])


def create_deployment(cluster: ControllerCluster, namespace: str, name: str) -> str:
    """Gives the UID."""
    return create_object(cluster, namespace, Deployment, {"name": name}, {"selector": SELECTED, "template": PODS})


def create_replica_set(cluster: ControllerCluster, namespace: str, name: str, owner: str, owner_uid: str) -> Object:
    """Of a Deployment with that UID, or of none. Gives the reference for its pods."""
    owners = [owner_reference("Deployment", owner, owner_uid)] if owner else []
    spec = {"replicas": 1, "selector": SELECTED, "template": PODS}
    uid = create_object(cluster, namespace, ReplicaSet, {"name": name, "ownerReferences": owners}, spec)
    return owner_reference("ReplicaSet", name, uid)


def create_pod(cluster: ControllerCluster, namespace: str, name: str, owner: Object, unit: str) -> None:
    labels = {Label.MANAGED_BY: "gpu-runtime", Label.UNIT_UID: unit}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    create_object(cluster, namespace, Pod, metadata, PODS["spec"])


def create_object(cluster: ControllerCluster, namespace: str, kind: Any, metadata: Object, spec: Object) -> str:
    created = cluster.kube.create(kind.from_dict({"metadata": metadata, "spec": spec}), namespace=namespace)
    return str(created.metadata.uid)


def owner_reference(kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}
