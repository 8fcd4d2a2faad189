"""Everything that the processes do in Kubernetes, the rare things among it."""

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from lightkube import AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import Event, PersistentVolumeClaim, Service
from lightkube.resources.networking_v1 import NetworkPolicy

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.process.nats_setup import topology_of
from localcluster.supervisor_client import wait_until
from tests.integration.activator.plane import Fleet, Plane, nats_settings, until
from tests.integration.controller_manager.conftest import POOL, STORAGE, UNIT, Cluster, Object, ready
from tests.integration.controller_manager.test_strays import pod, replica_set
from tests.integration.privilege.platform import ELSEWHERE, SYSTEM, Platform

OPERATION = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "Operation", "operations")
SERVED = {"command": ["python"], "ports": [{"name": "http", "port": 8080}]}
WEB = {"specName": "g1.1", "image": "python:3.12", "memory": "1Gi", "gpu": 1, "template": SERVED}
HERE = f"?namespace={ELSEWHERE}"


def callers_ask_the_api(platform: Platform) -> None:
    """Storages, stock, units from stock and pools; and an operation is forgotten."""
    ask, cluster = partial(_ask, platform), platform.cluster
    old = _forgettable(cluster)
    ask(201, "POST", "gpu-storages", {"name": "asked", "namespace": ELSEWHERE, "size": "1Gi"})
    ask(200, "PUT", f"gpu-storages/asked{HERE}", {"size": "2Gi"})
    seeding = {"operationID": "seed", "specName": "g1.1", "memory": "1Gi", "gpu": 1, "replicas": 2}
    ask(202, "POST", "operator/stock-units", seeding)
    ask(200, "POST", "operator/stock-units", seeding)
    mounts = {"storageMounts": [{"name": "asked", "mountPath": "/data"}]}
    unit = {"operationID": "make", "name": "asked", "namespace": ELSEWHERE, "specName": "g1.1", "image": "python:3.12"}
    _until(lambda: platform.ask("POST", "gpu-units", unit | mounts).status == 201, "a unit is made from stock")
    ask(409, "POST", "gpu-units", unit | {"operationID": "none", "name": "none", "specName": "g9.9"})
    ask(200, "PUT", f"gpu-units/asked{HERE}", {"template": SERVED})
    for verb in ("stop", "start"):
        ask(200, "POST", f"gpu-units/asked/{verb}{HERE}")
    ask(204, "DELETE", f"gpu-units/asked{HERE}")
    _until(lambda: platform.ask("DELETE", f"gpu-storages/asked{HERE}").status == 204, "its storage is released")
    pool = {"operationID": "pool", "name": "asked", "namespace": ELSEWHERE, "specName": "g1.1", "replicas": 1}
    ask(202, "POST", "operator/stockpools", pool)
    _until(lambda: not cluster.gone(POOL, ELSEWHERE, "asked"), "the pool is there")
    ask(204, "DELETE", f"operator/stockpools/asked{HERE}")
    _until(lambda: cluster.gone(OPERATION, SYSTEM, old), "an old operation is forgotten")


def the_world_drifts(platform: Platform) -> None:
    """Units, storages and a pool are kept true by the controller manager, whatever others do to what it made."""
    cluster = platform.cluster
    _trouble(cluster)
    cluster.storage(ELSEWHERE, "data")
    mounts = {"storageMounts": [{"name": "data", "mountPath": "/data"}]}
    function = {"serverless": {"enabled": True, "requestID": "web"}}
    cluster.create(UNIT, ELSEWHERE, "web", WEB | mounts | function)
    cluster.create(POOL, ELSEWHERE, "warm", WEB | {"replicas": 1})
    cluster.wait_reason(UNIT, ELSEWHERE, "web", "UnitReady")
    cluster.wait_reason(POOL, ELSEWHERE, "warm", "DeploymentReady")
    for kind in (Deployment, Service, NetworkPolicy):
        _loses_its_label(cluster, kind, "web")
        _loses_its_owner(cluster, kind, "web")
    _loses_its_label(cluster, PersistentVolumeClaim, "data")
    cluster.patch(UNIT, ELSEWHERE, "web", {"spec": {"template": {"ports": []}, "storageMounts": []}})
    _until(lambda: cluster.gone(Service, ELSEWHERE, "web"), "a Service without ports goes")
    _held_for_nobody(cluster)
    _waits_for_its_volume(cluster)
    cluster.kube.delete(STORAGE, "data", namespace=ELSEWHERE)
    _until(lambda: cluster.gone(STORAGE, ELSEWHERE, "data"), "a storage goes with its claim")
    cluster.wait(UNIT, ELSEWHERE, "web", _is_ready_as_it_is)
    _until(lambda: _repeated(cluster, "troubled", "InvalidSpec"), "a trouble that comes again is counted")


def functions_are_called(platform: Platform) -> None:
    """One has a worker from stock, which goes; the workers of the other fail, again and again."""
    asyncio.run(_functions(platform))


async def _functions(platform: Platform) -> None:
    url, cluster = platform.nats.url, platform.cluster
    kube = AsyncClient(config=KubeConfig.from_file(platform.plane.kubeconfig))
    async with connection(Options((url,), backoff=Backoff(first=0.05, longest=0.2))) as nats:
        plane = Plane(platform.plane, kube, nats, topology_of(nats_settings(url)), url, platform.api.url(""))
        failing = {"enabled": True, "requestID": "failing", "minAvailableCount": 1, "maxWorkers": 1}
        spec = WEB | {"specName": "cold", "memory": "much", "running": False, "serverless": failing}
        cluster.create(UNIT, ELSEWHERE, "failing", spec)
        _seed(platform, "warm")
        await plane.function("warm", maxWorkers=1)
        async with plane.storing(), Fleet(plane, "warm").running():
            await plane.result(await plane.accept("warm"))
            await until(lambda: _came_and_went(plane), "the worker goes, and its stock comes back")
        await until(lambda: _told_again(cluster), "a failure that comes again is counted")
    await kube.close()


async def _came_and_went(plane: Plane) -> bool:
    return not await plane.workers("warm") and len(await plane.units("runtime-stock", "warm")) == 1


async def _told_again(cluster: Cluster) -> bool:
    return _repeated(cluster, "failing", "WorkerFailed")


def the_collector_overlooks(platform: Platform) -> None:
    """A ReplicaSet whose Deployment is gone, and its pod. Nothing else goes on meanwhile: Kubernetes' own controllers
    would be faster."""
    plane, here = platform.plane, (platform.cluster, ELSEWHERE)
    plane.processes.stop("kube-controller-manager")
    pod(*here, "stray", replica_set(*here, "stray", "gone", str(uuid.uuid4())), "gone")
    _until(lambda: platform.cluster.gone(ReplicaSet, ELSEWHERE, "stray"), "a stray goes")
    plane.start_controller_manager()


def _ask(platform: Platform, status: int, *request: Any) -> None:
    reply = platform.ask(*request)
    assert reply.status == status, (request, reply)


def _seed(platform: Platform, flavour: str) -> None:
    seeding = {"operationID": f"seed-{flavour}", "specName": flavour, "memory": "1Gi", "gpu": 1, "replicas": 1}
    _ask(platform, 202, "POST", "operator/stock-units", seeding)
    ready = f"operator/stock-units?specName={flavour}&phase=Ready"
    _until(lambda: len(platform.ask("GET", ready).json["data"]) == 1, "stock is Ready")


def _forgettable(cluster: Cluster) -> str:
    """An operation that ended long ago."""
    name, target = "long-ago", {"kind": "GPUUnit", "namespace": ELSEWHERE}
    spec = {"operationID": name, "type": "SeedStock", "requestHash": "0" * 64, "target": target}
    cluster.create(OPERATION, SYSTEM, name, spec, labels={Label.RECORDED: "2020-01-01T00"})
    cluster.status(OPERATION, SYSTEM, name, {"state": "Succeeded", "finishedAt": "2020-01-01T00:00:00Z"})
    return name


def _trouble(cluster: Cluster) -> None:
    """The same trouble twice."""
    cluster.create(UNIT, ELSEWHERE, "troubled", WEB | {"memory": "much"})
    cluster.wait_reason(UNIT, ELSEWHERE, "troubled", "InvalidSpec")
    cluster.patch(UNIT, ELSEWHERE, "troubled", {"spec": {"memory": "1Gi"}})
    cluster.wait_reason(UNIT, ELSEWHERE, "troubled", "UnitReady")
    cluster.patch(UNIT, ELSEWHERE, "troubled", {"spec": {"memory": "much"}})


def _repeated(cluster: Cluster, name: str, reason: str) -> bool:
    told = [each for each in cluster.all(Event, ELSEWHERE) if each["involvedObject"]["name"] == name]
    return any(each["reason"] == reason and each.get("series", {}).get("count", 1) > 1 for each in told)


def _is_ready_as_it_is(unit: Object) -> bool:
    current = unit["status"]["observedGeneration"] == unit["metadata"]["generation"]
    return current and ready(unit).get("reason") == "UnitReady"


def _loses_its_label(cluster: Cluster, kind: Any, name: str) -> None:
    """The caches no longer see it, so it is found by asking."""
    cluster.patch(kind, ELSEWHERE, name, {"metadata": {"labels": {Label.MANAGED_BY: None}}})
    cluster.wait(kind, ELSEWHERE, name, lambda found: Label.MANAGED_BY in found["metadata"].get("labels", {}))


def _loses_its_owner(cluster: Cluster, kind: Any, name: str) -> None:
    cluster.patch(kind, ELSEWHERE, name, {"metadata": {"ownerReferences": None}})
    cluster.wait(kind, ELSEWHERE, name, lambda found: bool(found["metadata"].get("ownerReferences")))


def _held_for_nobody(cluster: Cluster) -> None:
    """By an operation that is forgotten, for a unit that never came."""
    held = {"attachedTo": {"unit": "nobody", "operationID": "forgotten", "attempt": 1}}
    cluster.create(STORAGE, ELSEWHERE, "held", {"size": "1Gi", **held})
    cluster.wait(STORAGE, ELSEWHERE, "held", lambda found: "attachedTo" not in found["spec"])


def _waits_for_its_volume(cluster: Cluster) -> None:
    cluster.storage_class("slow")
    cluster.create(STORAGE, ELSEWHERE, "slow", {"size": "1Gi", "storageClassName": "slow"})
    cluster.wait_reason(STORAGE, ELSEWHERE, "slow", "ClaimPending")


def _until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, 60, lambda: f"not within 60 s: {what}", every=0.2)
