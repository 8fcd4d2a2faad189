"""Orphans that the Kubernetes garbage collector missed are deleted. In these tests, it does not run at all."""

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
        lambda: "the default service account, which pods need, does not exist",
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
    target = cluster_without_gc, unmanaged_namespace
    unit = cluster_without_gc.create(UNIT, unmanaged_namespace, "existing", SMALL)["metadata"]["uid"]
    web = create_deployment(*target, "web")

    def create(name: str, owner: str, owner_uid: str, unit_uid: str) -> None:
        create_pod(*target, name, create_replica_set(*target, name, owner, owner_uid), unit_uid)

    create("orphan", "web", str(uuid.uuid4()), "deleted")
    create("with-deployment", "web", web, "deleted")
    create("without-owner", "", "", "deleted")
    create("with-unit", "web", str(uuid.uuid4()), unit)
    now = [0.0]
    async with running_orphan_collector(cluster_without_gc, lambda: now[0]) as collector:

        async def remaining() -> set[str]:
            await collector.collect()
            replica_sets = cluster_without_gc.kube.list(ReplicaSet, namespace=unmanaged_namespace)
            return {str(each.metadata and each.metadata.name) for each in replica_sets}

        def cached_pods() -> set[str]:
            pods = collector.informers.pods.store.all()
            return {each.metadata.name for each in pods if each.metadata.namespace == unmanaged_namespace}

        created = {"orphan", "with-deployment", "without-owner", "with-unit"}
        await eventually(lambda: cached_pods() == created, "the cache contains all pods")
        assert await remaining() == created
        now[0] = collector.grace_seconds - 1
        assert await remaining() == created, "the grace period has not elapsed"
        now[0] = collector.grace_seconds
        assert await remaining() == created - {"orphan"}


@asynccontextmanager
async def running_orphan_collector(cluster: ControllerCluster, clock: Any) -> AsyncIterator[OrphanCollector]:
    """An orphan collector with the permissions of the RBAC manifests."""
    metrics, kubeconfig = (
        KubeMetrics(new_registry("test")),
        cluster.control_plane.kubeconfig_for("orphan-collector", CONTROLLER_MANAGER_USER),
    )
    async with open_kube_client(load_cluster_config(kubeconfig, None), field_manager="test", metrics=metrics) as client:
        informers = new_informers(client, metrics, 600)
        tasks = [asyncio.create_task(each.run()) for each in informers.all]
        for informer in informers.all:
            await informer.wait_for_sync()
        yield OrphanCollector(client, informers, clock)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def owner_of(found: dict[str, Any]) -> str:
    return str(found["metadata"]["ownerReferences"][0]["uid"])


def create_deployment(cluster: ControllerCluster, namespace: str, name: str) -> str:
    """Create a Deployment and return its UID."""
    return create_object(cluster, namespace, Deployment, {"name": name}, {"selector": SELECTED, "template": PODS})


def create_replica_set(cluster: ControllerCluster, namespace: str, name: str, owner: str, owner_uid: str) -> Object:
    """Create a ReplicaSet that a Deployment with this UID owns, or no one. Return the owner reference for its pods."""
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
