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
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.supervisor_client import wait_until
from tests.integration.activator.activator_harness import ActivatorHarness, SidecarFleet, nats_settings, until
from tests.integration.controller_manager.conftest import (
    POOL,
    STORAGE,
    UNIT,
    ControllerCluster,
    Object,
    ready_condition,
)
from tests.integration.controller_manager.test_orphan_collector import create_pod, create_replica_set
from tests.integration.privilege.audited_platform import OTHER_NAMESPACE, SYSTEM_NAMESPACE, AuditedPlatform

OPERATION = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "Operation", "operations")
SERVING_TEMPLATE = {"command": ["python"], "ports": [{"name": "http", "port": 8080}]}
WEB_SPEC = {"specName": "g1.1", "image": "python:3.12", "memory": "1Gi", "gpu": 1, "template": SERVING_TEMPLATE}
NAMESPACE_QUERY = f"?namespace={OTHER_NAMESPACE}"


def run_api_requests(platform: AuditedPlatform) -> None:
    """Storages, stock, units from stock and pools; and an operation is forgotten."""
    ask, cluster = partial(_expect_status, platform), platform.cluster
    old = _create_expired_operation(cluster)
    ask(201, "POST", "gpu-storages", {"name": "asked", "namespace": OTHER_NAMESPACE, "size": "1Gi"})
    ask(200, "PUT", f"gpu-storages/asked{NAMESPACE_QUERY}", {"size": "2Gi"})
    seeding = {"operationID": "seed", "specName": "g1.1", "memory": "1Gi", "gpu": 1, "replicas": 2}
    ask(202, "POST", "operator/stock-units", seeding)
    ask(200, "POST", "operator/stock-units", seeding)
    mounts = {"storageMounts": [{"name": "asked", "mountPath": "/data"}]}
    unit = {
        "operationID": "make",
        "name": "asked",
        "namespace": OTHER_NAMESPACE,
        "specName": "g1.1",
        "image": "python:3.12",
    }
    _wait_until(lambda: platform.request("POST", "gpu-units", unit | mounts).status == 201, "a unit is made from stock")
    ask(409, "POST", "gpu-units", unit | {"operationID": "none", "name": "none", "specName": "g9.9"})
    ask(200, "PUT", f"gpu-units/asked{NAMESPACE_QUERY}", {"template": SERVING_TEMPLATE})
    for verb in ("stop", "start"):
        ask(200, "POST", f"gpu-units/asked/{verb}{NAMESPACE_QUERY}")
    ask(204, "DELETE", f"gpu-units/asked{NAMESPACE_QUERY}")
    _wait_until(
        lambda: platform.request("DELETE", f"gpu-storages/asked{NAMESPACE_QUERY}").status == 204,
        "its storage is released",
    )
    pool = {"operationID": "pool", "name": "asked", "namespace": OTHER_NAMESPACE, "specName": "g1.1", "replicas": 1}
    ask(202, "POST", "operator/stockpools", pool)
    _wait_until(lambda: not cluster.is_deleted(POOL, OTHER_NAMESPACE, "asked"), "the pool is there")
    ask(204, "DELETE", f"operator/stockpools/asked{NAMESPACE_QUERY}")
    _wait_until(lambda: cluster.is_deleted(OPERATION, SYSTEM_NAMESPACE, old), "an old operation is forgotten")


def run_drift_and_deletion(platform: AuditedPlatform) -> None:
    """Units, storages and a pool are kept true by the controller manager, whatever others do to what it made."""
    cluster = platform.cluster
    _cause_invalid_spec_twice(cluster)
    cluster.create_ready_storage(OTHER_NAMESPACE, "data")
    mounts = {"storageMounts": [{"name": "data", "mountPath": "/data"}]}
    function = {"serverless": {"enabled": True, "requestID": "web"}}
    cluster.create(UNIT, OTHER_NAMESPACE, "web", WEB_SPEC | mounts | function)
    cluster.create(POOL, OTHER_NAMESPACE, "warm", WEB_SPEC | {"replicas": 1})
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "web", "UnitReady")
    cluster.wait_reason(POOL, OTHER_NAMESPACE, "warm", "DeploymentReady")
    for kind in (Deployment, Service, NetworkPolicy):
        _remove_managed_label(cluster, kind, "web")
        _remove_owner(cluster, kind, "web")
    _remove_managed_label(cluster, PersistentVolumeClaim, "data")
    cluster.merge_patch(UNIT, OTHER_NAMESPACE, "web", {"spec": {"template": {"ports": []}, "storageMounts": []}})
    _wait_until(lambda: cluster.is_deleted(Service, OTHER_NAMESPACE, "web"), "a Service without ports goes")
    _create_orphaned_attachment(cluster)
    _create_pending_storage(cluster)
    cluster.kube.delete(STORAGE, "data", namespace=OTHER_NAMESPACE)
    _wait_until(lambda: cluster.is_deleted(STORAGE, OTHER_NAMESPACE, "data"), "a storage goes with its claim")
    cluster.wait_for(UNIT, OTHER_NAMESPACE, "web", _is_current_and_ready)
    _wait_until(
        lambda: _has_repeated_event(cluster, "troubled", "InvalidSpec"), "a trouble that comes again is counted"
    )


def run_invocations(platform: AuditedPlatform) -> None:
    """One has a worker from stock, which goes; the workers of the other fail, again and again."""
    asyncio.run(_run_invocations(platform))


async def _run_invocations(platform: AuditedPlatform) -> None:
    url, cluster = platform.nats_account.url, platform.cluster
    kube = AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))
    async with connect_nats(ConnectionOptions((url,), backoff=Backoff(initial_seconds=0.05, max_seconds=0.2))) as nats:
        plane = ActivatorHarness(
            platform.control_plane, kube, nats, stream_topology(nats_settings(url)), url, platform.api.url("")
        )
        failing = {"enabled": True, "requestID": "failing", "minAvailableCount": 1, "maxWorkers": 1}
        spec = WEB_SPEC | {"specName": "cold", "memory": "much", "running": False, "serverless": failing}
        cluster.create(UNIT, OTHER_NAMESPACE, "failing", spec)
        _seed_stock(platform, "warm")
        await plane.create_function("warm", maxWorkers=1)
        async with plane.running_result_store(), SidecarFleet(plane, "warm").running():
            await plane.wait_result(await plane.accept_invocation("warm"))
            await until(lambda: _is_scaled_to_zero(plane), "the worker goes, and its stock comes back")
        await until(lambda: _event_is_repeated(cluster), "a failure that comes again is counted")
    await kube.close()


async def _is_scaled_to_zero(plane: ActivatorHarness) -> bool:
    return not await plane.list_workers("warm") and len(await plane.list_units("runtime-stock", "warm")) == 1


async def _event_is_repeated(cluster: ControllerCluster) -> bool:
    return _has_repeated_event(cluster, "failing", "WorkerFailed")


def run_orphan_collection(platform: AuditedPlatform) -> None:
    """A ReplicaSet whose Deployment is gone, and its pod. Nothing else goes on meanwhile: Kubernetes' own controllers
    would be faster."""
    plane, here = platform.control_plane, (platform.cluster, OTHER_NAMESPACE)
    plane.processes.stop("kube-controller-manager")
    create_pod(*here, "stray", create_replica_set(*here, "stray", "gone", str(uuid.uuid4())), "gone")
    _wait_until(lambda: platform.cluster.is_deleted(ReplicaSet, OTHER_NAMESPACE, "stray"), "a stray goes")
    plane.start_controller_manager()


def _expect_status(platform: AuditedPlatform, status: int, *request: Any) -> None:
    reply = platform.request(*request)
    assert reply.status == status, (request, reply)


def _seed_stock(platform: AuditedPlatform, flavor: str) -> None:
    seeding = {"operationID": f"seed-{flavor}", "specName": flavor, "memory": "1Gi", "gpu": 1, "replicas": 1}
    _expect_status(platform, 202, "POST", "operator/stock-units", seeding)
    ready = f"operator/stock-units?specName={flavor}&phase=Ready"
    _wait_until(lambda: len(platform.request("GET", ready).json["data"]) == 1, "stock is Ready")


def _create_expired_operation(cluster: ControllerCluster) -> str:
    """An operation that ended long ago."""
    name, target = "long-ago", {"kind": "GPUUnit", "namespace": OTHER_NAMESPACE}
    spec = {"operationID": name, "type": "SeedStock", "requestHash": "0" * 64, "target": target}
    cluster.create(OPERATION, SYSTEM_NAMESPACE, name, spec, labels={Label.CREATED_HOUR: "2020-01-01T00"})
    cluster.patch_status(
        OPERATION, SYSTEM_NAMESPACE, name, {"state": "Succeeded", "finishedAt": "2020-01-01T00:00:00Z"}
    )
    return name


def _cause_invalid_spec_twice(cluster: ControllerCluster) -> None:
    """The same trouble twice."""
    cluster.create(UNIT, OTHER_NAMESPACE, "troubled", WEB_SPEC | {"memory": "much"})
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "troubled", "InvalidSpec")
    cluster.merge_patch(UNIT, OTHER_NAMESPACE, "troubled", {"spec": {"memory": "1Gi"}})
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "troubled", "UnitReady")
    cluster.merge_patch(UNIT, OTHER_NAMESPACE, "troubled", {"spec": {"memory": "much"}})


def _has_repeated_event(cluster: ControllerCluster, name: str, reason: str) -> bool:
    told = [each for each in cluster.list_objects(Event, OTHER_NAMESPACE) if each["involvedObject"]["name"] == name]
    return any(each["reason"] == reason and each.get("series", {}).get("count", 1) > 1 for each in told)


def _is_current_and_ready(unit: Object) -> bool:
    current = unit["status"]["observedGeneration"] == unit["metadata"]["generation"]
    return current and ready_condition(unit).get("reason") == "UnitReady"


def _remove_managed_label(cluster: ControllerCluster, kind: Any, name: str) -> None:
    """The caches no longer see it, so it is found by asking."""
    cluster.merge_patch(kind, OTHER_NAMESPACE, name, {"metadata": {"labels": {Label.MANAGED_BY: None}}})
    cluster.wait_for(kind, OTHER_NAMESPACE, name, lambda found: Label.MANAGED_BY in found["metadata"].get("labels", {}))


def _remove_owner(cluster: ControllerCluster, kind: Any, name: str) -> None:
    cluster.merge_patch(kind, OTHER_NAMESPACE, name, {"metadata": {"ownerReferences": None}})
    cluster.wait_for(kind, OTHER_NAMESPACE, name, lambda found: bool(found["metadata"].get("ownerReferences")))


def _create_orphaned_attachment(cluster: ControllerCluster) -> None:
    """By an operation that is forgotten, for a unit that never came."""
    held = {"attachedTo": {"unit": "nobody", "operationID": "forgotten", "attempt": 1}}
    cluster.create(STORAGE, OTHER_NAMESPACE, "held", {"size": "1Gi", **held})
    cluster.wait_for(STORAGE, OTHER_NAMESPACE, "held", lambda found: "attachedTo" not in found["spec"])


def _create_pending_storage(cluster: ControllerCluster) -> None:
    cluster.create_storage_class("slow")
    cluster.create(STORAGE, OTHER_NAMESPACE, "slow", {"size": "1Gi", "storageClassName": "slow"})
    cluster.wait_reason(STORAGE, OTHER_NAMESPACE, "slow", "ClaimPending")


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, 60, lambda: f"not within 60 s: {what}", interval_seconds=0.2)
