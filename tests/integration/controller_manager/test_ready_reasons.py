"""Every reason of the Ready condition of units and pools: what causes it, and how it disappears."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.core_v1 import (
    Container,
    NodeCondition,
    NodeStatus,
    PodSpec,
    PodTemplateSpec,
    ResourceQuotaSpec,
    ServicePort,
    ServiceSpec,
)
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, Node, Pod, ResourceQuota, Service
from lightkube.types import PatchType

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import (
    GROUP,
    POOL,
    STORAGE,
    UNIT,
    ControllerCluster,
    Object,
    as_dict,
    ready_condition,
)

SMALL = {"specName": "g1.1", "image": "python", "template": {"ports": [{"name": "http", "port": 80}]}}
GPUS_OF_THE_BARE_NODE = 64


@pytest.fixture
def bare_node(cluster: ControllerCluster) -> Iterator[str]:
    """A node without a kubelet. Only this node has so many GPUs, so the test controls the pods that request them."""
    name, amount = f"bare-{uuid.uuid4().hex[:6]}", str(GPUS_OF_THE_BARE_NODE)
    capacity = {"cpu": "8", "memory": "64Gi", "pods": "10", "nvidia.com/gpu": amount}
    status = NodeStatus(
        capacity=capacity, allocatable=capacity, conditions=[NodeCondition(type="Ready", status="True")]
    )
    cluster.kube.create(
        Node(metadata=ObjectMeta(name=name, labels={"kubernetes.io/hostname": name}), status=status),
    )
    yield name
    cluster.kube.delete(Node, name)


def bound_pod(cluster: ControllerCluster, namespace: str, node: str) -> str:
    """Wait for a pod that is bound to the node, and return its name."""

    def names() -> list[str]:
        pods = [as_dict(pod) for pod in cluster.kube.list(Pod, namespace=namespace)]
        return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node]

    wait_until(lambda: bool(names()), 60, lambda: f"no pod on {node}")
    return names()[0]


def set_container_state(cluster: ControllerCluster, namespace: str, pod: str, state: Object, **more: Any) -> None:
    container = {"name": "main", "image": "python", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    status = {"phase": "Pending", "containerStatuses": [container | more]}
    cluster.patch_status(Pod, namespace, pod, status)


def quota(cluster: ControllerCluster, namespace: str, **hard: str) -> None:
    """Create a quota, and wait until it is enforced."""
    spec = ResourceQuotaSpec(hard=hard)
    cluster.kube.create(ResourceQuota(metadata=ObjectMeta(name="nothing"), spec=spec), namespace=namespace)
    cluster.wait_for(ResourceQuota, namespace, "nothing", lambda found: "hard" in found.get("status", {}))


def foreign_object(kind: Any, name: str) -> Any:
    """Return an object of this name that the platform does not own."""
    labels = {"app": "foreign"}
    if kind is Service:
        return Service(metadata=ObjectMeta(name=name), spec=ServiceSpec(ports=[ServicePort(port=1)], selector=labels))
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels=labels), spec=PodSpec(containers=[Container(name="c", image="x")])
    )
    spec = DeploymentSpec(replicas=0, selector=LabelSelector(matchLabels=labels), template=template)
    return Deployment(metadata=ObjectMeta(name=name), spec=spec)


def readiness(found: Object) -> tuple[str, str]:
    return found["status"]["phase"], ready_condition(found)["reason"]


@pytest.mark.parametrize(
    ("kind", "invalid", "message"),
    [
        (UNIT, {"memory": "16 gigs"}, "spec.memory: '16 gigs' is not a quantity"),
        (UNIT, {"image": ""}, "spec.image: is required"),
        (POOL, {"memory": "0"}, "spec.memory: 0 is not greater than 0; write for example 512Mi or 16Gi"),
    ],
)
def test_invalid_spec_is_reported_and_recovers_when_corrected(
    cluster: ControllerCluster, namespace: str, kind: Any, invalid: Object, message: str
) -> None:
    spec = SMALL | ({"replicas": 1} if kind is POOL else {})
    cluster.create(kind, namespace, "a", spec | invalid)
    failed = cluster.wait_reason(kind, namespace, "a", "InvalidSpec")
    assert readiness(failed) == ("Failed", "InvalidSpec")
    assert message in ready_condition(failed)["message"]
    assert not list(cluster.kube.list(Deployment, namespace=namespace)), "no Deployment is created"
    cluster.merge_patch(kind, namespace, "a", {"spec": {key: spec.get(key) for key in invalid}})
    recovered = cluster.wait_for(kind, namespace, "a", is_ready_again)
    assert recovered["status"]["phase"] == "Ready"


def test_invalid_spec_update_does_not_stop_the_running_pod(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"memory": "much"}})
    failed = cluster.wait_reason(UNIT, namespace, "a", "InvalidSpec")
    assert failed["status"]["readyReplicas"] == 1
    assert ready_condition(failed)["observedGeneration"] == failed["metadata"]["generation"]
    assert not cluster.is_deleted(Deployment, namespace, "a")


def test_stopped_unit_deletes_only_its_pod(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    service = cluster.get(Service, namespace, "a")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"running": False}})
    stopped = cluster.wait_reason(UNIT, namespace, "a", "ScaledToZero")
    assert stopped["status"]["phase"] == "Empty"
    assert stopped["status"]["readyReplicas"] == 0
    assert not list(cluster.kube.list(Pod, namespace=namespace))
    again = cluster.get(Service, namespace, "a")
    assert service
    assert again
    assert again["spec"]["clusterIP"] == service["spec"]["clusterIP"]
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"running": True}})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")


def test_pool_without_replicas_is_empty(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(POOL, namespace, "a", SMALL | {"replicas": 0})
    assert readiness(cluster.wait_reason(POOL, namespace, "a", "ScaledToZero")) == ("Empty", "ScaledToZero")
    cluster.merge_patch(POOL, namespace, "a", {"spec": {"replicas": 3}})
    full = cluster.wait_reason(POOL, namespace, "a", "DeploymentReady")
    assert (full["status"]["available"], full["status"]["allocated"]) == (3, 0)
    assert full["status"]["serviceName"] == "pool-a"
    cluster.merge_patch(POOL, namespace, "a", {"spec": {"replicas": 0}})
    empty = cluster.wait_reason(POOL, namespace, "a", "ScaledToZero")
    assert empty["status"]["available"] == 0


def test_unit_condition_reports_the_container_failure(
    cluster: ControllerCluster, namespace: str, bare_node: str
) -> None:
    cluster.create(UNIT, namespace, "a", SMALL | {"gpu": GPUS_OF_THE_BARE_NODE})
    pod = bound_pod(cluster, namespace, bare_node)
    starting = cluster.wait_reason(UNIT, namespace, "a", "UnitProgressing")
    assert starting["status"]["phase"] == "Progressing"

    def assert_failed(text: str) -> None:
        failed = cluster.wait_for(UNIT, namespace, "a", lambda found: text in ready_condition(found).get("message", ""))
        assert readiness(failed) == ("Failed", "PodStartupFailed")

    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "python"'}
    set_container_state(cluster, namespace, pod, {"waiting": waiting})
    assert_failed('image python cannot be pulled: Back-off pulling image "python"')
    waiting = {"reason": "CreateContainerConfigError", "message": "container has runAsNonRoot"}
    set_container_state(cluster, namespace, pod, {"waiting": waiting})
    assert_failed("container main cannot be created: container has runAsNonRoot")
    terminated = {"exitCode": 3, "reason": "Error", "message": "Traceback\nValueError: no weights\n"}
    set_container_state(cluster, namespace, pod, {"terminated": terminated})
    assert_failed("container main exited with code 3: ValueError: no weights")
    set_container_state(
        cluster,
        namespace,
        pod,
        {"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": terminated | {"exitCode": 137, "reason": "OOMKilled", "message": ""}},
        restartCount=4,
    )
    assert_failed("container main exited with code 137, OOMKilled (restarted 4 times)")
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "Initialized")]
    cluster.patch_status(Pod, namespace, pod, {"phase": "Running", "conditions": conditions, "containerStatuses": None})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")


def test_pool_condition_reports_the_container_failure(
    cluster: ControllerCluster, namespace: str, bare_node: str
) -> None:
    cluster.create(POOL, namespace, "a", SMALL | {"gpu": GPUS_OF_THE_BARE_NODE, "replicas": 1})
    pod = bound_pod(cluster, namespace, bare_node)
    starting = cluster.wait_reason(POOL, namespace, "a", "DeploymentProgressing")
    assert readiness(starting) == ("Progressing", "DeploymentProgressing")
    assert ready_condition(starting)["message"] == "0 of 1 replicas are available"
    set_container_state(cluster, namespace, pod, {"waiting": {"reason": "ErrImagePull", "message": "no such host"}})
    failed = cluster.wait_reason(POOL, namespace, "a", "PodStartupFailed")
    assert readiness(failed) == ("Failed", "PodStartupFailed")
    assert ready_condition(failed)["message"] == "image python cannot be pulled: no such host"


def test_unschedulable_pod_is_reported_with_the_scheduler_message(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "a", SMALL | {"gpu": 500})
    cluster.create(POOL, namespace, "a", SMALL | {"gpu": 500, "replicas": 2})
    for kind in (UNIT, POOL):
        failed = cluster.wait_reason(kind, namespace, "a", "PodStartupFailed")
        assert "the scheduler found no node for the pod: " in ready_condition(failed)["message"]
        assert "Insufficient nvidia.com/gpu" in ready_condition(failed)["message"]


def test_pods_rejected_by_a_quota_are_reported_and_created_later(cluster: ControllerCluster, namespace: str) -> None:
    quota(cluster, namespace, pods="0")
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.create(POOL, namespace, "a", SMALL | {"replicas": 1})
    for kind in (UNIT, POOL):
        failed = cluster.wait_reason(kind, namespace, "a", "PodStartupFailed")
        assert "the API server rejects the pods: " in ready_condition(failed)["message"]
        assert "exceeded quota: nothing" in ready_condition(failed)["message"]
    cluster.kube.delete(ResourceQuota, "nothing", namespace=namespace)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.wait_reason(POOL, namespace, "a", "DeploymentReady")


def test_pods_rejected_by_pod_security_are_reported(cluster: ControllerCluster, namespace: str) -> None:
    enforce = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    cluster.kube.patch(Namespace, namespace, enforce, patch_type=PatchType.MERGE)
    cluster.create(UNIT, namespace, "a", SMALL)
    failed = cluster.wait_reason(UNIT, namespace, "a", "PodStartupFailed")
    assert 'violates PodSecurity "restricted:latest"' in ready_condition(failed)["message"]


def test_rejected_children_are_reported_and_created_later(cluster: ControllerCluster, namespace: str) -> None:
    """Units and pools in one test, because the deletion of a quota causes no event and the manager only polls."""
    quota(cluster, namespace, **{"count/deployments.apps": "0"})
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.create(POOL, namespace, "a", SMALL | {"replicas": 1})
    for kind in (UNIT, POOL):
        failed = cluster.wait_reason(kind, namespace, "a", "DeploymentSyncFailed")
        assert failed["status"]["phase"] == "Failed"
        assert "the API server rejected the Deployment: " in ready_condition(failed)["message"]
        assert "exceeded quota: nothing" in ready_condition(failed)["message"]
    cluster.kube.delete(ResourceQuota, "nothing", namespace=namespace)
    quota(cluster, namespace, services="0")
    cluster.trigger_reconcile(UNIT, namespace, "a")
    cluster.trigger_reconcile(POOL, namespace, "a")
    for kind in (UNIT, POOL):
        failed = cluster.wait_reason(kind, namespace, "a", "ServiceSyncFailed")
        assert failed["status"]["phase"] == "Failed"
        assert "the API server rejected the Service: " in ready_condition(failed)["message"]
    cluster.kube.delete(ResourceQuota, "nothing", namespace=namespace)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.wait_reason(POOL, namespace, "a", "DeploymentReady")


@pytest.mark.parametrize("taken", [Deployment, Service])
def test_foreign_object_with_the_same_name_is_never_modified(
    cluster: ControllerCluster, namespace: str, taken: Any
) -> None:
    cluster.kube.create(foreign_object(taken, "a"), namespace=namespace)
    cluster.kube.create(foreign_object(taken, "pool-a"), namespace=namespace)
    before = {name: cluster.get(taken, namespace, name) for name in ("a", "pool-a")}
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.create(POOL, namespace, "a", SMALL | {"replicas": 1})
    for kind, name in ((UNIT, "a"), (POOL, "pool-a")):
        failed = cluster.wait_reason(kind, namespace, "a", "NameTaken")
        assert failed["status"]["phase"] == "Failed"
        message = (
            f"{taken.__name__} {name} already exists and belongs to another owner: delete it, or choose another name"
        )
        assert ready_condition(failed)["message"] == message
        after, untouched = cluster.get(taken, namespace, name), before[name]
        assert after
        assert untouched
        assert after["spec"] == untouched["spec"]
        assert after["metadata"].get("labels") == untouched["metadata"].get("labels")
        cluster.kube.delete(taken, name, namespace=namespace)
        cluster.trigger_reconcile(kind, namespace, "a")
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.wait_reason(POOL, namespace, "a", "DeploymentReady")


def test_unit_waits_for_terminating_children_of_its_predecessor(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str
) -> None:
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.merge_patch(Deployment, namespace, "a", {"metadata": {"finalizers": ["example.com/slow"]}})
    cluster.kube.delete(UNIT, "a", namespace=namespace)
    wait_until(lambda: cluster.is_deleted(UNIT, namespace, "a"), 60, lambda: "the first unit still exists")
    cluster.create(UNIT, namespace, "a", SMALL)
    message = "Deployment a of the deleted GPUUnit a still exists: waiting for its deletion"
    # The garbage collector deletes the other children in the meantime.
    waiting = cluster.wait_for(UNIT, namespace, "a", lambda found: ready_condition(found).get("message") == message)
    assert waiting["status"]["phase"] == "Progressing"
    assert ready_condition(waiting)["reason"] == "NameTaken"
    cluster.merge_patch(Deployment, namespace, "a", {"metadata": {"finalizers": None}})
    second = cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    deployment = cluster.get(Deployment, namespace, "a")
    assert deployment
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]


def test_unit_starts_on_other_gpus_while_its_stock_pod_still_exists(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str
) -> None:
    stock_name = f"stock-{uuid.uuid4().hex[:8]}"
    stock = cluster.create(UNIT, "runtime-stock", stock_name, {"specName": "g1.1", "gpu": 1})
    cluster.wait_reason(UNIT, "runtime-stock", stock_name, "UnitReady")
    pod = next(
        iter(cluster.kube.list(Pod, namespace="runtime-stock", labels={f"{GROUP}/unit": stock_name})),
    )
    assert pod.metadata
    assert pod.metadata.name
    cluster.merge_patch(Pod, "runtime-stock", pod.metadata.name, {"metadata": {"finalizers": ["example.com/slow"]}})
    cluster.kube.delete(UNIT, stock_name, namespace="runtime-stock")
    source = {
        f"{GROUP}/source-stock-name": stock_name,
        f"{GROUP}/source-stock-namespace": "runtime-stock",
        f"{GROUP}/source-stock-uid": stock["metadata"]["uid"],
    }
    cluster.create(UNIT, namespace, "a", SMALL | {"gpu": 1}, annotations=source)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    assert cluster.get(Pod, "runtime-stock", pod.metadata.name)
    cluster.merge_patch(Pod, "runtime-stock", pod.metadata.name, {"metadata": {"finalizers": None}})


def test_unit_waits_for_its_storage_and_can_always_be_stopped(cluster: ControllerCluster, namespace: str) -> None:
    mounts = {"storageMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}]}
    cluster.create(UNIT, namespace, "a", SMALL | mounts)

    missing = "GPUStorage data does not exist in this namespace: create it, or remove it from spec.storageMounts"
    failed = cluster.wait_for(UNIT, namespace, "a", lambda found: ready_condition(found).get("message") == missing)
    assert readiness(failed) == ("Failed", "StorageMountInvalid")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    not_ready = "GPUStorage data is not Ready yet: StorageClass rook-ceph-block does not exist"
    waiting = cluster.wait_for(UNIT, namespace, "a", lambda found: not_ready in ready_condition(found)["message"])
    assert readiness(waiting) == ("Progressing", "StorageNotReady")
    assert cluster.is_deleted(Deployment, namespace, "a")
    cluster.create_volume(namespace, "data")
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"running": False}})
    cluster.wait_reason(UNIT, namespace, "a", "ScaledToZero")


def test_update_is_not_ready_before_the_new_pod_runs(
    cluster: ControllerCluster, namespace: str, bare_node: str
) -> None:
    """A client that waits for the generation that it wrote must not see the readiness of the previous generation."""
    cluster.create(UNIT, namespace, "a", SMALL | {"gpu": GPUS_OF_THE_BARE_NODE})
    pod = bound_pod(cluster, namespace, bare_node)
    conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "Initialized")]
    cluster.patch_status(Pod, namespace, pod, {"phase": "Running", "conditions": conditions})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"image": "python:next"}})
    # This node has no kubelet, so the old pod cannot terminate, and the new generation cannot run.
    updated = cluster.wait_for(UNIT, namespace, "a", lambda found: found["status"]["observedGeneration"] == 2)
    assert readiness(updated) == ("Progressing", "UnitProgressing")


def test_update_on_a_full_node_becomes_ready_again(cluster: ControllerCluster, namespace: str) -> None:
    """One pod holds all GPUs of its node, so the next pod can start only after its deletion."""
    name = f"full-{uuid.uuid4().hex[:6]}"
    cluster.add_node(name, gpus=33)
    try:
        cluster.create(UNIT, namespace, "a", SMALL | {"gpu": 33})
        cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
        for image in ("python:2", "python:3"):
            cluster.merge_patch(UNIT, namespace, "a", {"spec": {"image": image}})
            cluster.wait_for(UNIT, namespace, "a", is_ready_again)
            pods = [as_dict(pod) for pod in cluster.kube.list(Pod, namespace=namespace)]
            assert [pod["spec"]["containers"][0]["image"] for pod in pods] == [image]
    finally:
        cluster.kube.delete(Node, name)


def is_ready_again(found: Object) -> bool:
    reported: tuple[str, int] = (
        ready_condition(found).get("status", ""),
        ready_condition(found).get("observedGeneration", 0),
    )
    return reported == ("True", found["metadata"]["generation"])
