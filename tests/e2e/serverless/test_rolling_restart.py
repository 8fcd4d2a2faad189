"""A rolling restart of every workload, as in an upgrade: clients that retry see no failed request."""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from localcluster.node import Node
from tests.e2e.node_api_requests import api_url
from tests.e2e.runtime_api.test_storages_over_http import SLEEP_TEMPLATE
from tests.e2e.serverless.deployed_function import INVOCATIONS_PATH, DeployedFunction

DEPLOYMENTS = ("runtime-api", "controller-manager", "activator", "result-store")
WARM_UP_INVOCATION = "warm-up"
RETRY_DELAY_SECONDS = 1.0
"""Delay before a client repeats a request, equal to the Retry-After of the API."""
RETRIED_STATUSES = (0, 503, 504)
"""Statuses after which a client repeats a request. 0 means that the connection broke."""
CALLERS, THINK_SECONDS = 4, 0.1
"""Number of concurrent callers of the function, and the pause of each caller between two calls."""
CREATE_INTERVAL_SECONDS = 0.3
"""Interval between two creates while stock is ready."""
GPUS = 8

ECHO_FUNCTION_SOURCE = """
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    return request.payload

serve()
"""


@dataclass
class RetryingClients:
    """Sends requests, and repeats those that fail with a retryable status at most `max_retries` times."""

    api: str
    reused_session: aiohttp.ClientSession
    """Reuses its connections, as the client of a busy product does."""
    new_session: aiohttp.ClientSession
    """Opens a connection for every request, so that any replica may receive it."""
    max_retries: int = 1
    request_count: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0

    async def request(
        self, method: str, path: str, body: Any = None, *, reuse_connection: bool = False
    ) -> tuple[int, dict[str, Any]]:
        started = time.monotonic()
        session = self.reused_session if reuse_connection else self.new_session
        self.request_count += 1
        status, response = await self._once(session, method, path, body)
        for _ in range(self.max_retries):
            if status not in RETRIED_STATUSES:
                break
            self.retries[f"{status} {response['error']['code']}"] += 1
            await asyncio.sleep(RETRY_DELAY_SECONDS)
            status, response = await self._once(session, method, path, body)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - started)
        return status, response

    async def _once(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any
    ) -> tuple[int, dict[str, Any]]:
        try:
            async with session.request(method, self.api + path, json=body) as response:
                return response.status, dict(json.loads(await response.read() or b"{}"))
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, {"error": {"code": type(error).__name__, "message": str(error)}}


@dataclass
class SteadyLoad:
    """Creates units, waits until they are Ready and deletes them, and invokes a function, all at a steady rate."""

    clients: RetryingClients
    function: DeployedFunction
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    created: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    seeded: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def flavor(self) -> str:
        return f"e2e.{self.function.name}"

    async def run(self) -> None:
        numbers = itertools.count()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(self.call(numbers))
            for number in itertools.count():
                if self.stopped.is_set():
                    return
                if await self.ready_stock() > 2 and (name := await self.create(number)):
                    tasks.create_task(self.run_unit(name))
                await asyncio.sleep(CREATE_INTERVAL_SECONDS)

    async def call(self, numbers: Iterator[int]) -> None:
        """Invoke the function repeatedly. Every third invocation is synchronous."""
        while not self.stopped.is_set():
            number = next(numbers)
            identity = {"invocationID": f"{self.function.name}-{number}", "serverlessRequestID": self.function.name}
            mode = "async" if number % 3 else "sync"
            body = {**identity, "payload": number, "mode": mode, "timeoutSeconds": 300}
            response = await self.expect((200, 202), "POST", INVOCATIONS_PATH, body, reuse_connection=True)
            self.called.append(identity["invocationID"])
            if response and mode == "sync" and response["data"].get("payload") != number:
                self.failed.append(f"call {number}: {response}")
            await asyncio.sleep(THINK_SECONDS)

    async def create(self, number: int) -> str | None:
        """Create a unit from stock, and repeat the request after `no_stock`.

        The caches of the replicas differ: one replica may report stock that another has not seen or has seen deleted.
        """
        name = f"{self.function.name}-{number}"
        identity = {"operationID": f"create-{name}", "name": name, "specName": self.flavor}
        body = {**identity, "image": "busybox:1.36", "template": SLEEP_TEMPLATE}
        while True:
            status, response = await self.clients.request("POST", "/gpu-units", body)
            if status in (200, 201):
                self.created.append(name)
                return name
            if response["error"]["code"] != "no_stock":
                self.failed.append(f"create {name}: {status} {response}")
                return None
            await asyncio.sleep(CREATE_INTERVAL_SECONDS)

    async def run_unit(self, name: str) -> None:
        """Wait until the unit is Ready, delete it, and seed a stock unit for its GPU."""
        await self.wait_ready(name)
        await self.expect((204, 404), "DELETE", f"/gpu-units/{name}")
        await self.seed(f"after-{name}", 1)

    async def ready_stock(self) -> int:
        response = await self.expect((200,), "GET", "/operator/inventory")
        flavors = response["data"]["flavors"] if response else []
        return sum(each["stock"]["ready"] for each in flavors if each["specName"] == self.flavor)

    async def seed_stock(self) -> None:
        await self.seed("first", GPUS)
        async with asyncio.timeout(180):
            while await self.ready_stock() < GPUS:  # noqa: ASYNC110 - the API sends no event for this
                await asyncio.sleep(0.2)

    async def restart_under_load(self, workload: str, namespace: str) -> None:
        """Restart a workload while the load runs, and print statistics."""
        clients, units, calls = self.clients, len(self.created), len(self.called)
        clients.request_count, clients.longest_seconds = 0, 0.0
        clients.retries.clear()
        duration = await asyncio.to_thread(rolling_restart, self.function.node, workload, namespace)
        print(
            f"\n{workload} in {duration:.1f} s: {len(self.created) - units} units, {len(self.called) - calls} calls,"
            f" {clients.request_count} requests, longest {clients.longest_seconds:.1f} s;"
            f" retries: {dict(clients.retries)}",
            end="",
            flush=True,
        )

    async def wait_ready(self, name: str, timeout_seconds: float = 180) -> None:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            response = await self.expect((200,), "GET", f"/gpu-units/{name}")
            if response and response["data"]["ready"]:
                return
            await asyncio.sleep(0.5)
        self.failed.append(f"{name} is not Ready within {timeout_seconds:g} s: {response}")

    async def seed(self, operation: str, count: int) -> None:
        request = {
            "operationID": f"{self.function.name}-{operation}",
            "specName": self.flavor,
            "memory": "64Mi",
            "gpu": 1,
        }
        if await self.expect((200, 202), "POST", "/operator/stock-units", request | {"replicas": count}):
            self.seeded += count

    async def expect(
        self, statuses: tuple[int, ...], method: str, path: str, body: Any = None, *, reuse_connection: bool = False
    ) -> dict[str, Any]:
        """Send a request and return its response body. Record a failure if the status is not expected."""
        status, response = await self.clients.request(method, path, body, reuse_connection=reuse_connection)
        if status in statuses:
            return response or {"data": None}
        self.failed.append(f"{method} {path}: {status} {response}")
        return {}


def rolling_restart(node: Node, workload: str, namespace: str) -> float:
    """Restart the pods of a workload, and wait until no old pod is terminating. Return the duration in seconds."""
    started, namespace_flag = time.monotonic(), f"--namespace={namespace}"
    node.kubectl("rollout", "restart", workload, namespace_flag)
    node.kubectl("rollout", "status", workload, namespace_flag, "--timeout=240s")
    selector = f"--selector=app.kubernetes.io/name={workload.partition('/')[2]}"
    while any("deletionTimestamp" in pod["metadata"] for pod in list_objects(node, "pods", namespace, selector)):
        time.sleep(0.2)
    return time.monotonic() - started


def list_objects(node: Node, kind: str, namespace: str, *flags: str) -> list[dict[str, Any]]:
    return list(json.loads(node.kubectl("get", kind, f"--namespace={namespace}", "--output=json", *flags))["items"])


@pytest.fixture
def echo(deployed_platform: Node) -> Iterator[DeployedFunction]:
    function = DeployedFunction(deployed_platform, "echo")
    function.create(ECHO_FUNCTION_SOURCE, maxWorkers=2, minAvailableCount=2, concurrency=16, idleTimeoutSeconds=60)
    assert function.invoke_sync(0, invocationID=WARM_UP_INVOCATION)[0] == 200
    yield function
    function.delete()


@asynccontextmanager
async def retrying_clients(node: Node) -> AsyncIterator[RetryingClients]:
    timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(timeout=timeout) as reused_session,
        aiohttp.ClientSession(timeout=timeout, connector=connector) as new_session,
    ):
        yield RetryingClients(api_url(node), reused_session, new_session)


async def test_rolling_restart_of_all_workloads_fails_no_retried_request(echo: DeployedFunction) -> None:
    node = echo.node
    async with retrying_clients(node) as clients, asyncio.TaskGroup() as tasks:
        load = SteadyLoad(clients, echo)
        await load.seed_stock()
        tasks.create_task(load.run())
        for each in DEPLOYMENTS:
            await load.restart_under_load(f"deployment/{each}", "runtime-system")
        clients.max_retries = 60  # a single NATS server is unavailable for some seconds; a cluster of three is not
        await load.restart_under_load("statefulset/nats", "messaging")
        load.stopped.set()
    results = await echo.results(len(load.called) + 1, 180)
    assert load.failed == []
    states = Counter(result["state"] for result in results.values())
    assert (set(results) - {WARM_UP_INVOCATION}, set(states)) == (set(load.called), {"succeeded"})
    remaining = [
        each for each in list_objects(node, "gpuunits", "runtime-stock") if each["spec"]["specName"] == load.flavor
    ]
    assert len(remaining) + len(consumed_stock(node, load.created)) == load.seeded
    node.kubectl("delete", "gpuunits", *(each["metadata"]["name"] for each in remaining), "--namespace=runtime-stock")


def consumed_stock(node: Node, names: list[str]) -> set[str]:
    """Return the UIDs of the stock units from which the units with these names were created."""
    operations = {each["spec"]["operationID"]: each for each in list_objects(node, "operations", "runtime-system")}
    statuses = [operations[f"create-{name}"]["status"] for name in names]
    assert {each["state"] for each in statuses} == {"Succeeded"}
    uids = {each["stock"]["uid"] for each in statuses}
    assert len(uids) == len(names), "a stock unit was claimed twice"
    return uids
