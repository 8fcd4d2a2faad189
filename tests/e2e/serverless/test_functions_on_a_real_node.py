"""Functions on real pods: scale from zero, scale with load and back to zero, failures, and isolation."""

import json
import os
import time
from collections.abc import Iterator

import pytest

from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.e2e.node_api_requests import request_with_retry
from tests.e2e.serverless.deployed_function import UNIT_NAMESPACE, DeployedFunction

DOUBLING_SOURCE = """
import time
from gpu_runtime.framework import Retry, handler, serve

@handler
def run(request):
    if request.payload["n"] == 666:
        raise Retry("poison", after=0)
    if "seconds" in request.payload:
        time.sleep(request.payload["seconds"])
    if request.payload["n"] == 13:
        raise ValueError("invalid number")
    return {"n": request.payload["n"] * 2}

serve()
"""

USER_SOURCE = """
import os, pathlib
from gpu_runtime.framework import handler, serve

@handler
def run(request):
    return {"user": os.getuid(), "init": pathlib.Path("/dev/shm/user").read_text().strip()}

serve()
"""
KEPT_WORKER_SECONDS = float(os.environ.get("KEPT_WORKER_SECONDS", "10"))
"""The time for which a function must keep its worker. A worker that differs from its function is replaced."""


@pytest.fixture(scope="module")
def doubling(deployed_platform: Node) -> Iterator[DeployedFunction]:
    function = DeployedFunction(deployed_platform, "doubling")
    function.create(DOUBLING_SOURCE, maxWorkers=3)
    yield function
    function.delete()


def ready_stock(node: Node) -> list[str]:
    units = json.loads(node.kubectl("get", "gpuunits", "--namespace=runtime-stock", "-o=json"))["items"]
    ready = [unit for unit in units if unit.get("status", {}).get("phase") == "Ready"]
    return [unit["metadata"]["name"] for unit in ready if unit["spec"]["specName"] == "e2e.functions"]


def wait_stock_consumed(node: Node) -> None:
    """Wait until the consumed stock unit is deleted. This happens at the latest 3 s after the worker was created."""
    wait_until(lambda: ready_stock(node) == [], 20, lambda: f"not consumed: {ready_stock(node)}", interval_seconds=0.2)


def test_function_scales_from_zero_to_a_burst_and_back_twice(doubling: DeployedFunction) -> None:
    doubling.wait_no_workers()
    for round_name in ("first", "second"):
        assert doubling.workers() == []
        status, response = doubling.invoke_sync({"n": 21})
        assert (status, response["data"]["state"], response["data"]["payload"]) == (200, "succeeded", {"n": 42}), (
            response
        )

        burst = [f"{round_name}-{number}" for number in range(9)]
        for number, invocation_id in enumerate(burst):
            status, response = doubling.invoke({"n": number, "seconds": 1.5}, invocationID=invocation_id)
            assert status == 202, response
        wait_until(lambda: len(doubling.workers()) == 3, 60, lambda: f"{doubling.workers()}", interval_seconds=0.2)
        for invocation_id in burst:
            doubling.wait_state(invocation_id, "succeeded")
        doubling.wait_no_workers()


def test_worker_from_stock_is_returned_to_stock(doubling: DeployedFunction) -> None:
    node = doubling.node
    doubling.wait_no_workers()
    seed = {"operationID": "seed-functions", "specName": "e2e.functions", "memory": "128Mi", "gpu": 1, "replicas": 1}
    assert request_with_retry(node, "POST", "/operator/stock-units", seed)[0] in (200, 202)
    wait_until(lambda: len(ready_stock(node)) == 1, 120, lambda: "no stock unit is Ready", interval_seconds=0.2)
    seeded = ready_stock(node)

    status, response = doubling.invoke_sync({"n": 1})
    assert (status, response["data"]["payload"]) == (200, {"n": 2}), response
    wait_stock_consumed(node)
    doubling.wait_no_workers()
    wait_until(
        lambda: len(ready_stock(node)) == 1, 60, lambda: "the worker was not returned to stock", interval_seconds=0.2
    )
    assert ready_stock(node) != seeded
    node.kubectl("delete", "gpuunit", *ready_stock(node), "--namespace=runtime-stock")


@pytest.mark.timeout(KEPT_WORKER_SECONDS + 300)
def test_worker_inherits_the_template_and_is_not_replaced(doubling: DeployedFunction) -> None:
    """The function runs as another user and has a TCP port. Its worker from stock must be equal to it."""
    node = doubling.node
    seed = {"operationID": "seed-inherited", "specName": "e2e.functions", "memory": "128Mi", "gpu": 1, "replicas": 1}
    assert request_with_retry(node, "POST", "/operator/stock-units", seed)[0] in (200, 202)
    wait_until(lambda: len(ready_stock(node)) == 1, 120, lambda: "no stock unit is Ready", interval_seconds=0.2)
    function = DeployedFunction(node, "inherited")
    template = {
        "runAsUser": 12345,
        "ports": [{"name": "http", "port": 8080}],
        "init": {"command": ["sh", "-c", "id -u > /dev/shm/user"]},
        "sharedMemory": "16Mi",
    }
    function.create(USER_SOURCE, template, minAvailableCount=1)
    status, response = function.invoke_sync({})
    assert (status, response["data"]["payload"]) == (200, {"user": 12345, "init": "12345"}), response
    wait_stock_consumed(node)
    (uid,) = function.worker_uids()
    deadline = time.monotonic() + KEPT_WORKER_SECONDS
    while time.monotonic() < deadline:
        assert function.worker_uids() == [uid]
        time.sleep(1)
    function.delete()
    node.kubectl("delete", "gpuunits", "--all", "--namespace=runtime-stock")


def test_failed_expired_and_cancelled_invocations_have_results(doubling: DeployedFunction) -> None:
    status, response = doubling.invoke_sync({"n": 13})
    assert (status, response["data"]["state"]) == (200, "failed"), response
    assert response["data"]["failure"]["class"] == "function_error"
    assert "invalid number" in response["data"]["failure"]["message"]

    status, response = doubling.invoke({"n": 1, "seconds": 20}, mode="sync", invocationID="late", timeoutSeconds=1)
    assert status in (200, 504), response
    doubling.wait_state("late", "expired")

    assert doubling.invoke({"n": 1, "seconds": 60}, invocationID="cancelled-1", timeoutSeconds=240)[0] == 202
    doubling.wait_state("cancelled-1", "running")
    assert request_with_retry(doubling.node, "DELETE", "/serverless/invocations/cancelled-1")[0] == 202
    doubling.wait_state("cancelled-1", "cancelled")


def test_poison_message_is_dead_lettered_and_can_be_redriven(doubling: DeployedFunction) -> None:
    node = doubling.node
    status, response = doubling.invoke_sync({"n": 666}, invocationID="poison")
    assert (status, response["data"]["state"], response["data"]["attempts"]) == (200, "dead_lettered", 5), response
    status, response = request_with_retry(node, "GET", "/operator/dead-letters?serverlessRequestID=doubling")
    assert status == 200, response
    (letter,) = [each for each in response["data"] if each["invocationID"] == "poison"]
    assert "poison" in letter["reason"]
    status, response = request_with_retry(node, "POST", f"/operator/dead-letters/{letter['id']}/redrive")
    assert status in (200, 202), response
    redriven = response["data"]["invocationID"]
    assert redriven != "poison"
    doubling.wait_state(redriven, "dead_lettered")
    assert request_with_retry(node, "GET", f"/operator/dead-letters/{letter['id']}")[0] == 404


def test_saturated_function_does_not_delay_another_one(doubling: DeployedFunction) -> None:
    slow = DeployedFunction(doubling.node, "slow")
    slow.create(DOUBLING_SOURCE, maxWorkers=1)
    assert doubling.invoke_sync({"n": 1})[0] == 200
    for number in range(40):
        assert slow.invoke({"n": number, "seconds": 5}, timeoutSeconds=600)[0] == 202
    wait_until(lambda: len(slow.workers()) == 1, 60, lambda: "the slow function has no worker", interval_seconds=0.2)
    for _ in range(20):
        # The timeout is a tenth of the time that the backlog of the slow function takes.
        status, response = doubling.invoke({"n": 2}, mode="sync", timeoutSeconds=20)
        assert (status, response["data"]["payload"]) == (200, {"n": 4}), response
    status, response = request_with_retry(
        doubling.node, "GET", "/serverless/invocations?serverlessRequestID=slow&limit=100"
    )
    unfinished = [each for each in response["data"] if each["state"] in ("dispatched", "running", "queued")]
    assert (status, len(unfinished) > 10) == (200, True), response
    slow.delete()


def test_user_container_has_no_nats_credentials(doubling: DeployedFunction) -> None:
    """The user's container mounts neither the NATS credentials nor the settings with the NATS address."""
    status, _ = doubling.invoke_sync({"n": 1})
    assert status == 200
    pods = json.loads(doubling.node.kubectl("get", "pods", f"--namespace={UNIT_NAMESPACE}", "-o=json"))["items"]
    worker_pods = [pod for pod in pods if pod["spec"].get("initContainers")]
    assert worker_pods
    for pod in worker_pods:
        (user_container,) = pod["spec"]["containers"]
        mounted = {mount["name"] for mount in user_container.get("volumeMounts", [])}
        (sidecar,) = pod["spec"]["initContainers"]
        only_sidecar = {mount["name"] for mount in sidecar["volumeMounts"]} - mounted
        assert only_sidecar, "the user container mounts every volume of the sidecar"
        assert not pod["spec"].get("automountServiceAccountToken", True)
