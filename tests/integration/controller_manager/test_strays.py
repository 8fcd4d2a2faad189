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
from gpu_runtime.controller_manager.controller_informers import open_caches
from gpu_runtime.controller_manager.orphan_collector import Strays
from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.metrics import new_registry
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import IDENTITY, UNIT, Cluster, Object
from tests.integration.kube.waiting import eventually

SMALL = {"specName": "g1.1", "image": "python", "template": {"ports": [{"name": "http", "port": 80}]}}
PODS: Object = {
    "metadata": {"labels": {"app": "a"}},
    "spec": {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "x"}]},
}
SELECTED = {"matchLabels": {"app": "a"}}


@pytest.fixture
def uncollected(spare: Cluster, spare_namespace: str) -> Iterator[Cluster]:
    wait_until(lambda: not spare.gone(ServiceAccount, spare_namespace, "default"), 60, lambda: "pods need an account")
    spare.plane.processes.stop("kube-controller-manager")
    yield spare
    spare.plane.start_controller_manager()


def test_a_unit_is_not_kept_from_its_name_by_what_an_earlier_one_left(
    uncollected: Cluster, spare_namespace: str
) -> None:
    uncollected.manager().wait_leading()
    first = uncollected.create(UNIT, spare_namespace, "a", SMALL)["metadata"]["uid"]
    uncollected.wait(Deployment, spare_namespace, "a", lambda found: owner_of(found) == first)
    uncollected.kube.delete(UNIT, "a", namespace=spare_namespace)
    second = uncollected.create(UNIT, spare_namespace, "a", SMALL)["metadata"]["uid"]
    uncollected.wait(Deployment, spare_namespace, "a", lambda found: owner_of(found) == second)


async def test_a_pod_whose_deployment_and_unit_are_gone_goes_and_no_other(
    uncollected: Cluster, spare_namespace: str
) -> None:
    here = uncollected, spare_namespace
    unit = uncollected.create(UNIT, spare_namespace, "there", SMALL)["metadata"]["uid"]
    kept = deployment(*here, "kept")
    pod(*here, "stray", replica_set(*here, "stray", "kept", str(uuid.uuid4())), "gone")
    pod(*here, "left-on-purpose", replica_set(*here, "left-on-purpose", "kept", kept), "gone")
    pod(*here, "let-go", replica_set(*here, "let-go", "", ""), "gone")
    pod(*here, "wanted", replica_set(*here, "wanted", "kept", str(uuid.uuid4())), unit)
    now = [0.0]
    async with strays(uncollected, lambda: now[0]) as looking:

        async def left() -> set[str]:
            await looking.once()
            found = uncollected.kube.list(ReplicaSet, namespace=spare_namespace)
            return {str(each.metadata and each.metadata.name) for each in found}

        everything = {"stray", "left-on-purpose", "let-go", "wanted"}
        await eventually(lambda: len(looking.caches.pods.store) == 4, "all are known")
        assert await left() == everything
        now[0] = looking.patience - 1
        assert await left() == everything, "Kubernetes has its time"
        now[0] = looking.patience
        assert await left() == everything - {"stray"}


@asynccontextmanager
async def strays(cluster: Cluster, clock: Any) -> AsyncIterator[Strays]:
    """Under the rights that the manifests give."""
    metrics, kubeconfig = KubeMetrics(new_registry("test")), cluster.plane.kubeconfig_for("strays", IDENTITY)
    async with connect(load_config(kubeconfig, None), field_manager="test", metrics=metrics) as client:
        caches = open_caches(client, metrics, 600)
        running = [asyncio.create_task(each.run()) for each in caches.all]
        for cache in caches.all:
            await cache.synced()
        yield Strays(client, caches, clock)
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def owner_of(found: dict[str, Any]) -> str:
    return str(found["metadata"]["ownerReferences"][0]["uid"])


def deployment(cluster: Cluster, namespace: str, name: str) -> str:
    """Gives the UID."""
    return made(cluster, namespace, Deployment, {"name": name}, {"selector": SELECTED, "template": PODS})


def replica_set(cluster: Cluster, namespace: str, name: str, owner: str, owner_uid: str) -> Object:
    """Of a Deployment with that UID, or of none. Gives the reference for its pods."""
    owners = [reference("Deployment", owner, owner_uid)] if owner else []
    spec = {"replicas": 1, "selector": SELECTED, "template": PODS}
    uid = made(cluster, namespace, ReplicaSet, {"name": name, "ownerReferences": owners}, spec)
    return reference("ReplicaSet", name, uid)


def pod(cluster: Cluster, namespace: str, name: str, owner: Object, unit: str) -> None:
    labels = {Label.MANAGED_BY: "gpu-runtime", Label.UNIT_UID: unit}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    made(cluster, namespace, Pod, metadata, PODS["spec"])


def made(cluster: Cluster, namespace: str, kind: Any, metadata: Object, spec: Object) -> str:
    created = cluster.kube.create(kind.from_dict({"metadata": metadata, "spec": spec}), namespace=namespace)
    return str(created.metadata.uid)


def reference(kind: str, name: str, uid: str) -> Object:
    return {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": True}
