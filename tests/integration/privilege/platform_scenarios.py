"""Makes the processes of the platform use every Kubernetes right that they need, also the rarely used ones."""

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from signal import Signals
from typing import Any

from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import Event, PersistentVolumeClaim, Pod, Service
from lightkube.resources.networking_v1 import NetworkPolicy

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.well_known import Annotation, Label, function_queue_name
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.supervisor_client import wait_until
from tests.integration.activator.activator_harness import ActivatorHarness, SidecarFleet, nats_settings, until
from tests.integration.controller_manager.conftest import (
    POOL,
    QUEUE,
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
FULL_NODE_GPUS = 37
"""Only one node has this number of GPUs."""


def run_api_requests(platform: AuditedPlatform) -> None:
    """Create, change and delete storages, stock, units and pools through the API. An expired operation is evicted."""
    expect, cluster = partial(_expect_status, platform), platform.cluster
    expired = _create_expired_operation(cluster)
    expect(201, "POST", "gpu-storages", {"name": "from-api", "namespace": OTHER_NAMESPACE, "size": "1Gi"})
    expect(200, "PUT", f"gpu-storages/from-api{NAMESPACE_QUERY}", {"size": "2Gi"})
    seeding = {"operationID": "seed", "specName": "g1.1", "memory": "1Gi", "gpu": 1, "replicas": 2}
    expect(202, "POST", "operator/stock-units", seeding)
    expect(200, "POST", "operator/stock-units", seeding)
    mounts = {"storageMounts": [{"name": "from-api", "mountPath": "/data"}]}
    unit = {
        "operationID": "make",
        "name": "from-api",
        "namespace": OTHER_NAMESPACE,
        "specName": "g1.1",
        "image": "python:3.12",
        "stopUnlessExtendedSeconds": 3600,
    }
    _wait_until(
        lambda: platform.request("POST", "gpu-units", unit | mounts).status == 201, "a unit is created from stock"
    )
    expect(409, "POST", "gpu-units", unit | {"operationID": "none", "name": "none", "specName": "g9.9"})
    expect(200, "PUT", f"gpu-units/from-api{NAMESPACE_QUERY}", {"template": SERVING_TEMPLATE})
    expect(200, "POST", f"gpu-units/from-api/extend{NAMESPACE_QUERY}", {"until": "2100-01-01T00:00:00Z"})
    for verb in ("stop", "start"):
        expect(200, "POST", f"gpu-units/from-api/{verb}{NAMESPACE_QUERY}")
    expect(204, "DELETE", f"gpu-units/from-api{NAMESPACE_QUERY}")
    _wait_until(
        lambda: platform.request("DELETE", f"gpu-storages/from-api{NAMESPACE_QUERY}").status == 204,
        "the storage of the unit can be deleted",
    )
    pool = {"operationID": "pool", "name": "from-api", "namespace": OTHER_NAMESPACE, "specName": "g1.1", "replicas": 1}
    expect(202, "POST", "operator/stockpools", pool)
    _wait_until(lambda: not cluster.is_deleted(POOL, OTHER_NAMESPACE, "from-api"), "the pool exists")
    expect(204, "DELETE", f"operator/stockpools/from-api{NAMESPACE_QUERY}")
    _wait_until(lambda: cluster.is_deleted(OPERATION, SYSTEM_NAMESPACE, expired), "the expired operation is evicted")


def run_adoptions(platform: AuditedPlatform) -> None:
    """Create units from prepared pods: one that is kept, one that is stopped too early, one that is rejected, and a
    forged one. Withdraw a stock unit."""
    expect, cluster = partial(_expect_status, platform), platform.cluster
    pool: Object = {
        "operationID": "warm",
        "name": "prepared",
        "namespace": OTHER_NAMESPACE,
        "specName": "p1.1",
        "replicas": 1,
    }
    pool |= {"image": "python:3.12", "template": SERVING_TEMPLATE, "adoptable": True}
    expect(202, "POST", "operator/stockpools", pool)
    _create_adopted(platform, "kept")
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "kept", "UnitReady")
    _wait_until(partial(_has_prepared_pod, platform), "the pool is full")
    platform.manager.signal(Signals.SIGSTOP)
    try:
        _create_adopted(platform, "stopped")
        expect(200, "POST", f"gpu-units/stopped/stop{NAMESPACE_QUERY}")
    finally:
        platform.manager.signal(Signals.SIGCONT)
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "stopped", "ScaledToZero")
    _wait_until(partial(_has_prepared_pod, platform), "the pool is full")
    _create_rejected(platform)
    _wait_until(partial(_has_prepared_pod, platform), "the pool is full")
    kept = cluster.get(UNIT, OTHER_NAMESPACE, "kept")
    assert kept
    pods = cluster.list_objects(Pod, OTHER_NAMESPACE)
    free = next(each for each in pods if each["metadata"]["labels"].get(Label.POOL) == "prepared")["metadata"]
    source = {Annotation.SOURCE_STOCK_NAME: free["name"], Annotation.SOURCE_STOCK_UID: free["uid"]}
    annotations = kept["metadata"]["annotations"] | source
    cluster.create(UNIT, OTHER_NAMESPACE, "forged", kept["spec"], annotations=annotations)
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "forged", "UnitReady")
    _create_on_a_full_node(platform)
    _seed_stock(platform, "withdrawn")
    (stock,) = platform.request("GET", "operator/stock-units?specName=withdrawn").json["data"]
    expect(204, "DELETE", f"operator/stock-units/{stock['name']}")


def _create_adopted(platform: AuditedPlatform, name: str) -> None:
    unit: Object = {
        "operationID": name,
        "name": name,
        "namespace": OTHER_NAMESPACE,
        "specName": "p1.1",
        "image": "python:3.12",
    }
    unit |= {"template": SERVING_TEMPLATE}
    _wait_until(lambda: platform.request("POST", "gpu-units", unit).status == 201, f"{name} is created")


def _create_on_a_full_node(platform: AuditedPlatform) -> None:
    """No other node has enough GPUs, so the controller manager ends the pod of the stock unit."""
    platform.cluster.add_node("full", FULL_NODE_GPUS)
    seed: Object = {"operationID": "seed-full", "specName": "full", "replicas": 1, "gpu": FULL_NODE_GPUS}
    _expect_status(platform, 202, "POST", "operator/stock-units", seed)
    unit: Object = {"operationID": "full", "name": "full", "namespace": OTHER_NAMESPACE, "specName": "full"}
    unit |= {"image": "python:3.12"}
    _wait_until(lambda: platform.request("POST", "gpu-units", unit).status == 201, "the unit is created")
    platform.cluster.wait_reason(UNIT, OTHER_NAMESPACE, "full", "UnitReady")


REJECTING_POLICY = """
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: rejected}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [runtime.lokiwager.io], apiVersions: ["*"], operations: [CREATE], resources: [gpuunits]}
  validations: [{expression: "object.metadata.name != 'rejected'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: rejected}
spec: {policyName: rejected, validationActions: [Deny]}
"""


def _create_rejected(platform: AuditedPlatform) -> None:
    """A policy rejects the unit after the pod was claimed, so the operation deletes the pod."""
    cluster = platform.cluster
    manifest = cluster.folder / "policy.yaml"
    manifest.write_text(REJECTING_POLICY)
    cluster.control_plane.kubectl("apply", f"--filename={manifest}")
    kept = cluster.get(UNIT, OTHER_NAMESPACE, "kept")
    assert kept

    def is_effective() -> bool:
        try:
            cluster.create(UNIT, OTHER_NAMESPACE, "rejected", kept["spec"])
        except ApiError:
            return True
        cluster.kube.delete(UNIT, "rejected", namespace=OTHER_NAMESPACE)
        return False

    _wait_until(is_effective, "the policy is effective")
    unit: Object = {"operationID": "rejected", "name": "rejected", "namespace": OTHER_NAMESPACE, "specName": "p1.1"}
    unit |= {"image": "python:3.12", "template": SERVING_TEMPLATE}
    reply = platform.request("POST", "gpu-units", unit)
    assert (reply.status, reply.json["error"]["code"]) == (400, "invalid"), reply


def _has_prepared_pod(platform: AuditedPlatform) -> bool:
    view = platform.request("GET", f"operator/stockpools/prepared{NAMESPACE_QUERY}").json["data"]
    return bool(view["prepared"] == 1)


def run_drift_and_deletion(platform: AuditedPlatform) -> None:
    """Create units, storages and a pool, and change their child objects. The controller manager repairs them."""
    cluster = platform.cluster
    _cause_invalid_spec_twice(cluster)
    _end_lifetime(cluster)
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
    _wait_until(
        lambda: cluster.is_deleted(Service, OTHER_NAMESPACE, "web"), "the Service of a unit without ports is deleted"
    )
    _delete_function(cluster)
    _create_orphaned_attachment(cluster)
    _create_pending_storage(cluster)
    cluster.kube.delete(STORAGE, "data", namespace=OTHER_NAMESPACE)
    _wait_until(lambda: cluster.is_deleted(STORAGE, OTHER_NAMESPACE, "data"), "the storage is deleted with its PVC")
    cluster.wait_for(UNIT, OTHER_NAMESPACE, "web", _is_current_and_ready)
    _wait_until(lambda: _has_repeated_event(cluster, "invalid", "InvalidSpec"), "the repeated event has a series count")


def _delete_function(cluster: ControllerCluster) -> None:
    deleted = WEB_SPEC | {"running": False, "serverless": {"enabled": True, "requestID": "deleted"}}
    cluster.create(UNIT, OTHER_NAMESPACE, "deleted", deleted)
    queue = ("runtime-system", function_queue_name("deleted"))
    cluster.wait_for(QUEUE, *queue, lambda _: True)
    cluster.kube.delete(UNIT, "deleted", namespace=OTHER_NAMESPACE)
    _wait_until(lambda: cluster.is_deleted(QUEUE, *queue), "the queue of the deleted function is deleted")


def run_invocations(platform: AuditedPlatform) -> None:
    """Invoke a function whose worker comes from stock and is deleted again, and run a function whose workers fail."""
    asyncio.run(_run_invocations(platform))


async def _run_invocations(platform: AuditedPlatform) -> None:
    url, cluster = platform.nats_account.url, platform.cluster
    kube = AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))
    async with connect_nats(ConnectionOptions((url,), backoff=Backoff(initial_seconds=0.05, max_seconds=0.2))) as nats:
        harness = ActivatorHarness(
            platform.control_plane, kube, nats, stream_topology(nats_settings(url)), url, platform.api.url("")
        )
        failing = {"enabled": True, "requestID": "failing", "minAvailableCount": 1, "maxWorkers": 1}
        spec = WEB_SPEC | {"specName": "cold", "memory": "much", "running": False, "serverless": failing}
        cluster.create(UNIT, OTHER_NAMESPACE, "failing", spec)
        _seed_stock(platform, "warm")
        await harness.create_function("warm", maxWorkers=1)
        fleet = SidecarFleet(harness, "warm", with_controller_manager=True)
        async with harness.running_result_store(), fleet.running():
            await harness.wait_result(await harness.accept_invocation("warm"))
            await until(lambda: _is_scaled_to_zero(harness), "the worker is deleted and its stock is returned")
        await until(lambda: _event_is_repeated(cluster), "the repeated event has a series count")
    await kube.close()


async def _is_scaled_to_zero(harness: ActivatorHarness) -> bool:
    return not await harness.list_workers("warm") and len(await harness.list_units("runtime-stock", "warm")) == 1


async def _event_is_repeated(cluster: ControllerCluster) -> bool:
    return _has_repeated_event(cluster, "failing", "WorkerFailed")


def run_orphan_collection(platform: AuditedPlatform) -> None:
    """Create a ReplicaSet whose Deployment does not exist, and its pod. The controller manager of the platform deletes
    them. Kubernetes' own controllers are stopped, because they would delete the objects earlier. Therefore this
    scenario must not run concurrently with the others."""
    plane, target = platform.control_plane, (platform.cluster, OTHER_NAMESPACE)
    plane.processes.stop("kube-controller-manager")
    create_pod(*target, "orphan", create_replica_set(*target, "orphan", "missing", str(uuid.uuid4())), "missing")
    _wait_until(lambda: platform.cluster.is_deleted(ReplicaSet, OTHER_NAMESPACE, "orphan"), "the orphan is deleted")
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
    """Create an operation that finished years ago."""
    name, target = "long-ago", {"kind": "GPUUnit", "namespace": OTHER_NAMESPACE}
    spec = {"operationID": name, "type": "SeedStock", "requestHash": "0" * 64, "target": target}
    cluster.create(OPERATION, SYSTEM_NAMESPACE, name, spec, labels={Label.CREATED_HOUR: "2020-01-01T00"})
    cluster.patch_status(
        OPERATION, SYSTEM_NAMESPACE, name, {"state": "Succeeded", "finishedAt": "2020-01-01T00:00:00Z"}
    )
    return name


def _cause_invalid_spec_twice(cluster: ControllerCluster) -> None:
    """Make a unit invalid, repair it, and make it invalid again."""
    cluster.create(UNIT, OTHER_NAMESPACE, "invalid", WEB_SPEC | {"memory": "much"})
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "invalid", "InvalidSpec")
    cluster.merge_patch(UNIT, OTHER_NAMESPACE, "invalid", {"spec": {"memory": "1Gi"}})
    cluster.wait_reason(UNIT, OTHER_NAMESPACE, "invalid", "UnitReady")
    cluster.merge_patch(UNIT, OTHER_NAMESPACE, "invalid", {"spec": {"memory": "much"}})


def _end_lifetime(cluster: ControllerCluster) -> None:
    """Let the controller manager stop a unit, and then delete it."""
    cluster.create(UNIT, OTHER_NAMESPACE, "short", WEB_SPEC | {"maxDurationSeconds": 1, "deleteAfterSeconds": 8})
    cluster.wait_for(UNIT, OTHER_NAMESPACE, "short", lambda unit: unit["spec"]["running"] is False)
    _wait_until(lambda: cluster.is_deleted(UNIT, OTHER_NAMESPACE, "short"), "the unit is deleted at its time")


def _has_repeated_event(cluster: ControllerCluster, name: str, reason: str) -> bool:
    events = [each for each in cluster.list_objects(Event, OTHER_NAMESPACE) if each["involvedObject"]["name"] == name]
    return any(each["reason"] == reason and each.get("series", {}).get("count", 1) > 1 for each in events)


def _is_current_and_ready(unit: Object) -> bool:
    current = unit["status"]["observedGeneration"] == unit["metadata"]["generation"]
    return current and ready_condition(unit).get("reason") == "UnitReady"


def _remove_managed_label(cluster: ControllerCluster, kind: Any, name: str) -> None:
    """Remove the label that the informers select on, so that the controller manager must read the object live."""
    cluster.merge_patch(kind, OTHER_NAMESPACE, name, {"metadata": {"labels": {Label.MANAGED_BY: None}}})
    cluster.wait_for(
        kind, OTHER_NAMESPACE, name, lambda stored: Label.MANAGED_BY in stored["metadata"].get("labels", {})
    )


def _remove_owner(cluster: ControllerCluster, kind: Any, name: str) -> None:
    cluster.merge_patch(kind, OTHER_NAMESPACE, name, {"metadata": {"ownerReferences": None}})
    cluster.wait_for(kind, OTHER_NAMESPACE, name, lambda stored: bool(stored["metadata"].get("ownerReferences")))


def _create_orphaned_attachment(cluster: ControllerCluster) -> None:
    """Create a storage that is attached by an evicted operation to a unit that was never created."""
    attachment = {"attachedTo": {"unit": "missing", "operationID": "evicted", "operationUID": "u", "attempt": 1}}
    cluster.create(STORAGE, OTHER_NAMESPACE, "attached", {"size": "1Gi", **attachment})
    cluster.wait_for(STORAGE, OTHER_NAMESPACE, "attached", lambda stored: "attachedTo" not in stored["spec"])


def _create_pending_storage(cluster: ControllerCluster) -> None:
    cluster.create_storage_class("slow")
    cluster.create(STORAGE, OTHER_NAMESPACE, "slow", {"size": "1Gi", "storageClassName": "slow"})
    cluster.wait_reason(STORAGE, OTHER_NAMESPACE, "slow", "ClaimPending")


def _wait_until(condition: Callable[[], bool], expectation: str) -> None:
    wait_until(condition, 60, lambda: f"not within 60 s: {expectation}", interval_seconds=0.2)
