"""Invokes a function that has no worker, and lets it scale to zero again."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from bench.kube_api import RawKubeClient
from bench.testbed import units_path, wait_until
from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE

UNITS_PATH = units_path(INSTANCE_NAMESPACE)
INVOCATIONS_PATH, STOCK_UNITS_PATH = "/serverless/invocations", "/operator/stock-units"
IDLE_TIMEOUT_SECONDS = 1
"""The shortest idle timeout that the API server accepts."""
PAYLOAD = {"n": 21}
SOURCE = """
from gpu_runtime.framework import handler, serve

@handler
def run(request):
    return request.payload

serve()
"""


@dataclass(frozen=True)
class BenchFunction:
    """A function with at most one worker. Between two invocations of the benchmark it has none."""

    kube: RawKubeClient
    request: Callable[[str, str, Any], Awaitable[Any]]
    """Sends a request to the runtime API: method, path and body."""
    spec_name: str
    gpus: int

    @property
    def name(self) -> str:
        return f"function-{self.spec_name}"

    @property
    def worker_name(self) -> str:
        return f"{self.name}-w0"

    async def create(self) -> None:
        """Create the function. Return when the runtime API accepts invocations of it."""
        await self.kube.create(UNITS_PATH, self._manifest())
        await wait_until(self._is_known)

    async def invoke(self) -> None:
        """Invoke the function, and wait for its result."""
        body = {"serverlessRequestID": self.name, "mode": "sync", "payload": PAYLOAD}
        result = (await self.request("POST", INVOCATIONS_PATH, body))["data"]
        if (result["state"], result.get("payload")) != ("succeeded", PAYLOAD):
            raise RuntimeError(f"the invocation of {self.name} has not succeeded: {result}")

    async def scale_to_zero(self, *, from_stock: bool) -> None:
        """Wait until the activator has removed the idle worker. Withdraw the stock unit that it has seeded for it.

        The activator seeds a stock unit for each retired worker that came from stock. With this stock unit, the next
        start without stock would use stock, too.
        """
        await wait_until(self._has_no_worker)
        if from_stock:
            await wait_until(self._withdraw_stock)

    async def _is_known(self) -> bool:
        """Whether the runtime API has the function in its cache."""
        try:
            await self.request("GET", f"{INVOCATIONS_PATH}?serverlessRequestID={self.name}", None)
        except RuntimeError:
            return False
        return True

    async def _has_no_worker(self) -> bool:
        units = (await self.kube.get(UNITS_PATH))["items"]
        return all(each["spec"].get("serverless", {}).get("workerOf") != self.name for each in units)

    async def _withdraw_stock(self) -> bool:
        """Withdraw the stock units that are Ready. Return whether there were any."""
        query = f"specName={self.spec_name}&phase=Ready&claimed=false"
        stock = (await self.request("GET", f"{STOCK_UNITS_PATH}?{query}", None))["data"]
        for each in stock:
            await self.request("DELETE", f"{STOCK_UNITS_PATH}/{each['name']}", None)
        return bool(stock)

    def _manifest(self) -> dict[str, Any]:
        serverless = {"enabled": True, "requestID": self.name, "maxWorkers": 1}
        spec = {
            "specName": self.spec_name,
            "image": "gpu-runtime:local",
            "memory": "128Mi",
            "gpu": self.gpus,
            "template": {"command": ["python", "-c"], "args": [SOURCE]},
            "serverless": serverless | {"idleTimeoutSeconds": IDLE_TIMEOUT_SECONDS},
            "running": False,
        }
        manifest = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": {"name": self.name}}
        return manifest | {"spec": spec}
