"""Functions on a real node as a product's control plane sees them: made with kubectl, called over HTTP."""

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

    def create(self, source: str, **serverless: Any) -> None:
        """A function without any worker, known to the API when this returns."""
        block = {"enabled": True, "requestID": self.name, "maxWorkers": 1, "idleTimeoutSeconds": 5, **serverless}
        spec = {
            "specName": "e2e.functions",
            "image": "gpu-runtime:local",
            "memory": "128Mi",
            "gpu": 1,
            "template": {"command": ["python", "-c"], "args": [source]},
            "serverless": block,
            "running": False,
        }
        manifest = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "spec": spec}
        apply_manifest(self.node, manifest | {"metadata": {"name": self.name, "namespace": UNIT_NAMESPACE}})

        def is_known() -> bool:
            return request_with_retry(self.node, "GET", f"{INVOCATIONS_PATH}?serverlessRequestID={self.name}")[0] == 200

        wait_until(is_known, 60, lambda: f"the API does not know {self.name}")

    def invoke(self, payload: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        asked = {"serverlessRequestID": self.name, "payload": payload, **more}
        return request_with_retry(self.node, "POST", INVOCATIONS_PATH, asked, within=100)

    def invoke_sync(self, payload: Any, **more: Any) -> tuple[int, dict[str, Any]]:
        """A synchronous call, waited for once more where its first worker takes longer than the API waits."""
        named = {"invocationID": f"{self.name}-{uuid.uuid4().hex}", "timeoutSeconds": 240, **more}
        for _ in range(5):
            status, said = self.invoke(payload, mode="sync", **named)
            if status != 504:
                break
        return status, said

    def workers(self) -> list[str]:
        found = json.loads(self.node.kubectl("get", "gpuunits", f"--namespace={UNIT_NAMESPACE}", "-o=json"))["items"]
        return [
            unit["metadata"]["name"]
            for unit in found
            if unit["spec"].get("serverless", {}).get("workerOf") == self.name
        ]

    def invocation_state(self, invocation_id: str) -> str:
        status, said = request_with_retry(self.node, "GET", f"{INVOCATIONS_PATH}/{invocation_id}")
        return str(said["data"]["state"]) if status == 200 else f"{status}: {said}"

    def wait_state(self, invocation_id: str, state: str, within: float = 180) -> None:
        wait_until(
            lambda: self.invocation_state(invocation_id) == state,
            within,
            lambda: self.invocation_state(invocation_id),
            interval_seconds=0.2,
        )

    async def results(self, count: int, within: float) -> dict[str, dict[str, Any]]:
        """All stored results, by invocation, once there are so many."""
        ends = time.monotonic() + within
        found: dict[str, dict[str, Any]] = {}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            while len(found) < count:
                assert time.monotonic() < ends, f"{len(found)} of {count} have a result"
                await asyncio.sleep(1)
                found = await self._list_results(session)
        return found

    async def _list_results(self, session: aiohttp.ClientSession) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for state in TERMINAL_STATES:
            page = {"serverlessRequestID": self.name, "state": state, "limit": "500"}
            while True:
                async with session.get(api_url(self.node) + INVOCATIONS_PATH, params=page) as answer:
                    if answer.status != 200:
                        return {}
                    said = await answer.json()
                for each in said["data"]:
                    assert each["invocationID"] not in found, f"{each} has two results"
                    found[each["invocationID"]] = each
                if not said.get("continue"):
                    break
                page["continue"] = said["continue"]
        return found

    def wait_no_workers(self, within: float = 180) -> None:
        def explain() -> str:
            said = self.node.kubectl(
                "logs", "deployment/activator", "--namespace=runtime-system", "--all-pods", "--tail=80"
            )
            return f"still there: {self.workers()}\n{said}"

        wait_until(lambda: not self.workers(), within, explain, interval_seconds=0.5)

    def delete(self) -> None:
        self.node.kubectl("delete", "gpuunit", self.name, f"--namespace={UNIT_NAMESPACE}", "--timeout=120s")
        self.wait_no_workers()
