"""A user who can create units tries to get the invocations of another function."""

from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.apps_v1 import Deployment

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import UNIT, ControllerCluster, Object

QUEUE = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "FunctionQueue", "functionqueues")


def function(request_id: str, **serverless: object) -> Object:
    enabled = {"enabled": True, "requestID": request_id, **serverless}
    return {"specName": "g1.1", "image": "python:3.12", "serverless": enabled}


def queue_of(cluster: ControllerCluster, request_id: str) -> Object | None:
    queues = cluster.list_objects(QUEUE, "runtime-system")
    return next((each["spec"] for each in queues if each["spec"]["requestID"] == request_id), None)


def wait_for_queue(cluster: ControllerCluster, function: Object) -> Object:
    """Wait until the function owns a queue, and return the queue."""
    request_id, uid = function["spec"]["serverless"]["requestID"], function["metadata"]["uid"]

    def is_owner() -> bool:
        queue = queue_of(cluster, request_id)
        return queue is not None and bool(queue["function"]["uid"] == uid)

    wait_until(is_owner, 60, lambda: f"the function has no queue: {queue_of(cluster, request_id)}")
    return queue_of(cluster, request_id) or {}


def test_second_function_with_the_same_request_id_gets_no_queue_and_no_pod(
    cluster: ControllerCluster, namespace: str
) -> None:
    victim = cluster.create(UNIT, namespace, "victim", function(namespace))
    wait_for_queue(cluster, victim)
    cluster.create(UNIT, namespace, "thief", function(namespace))
    blocked = cluster.wait_reason(UNIT, namespace, "thief", "RequestIDTaken")
    assert blocked["status"]["phase"] == "Failed"
    assert cluster.get(Deployment, namespace, "thief") is None
    wait_for_queue(cluster, victim)
    cluster.kube.delete(UNIT, "victim", namespace=namespace)
    thief = cluster.wait_for(Deployment, namespace, "thief", lambda _: True)
    assert thief, "the requestID is free after the deletion of its owner"


def test_unit_that_claims_to_be_a_worker_gets_no_pod(cluster: ControllerCluster, namespace: str) -> None:
    victim = cluster.create(UNIT, namespace, "victim", function(namespace))
    wait_for_queue(cluster, victim)
    cluster.create(UNIT, namespace, "victim-w0", function(namespace, workerOf="victim"))
    cluster.wait_reason(UNIT, namespace, "victim-w0", "WorkerNotRecorded")
    assert cluster.get(Deployment, namespace, "victim-w0") is None


def test_function_that_is_created_again_gets_another_function_id(cluster: ControllerCluster, namespace: str) -> None:
    first = wait_for_queue(cluster, cluster.create(UNIT, namespace, "again", function(namespace)))
    cluster.kube.delete(UNIT, "again", namespace=namespace)
    wait_until(lambda: queue_of(cluster, namespace) is None, 60, lambda: "the queue was not deleted")
    second = wait_for_queue(cluster, cluster.create(UNIT, namespace, "again", function(namespace)))
    assert second["functionID"] != first["functionID"]
