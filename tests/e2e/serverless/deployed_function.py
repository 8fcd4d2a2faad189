"""A function on a real node: created with kubectl and invoked over HTTP, as the control plane of a product does."""

import asyncio
import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

import aiohttp

from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.e2e.controller_manager.test_units_on_a_real_node import apply_manifest
from tests.e2e.node_api_requests import api_url, request_with_retry

UNIT_NAMESPACE = "runtime-instance"
INVOCATIONS_PATH = "/serverless/invocations"
TERMINAL_STATES = ("succeeded", "failed", "expired", "dead_lettered", "cancelled")


@dataclass(frozen=True)
class DeployedFunction:
    node: Node
    name: str

    def create(self, source: str, template: dict[str, Any] | None = None, **serverless: Any) -> None:
        """Create a function without workers. Return when the API has it in its cache."""
        serverless = {"enabled": True, "requestID": self.name, "maxWorkers": 1, "idleTimeoutSeconds": 5, **serverless}
        spec = {
            "specName": "e2e.functions",
            "image": "gpu-runtime:local",
            "memory": "128Mi",
            "gpu": 1,
            "template": {"command": ["python", "-c"], "args": [source], **(template or {})},
            "serverless": serverless,
            "running": False,
        }
        manifest = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "spec": spec}
        apply_manifest(self.node, manifest | {"metadata": {"name": self.name, "namespace": UNIT_NAMESPACE}})

        def is_cached() -> bool:
            return request_with_retry(self.node, "GET", f"{INVOCATIONS_PATH}?serverlessRequestID={self.name}")[0] == 200

        wait_until(is_cached, 60, lambda: f"the API returns no function {self.name}")

    def invoke(self, payload: Any, **fields: Any) -> tuple[int, dict[str, Any]]:
        body = {"serverlessRequestID": self.name, "payload": payload, **fields}
        return request_with_retry(self.node, "POST", INVOCATIONS_PATH, body, timeout_seconds=100)

    def invoke_sync(self, payload: Any, **fields: Any) -> tuple[int, dict[str, Any]]:
        """Invoke synchronously. Repeat the request if a cold start takes longer than the API waits (504)."""
        options = {"invocationID": f"{self.name}-{uuid.uuid4().hex}", "timeoutSeconds": 240, **fields}
        for _ in range(5):
            status, response = self.invoke(payload, mode="sync", **options)
            if status != 504:
                break
        return status, response

    def workers(self) -> list[str]:
        return [worker["name"] for worker in self._worker_metadata()]

    def worker_uids(self) -> list[str]:
        return [worker["uid"] for worker in self._worker_metadata()]

    def _worker_metadata(self) -> list[dict[str, Any]]:
        units = json.loads(self.node.kubectl("get", "gpuunits", f"--namespace={UNIT_NAMESPACE}", "-o=json"))["items"]
        return [unit["metadata"] for unit in units if unit["spec"].get("serverless", {}).get("workerOf") == self.name]

    def invocation_state(self, invocation_id: str) -> str:
        status, response = request_with_retry(self.node, "GET", f"{INVOCATIONS_PATH}/{invocation_id}")
        return str(response["data"]["state"]) if status == 200 else f"{status}: {response}"

    def wait_state(self, invocation_id: str, state: str, timeout_seconds: float = 180) -> None:
        wait_until(
            lambda: self.invocation_state(invocation_id) == state,
            timeout_seconds,
            lambda: self.invocation_state(invocation_id),
            interval_seconds=0.2,
        )

    async def results(self, count: int, timeout_seconds: float) -> dict[str, dict[str, Any]]:
        """Wait until `count` results are stored. Return all stored results by invocation ID."""
        deadline = time.monotonic() + timeout_seconds
        results: dict[str, dict[str, Any]] = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            while len(results) < count:
                assert time.monotonic() < deadline, f"{len(results)} of {count} invocations have a result"
                await asyncio.sleep(1)
                results = await self._list_results(session)
        return results

    async def _list_results(self, session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
        results: dict[str, dict[str, Any]] = {}
        for state in TERMINAL_STATES:
            page = {"serverlessRequestID": self.name, "state": state, "limit": "500"}
            while True:
                async with session.get(api_url(self.node) + INVOCATIONS_PATH, params=page) as response:
                    if response.status != 200:
                        return {}
                    body = await response.json()
                for each in body["data"]:
                    assert each["invocationID"] not in results, f"{each} has two results"
                    results[each["invocationID"]] = each
                if not body.get("continue"):
                    break
                page["continue"] = body["continue"]
        return results

    def wait_no_workers(self, timeout_seconds: float = 180) -> None:
        def explain() -> str:
            log = self.node.kubectl(
                "logs", "deployment/activator", "--namespace=runtime-system", "--all-pods", "--tail=80"
            )
            return f"remaining workers: {self.workers()}\n{log}"

        wait_until(lambda: not self.workers(), timeout_seconds, explain, interval_seconds=0.5)

    def delete(self) -> None:
        """Delete the function when no pod of its workers is starting.

        A program that gets SIGTERM before it handles the signal runs until the end of the grace period.
        """
        wait_until(lambda: not self._starting_pods(), 120, lambda: f"these pods do not start: {self._starting_pods()}")
        self.node.kubectl("delete", "gpuunit", self.name, f"--namespace={UNIT_NAMESPACE}", "--timeout=120s")
        self.wait_no_workers()

    def _starting_pods(self) -> list[str]:
        pods = json.loads(self.node.kubectl("get", "pods", f"--namespace={UNIT_NAMESPACE}", "-o=json"))["items"]
        own = [pod for pod in pods if pod["metadata"]["name"].startswith(f"{self.name}-w")]
        return [pod["metadata"]["name"] for pod in own if _is_starting(pod)]


def _is_starting(pod: dict[str, Any]) -> bool:
    """Whether the pod was never Ready. A pod with a restarted container was Ready, or its program fails."""
    status = pod["status"]
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ()))
    is_restarted = any(each["restartCount"] for each in status.get("containerStatuses", ()))
    return not is_ready and not is_restarted and "deletionTimestamp" not in pod["metadata"]
