"""A user with kubectl tries to get the invocations of another function, with a second function and with a worker."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_runtime.contract.crd.conditions import ReadyReason
from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.e2e.controller_manager.test_units_on_a_real_node import apply_manifest
from tests.e2e.serverless.deployed_function import UNIT_NAMESPACE, DeployedFunction

INVOCATIONS = int(os.environ.get("THEFT_INVOCATIONS", "10"))
"""The number of invocations during each attack."""
INVOCATIONS_PER_ATTACK = 10
"""The activator deletes a unit that claims to be a worker. So the attacker creates the unit again and again."""

REPORTING_SOURCE = """
from gpu_runtime.framework import handler, serve

@handler
def run(request):
    return {"by": "%s"}

serve()
"""
THIEF_UNITS: dict[str, dict[str, Any]] = {
    "thief": {"requestID": "victim"},
    "victim-w1": {"requestID": "victim", "workerOf": "victim"},
    "victim-w2": {"requestID": "unrelated", "workerOf": "victim"},
}
REFUSALS = (ReadyReason.REQUEST_ID_TAKEN, ReadyReason.WORKER_NOT_RECORDED)


@pytest.fixture(scope="module")
def victim(deployed_platform: Node) -> Iterator[DeployedFunction]:
    function = DeployedFunction(deployed_platform, "victim")
    function.create(REPORTING_SOURCE % "victim", maxWorkers=4, idleTimeoutSeconds=60)
    yield function
    function.delete()


@pytest.mark.parametrize("name", THIEF_UNITS)
@pytest.mark.timeout(300 + 5 * INVOCATIONS)
def test_no_invocation_reaches_a_unit_of_another_user(victim: DeployedFunction, name: str) -> None:
    node, answers = victim.node, list[str]()
    for number in range(INVOCATIONS):
        if number % INVOCATIONS_PER_ATTACK == 0:
            apply_thief(node, name)
        status, response = victim.invoke_sync({"number": number})
        assert status == 200, response
        answers.append(response["data"]["payload"]["by"])
        assert not pods_of(node, name)
    assert answers == ["victim"] * INVOCATIONS
    assert uid_of(node, name) not in recorded_workers(node)
    node.kubectl("delete", "gpuunit", name, f"--namespace={UNIT_NAMESPACE}", "--ignore-not-found", "--timeout=60s")


def test_worker_has_the_uid_of_its_pod_in_its_status(victim: DeployedFunction) -> None:
    """Also after Kubernetes has replaced the pod. The activator accepts only the events of this pod."""
    assert victim.invoke_sync({})[0] == 200
    first = worker_pod_uids(victim)
    assert first
    for name in victim.workers():
        selector = f"--selector=runtime.lokiwager.io/unit={name}"
        victim.node.kubectl("delete", "pods", f"--namespace={UNIT_NAMESPACE}", selector, "--grace-period=1")
    assert victim.invoke_sync({})[0] == 200
    wait_until(
        lambda: bool(worker_pod_uids(victim)) and not worker_pod_uids(victim) & first,
        60,
        lambda: f"before: {first}, now: {worker_pod_uids(victim)}",
    )


def worker_pod_uids(function: DeployedFunction) -> set[str]:
    """Return the UIDs in the status of the workers. Each of them must be the UID of an existing pod of the worker."""
    found = set()
    for name in function.workers():
        status = objects(function.node, "gpuunits", f"--field-selector=metadata.name={name}")[0]["status"]
        pods = {each["metadata"]["uid"] for each in pods_of(function.node, name)}
        if status.get("podUID") in pods:
            found.add(status["podUID"])
    return found


def apply_thief(node: Node, name: str) -> None:
    spec = {
        "specName": "e2e.functions",
        "image": "gpu-runtime:local",
        "memory": "128Mi",
        "template": {"command": ["python", "-c"], "args": [REPORTING_SOURCE % "thief"]},
        "serverless": {"enabled": True, **THIEF_UNITS[name]},
    }
    metadata = {"name": name, "namespace": UNIT_NAMESPACE}
    manifest = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": spec}

    def is_decided() -> bool:
        apply_manifest(node, manifest)  # again, if the activator has deleted the unit
        return is_refused(node, name)

    wait_until(is_decided, 60, lambda: f"the controller manager has not decided on {name}")


def is_refused(node: Node, name: str) -> bool:
    """Whether the controller manager has decided that the unit gets no pod. Before, it could still create the pod."""
    units = objects(node, "gpuunits", f"--field-selector=metadata.name={name}")
    conditions = [each for unit in units for each in unit.get("status", {}).get("conditions", ())]
    return any(each["reason"] in REFUSALS for each in conditions)


def pods_of(node: Node, name: str) -> list[dict[str, Any]]:
    return objects(node, "pods", f"--selector=runtime.lokiwager.io/unit={name}")


def uid_of(node: Node, name: str) -> str:
    units = objects(node, "gpuunits", f"--field-selector=metadata.name={name}")
    return units[0]["metadata"]["uid"] if units else "deleted"


def recorded_workers(node: Node) -> set[str]:
    queues = json.loads(node.kubectl("get", "functionqueues", "--namespace=runtime-system", "-o=json"))["items"]
    return {uid for each in queues for uid in each["spec"].get("workers", {})}


def objects(node: Node, kind: str, selector: str) -> list[dict[str, Any]]:
    found = node.kubectl("get", kind, f"--namespace={UNIT_NAMESPACE}", selector, "-o=json")
    return list(json.loads(found)["items"])
