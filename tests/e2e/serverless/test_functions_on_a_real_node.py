"""A function comes from zero, grows with its load and goes back to zero, on real pods."""

import json
from collections.abc import Iterator

import pytest

from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.e2e.node_api_requests import request_with_retry
from tests.e2e.serverless.deployed_function import UNIT_NAMESPACE, DeployedFunction

DOUBLING = """
import time
from gpu_runtime.framework import Retry, handler, serve

@handler
def run(request):
    if request.payload["n"] == 666:
        raise Retry("poison", after=0)
    if "seconds" in request.payload:
        time.sleep(request.payload["seconds"])
    if request.payload["n"] == 13:
        raise ValueError("not with me")
    return {"n": request.payload["n"] * 2}

serve()
"""


@pytest.fixture(scope="module")
def doubling(deployed_platform: Node) -> Iterator[DeployedFunction]:
    function = DeployedFunction(deployed_platform, "doubling")
    function.create(DOUBLING, maxWorkers=3)
    yield function
    function.delete()


def stock(node: Node) -> list[str]:
    found = json.loads(node.kubectl("get", "gpuunits", "--namespace=runtime-stock", "-o=json"))["items"]
    ready = [unit for unit in found if unit.get("status", {}).get("phase") == "Ready"]
    return [unit["metadata"]["name"] for unit in ready if unit["spec"]["specName"] == "e2e.functions"]


def test_function_scales_from_zero_to_a_burst_and_back_twice(doubling: DeployedFunction) -> None:
    for turn in ("first", "second"):
        assert doubling.workers() == []
        status, said = doubling.invoke_sync({"n": 21})
        assert (status, said["data"]["state"], said["data"]["payload"]) == (200, "succeeded", {"n": 42}), said

        burst = [f"{turn}-{number}" for number in range(9)]
        for number, invocation_id in enumerate(burst):
            status, said = doubling.invoke({"n": number, "seconds": 1.5}, invocationID=invocation_id)
            assert status == 202, said
        wait_until(lambda: len(doubling.workers()) == 3, 60, lambda: f"{doubling.workers()}", interval_seconds=0.2)
        for invocation_id in burst:
            doubling.wait_state(invocation_id, "succeeded")
        doubling.wait_no_workers()


def test_worker_from_stock_is_returned_to_stock(doubling: DeployedFunction) -> None:
    node = doubling.node
    doubling.wait_no_workers()
    seed = {"operationID": "seed-functions", "specName": "e2e.functions", "memory": "128Mi", "gpu": 1, "replicas": 1}
    assert request_with_retry(node, "POST", "/operator/stock-units", seed)[0] in (200, 202)
    wait_until(lambda: len(stock(node)) == 1, 120, lambda: "no stock is Ready", interval_seconds=0.2)
    seeded = stock(node)

    status, said = doubling.invoke_sync({"n": 1})
    assert (status, said["data"]["payload"]) == (200, {"n": 2}), said
    assert stock(node) == []
    doubling.wait_no_workers()
    wait_until(lambda: len(stock(node)) == 1, 60, lambda: "the stock did not come back", interval_seconds=0.2)
    assert stock(node) != seeded
    node.kubectl("delete", "gpuunit", *stock(node), "--namespace=runtime-stock")


def test_errors_deadlines_and_cancels_have_their_results(doubling: DeployedFunction) -> None:
    status, said = doubling.invoke_sync({"n": 13})
    assert (status, said["data"]["state"]) == (200, "failed"), said
    assert said["data"]["failure"]["class"] == "function_error"
    assert "not with me" in said["data"]["failure"]["message"]

    status, said = doubling.invoke({"n": 1, "seconds": 20}, mode="sync", invocationID="late", timeoutSeconds=1)
    assert status in (200, 504), said
    doubling.wait_state("late", "expired")

    assert doubling.invoke({"n": 1, "seconds": 60}, invocationID="unwanted", timeoutSeconds=240)[0] == 202
    doubling.wait_state("unwanted", "running")
    assert request_with_retry(doubling.node, "DELETE", "/serverless/invocations/unwanted")[0] == 202
    doubling.wait_state("unwanted", "cancelled")


def test_poison_message_is_dead_lettered_and_can_be_redriven(doubling: DeployedFunction) -> None:
    node = doubling.node
    status, said = doubling.invoke_sync({"n": 666}, invocationID="poison")
    assert (status, said["data"]["state"], said["data"]["attempts"]) == (200, "dead_lettered", 5), said
    status, said = request_with_retry(node, "GET", "/operator/dead-letters?serverlessRequestID=doubling")
    assert status == 200, said
    (letter,) = [each for each in said["data"] if each["invocationID"] == "poison"]
    assert "poison" in letter["reason"]
    status, said = request_with_retry(node, "POST", f"/operator/dead-letters/{letter['id']}/redrive")
    assert status in (200, 202), said
    again = said["data"]["invocationID"]
    assert again != "poison"
    doubling.wait_state(again, "dead_lettered")
    assert request_with_retry(node, "GET", f"/operator/dead-letters/{letter['id']}")[0] == 404


def test_saturated_function_does_not_delay_another_one(doubling: DeployedFunction) -> None:
    slow = DeployedFunction(doubling.node, "slow")
    slow.create(DOUBLING, maxWorkers=1)
    assert doubling.invoke_sync({"n": 1})[0] == 200
    for number in range(40):
        assert slow.invoke({"n": number, "seconds": 5}, timeoutSeconds=600)[0] == 202
    wait_until(lambda: len(slow.workers()) == 1, 60, lambda: "the slow function has no worker", interval_seconds=0.2)
    for _ in range(20):
        status, said = doubling.invoke({"n": 2}, mode="sync", timeoutSeconds=20)  # what waits takes ten times as long
        assert (status, said["data"]["payload"]) == (200, {"n": 4}), said
    status, said = request_with_retry(
        doubling.node, "GET", "/serverless/invocations?serverlessRequestID=slow&limit=100"
    )
    waiting = [each for each in said["data"] if each["state"] in ("dispatched", "running", "queued")]
    assert (status, len(waiting) > 10) == (200, True), said
    slow.delete()


def test_user_container_has_no_nats_credentials(doubling: DeployedFunction) -> None:
    """Neither the credentials nor the settings with the queue's address are in the user's container."""
    status, _ = doubling.invoke_sync({"n": 1})
    assert status == 200
    pods = json.loads(doubling.node.kubectl("get", "pods", f"--namespace={UNIT_NAMESPACE}", "-o=json"))["items"]
    serving = [pod for pod in pods if pod["spec"].get("initContainers")]
    assert serving
    for pod in serving:
        (user,) = pod["spec"]["containers"]
        mounted = {mount["name"] for mount in user.get("volumeMounts", [])}
        (sidecar,) = pod["spec"]["initContainers"]
        only_sidecar = {mount["name"] for mount in sidecar["volumeMounts"]} - mounted
        assert only_sidecar, "the sidecar's settings are its own"
        assert not pod["spec"].get("automountServiceAccountToken", True)
