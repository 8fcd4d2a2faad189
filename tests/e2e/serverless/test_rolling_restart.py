"""All that is deployed is restarted in turn, as an upgrade does it, and clients go on as if nothing happened."""

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
BASELINE_UNIT = "before-all"
RETRY_DELAY_SECONDS = 1.0
"""Seconds before a client sends a request again, as Retry-After says."""
RETRIED_STATUSES = (0, 503, 504)
"""What a client answers with the same request once more; 0 is a connection that broke."""
CALLERS, THINK_SECONDS = 4, 0.1
"""So many call the function, one call after the other, and think for so many seconds in between."""
CREATE_INTERVAL_SECONDS = 0.3
"""Seconds between two creates, where there is stock."""
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
    """They send what failed in passing again: once, and no more, unless they are told otherwise."""

    api: str
    reused_session: aiohttp.ClientSession
    """Uses its connections again, as the client of a busy product does."""
    new_session: aiohttp.ClientSession
    """Makes a connection for every request, so that each one is sent to any replica."""
    max_retries: int = 1
    request_count: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    longest_seconds: float = 0

    async def request(
        self, method: str, path: str, body: Any = None, *, kept: bool = False
    ) -> tuple[int, dict[str, Any]]:
        began = time.monotonic()
        session = self.reused_session if kept else self.new_session
        self.request_count += 1
        status, said = await self._once(session, method, path, body)
        for _ in range(self.max_retries):
            if status not in RETRIED_STATUSES:
                break
            self.retries[f"{status} {said['error']['code']}"] += 1
            await asyncio.sleep(RETRY_DELAY_SECONDS)
            status, said = await self._once(session, method, path, body)
        self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
        return status, said

    async def _once(
        self, session: aiohttp.ClientSession, method: str, path: str, body: Any
    ) -> tuple[int, dict[str, Any]]:
        try:
            async with session.request(method, self.api + path, json=body) as answer:
                return answer.status, dict(json.loads(await answer.read() or b"{}"))
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, {"error": {"code": type(error).__name__, "message": str(error)}}


@dataclass
class SteadyLoad:
    """Units that are created, seen Ready and deleted, and a function that is called, at a steady pace."""

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
        """Every third call waits for the answer."""
        while not self.stopped.is_set():
            number = next(numbers)
            named = {"invocationID": f"{self.function.name}-{number}", "serverlessRequestID": self.function.name}
            mode = "async" if number % 3 else "sync"
            body = {**named, "payload": number, "mode": mode, "timeoutSeconds": 300}
            said = await self.expect((200, 202), "POST", INVOCATIONS_PATH, body, kept=True)
            self.called.append(named["invocationID"])
            if said and mode == "sync" and said["data"].get("payload") != number:
                self.failed.append(f"call {number}: {said}")
            await asyncio.sleep(THINK_SECONDS)

    async def create(self, number: int) -> str | None:
        """A unit from stock. What one replica says is there may be gone, or not known yet, where another one looks."""
        name = f"{self.function.name}-{number}"
        named = {"operationID": f"make-{name}", "name": name, "specName": self.flavor}
        body = {**named, "image": "busybox:1.36", "template": SLEEP_TEMPLATE}
        while True:
            status, said = await self.clients.request("POST", "/gpu-units", body)
            if status in (200, 201):
                self.created.append(name)
                return name
            if said["error"]["code"] != "no_stock":
                self.failed.append(f"create {name}: {status} {said}")
                return None
            await asyncio.sleep(CREATE_INTERVAL_SECONDS)

    async def run_unit(self, name: str) -> None:
        """The rest of a unit's life; its GPU becomes stock again."""
        await self.wait_ready(name)
        await self.expect((204, 404), "DELETE", f"/gpu-units/{name}")
        await self.seed(f"after-{name}", 1)

    async def ready_stock(self) -> int:
        said = await self.expect((200,), "GET", "/operator/inventory")
        flavors = said["data"]["flavors"] if said else []
        return sum(each["stock"]["ready"] for each in flavors if each["specName"] == self.flavor)

    async def seed_stock(self) -> None:
        await self.seed("first", GPUS)
        async with asyncio.timeout(180):
            while await self.ready_stock() < GPUS:  # noqa: ASYNC110 - it is another process that is waited for
                await asyncio.sleep(0.2)

    async def restart_under_load(self, workload: str, namespace: str) -> None:
        """Roll a workload under this load, and tell what that was like."""
        clients, units, calls = self.clients, len(self.created), len(self.called)
        clients.request_count, clients.longest_seconds = 0, 0.0
        clients.retries.clear()
        took = await asyncio.to_thread(rolling_restart, self.function.node, workload, namespace)
        print(
            f"\n{workload} in {took:.1f} s: {len(self.created) - units} units, {len(self.called) - calls} calls,"
            f" {clients.request_count} requests, the longest {clients.longest_seconds:.1f} s; sent again: {dict(clients.retries)}",
            end="",
            flush=True,
        )

    async def wait_ready(self, name: str, within: float = 180) -> None:
        ends = time.monotonic() + within
        while time.monotonic() < ends:
            said = await self.expect((200,), "GET", f"/gpu-units/{name}")
            if said and said["data"]["ready"]:
                return
            await asyncio.sleep(0.5)
        self.failed.append(f"{name} is not Ready within {within:g} s: {said}")

    async def seed(self, operation: str, count: int) -> None:
        named = {
            "operationID": f"{self.function.name}-{operation}",
            "specName": self.flavor,
            "memory": "64Mi",
            "gpu": 1,
        }
        if await self.expect((200, 202), "POST", "/operator/stock-units", named | {"replicas": count}):
            self.seeded += count

    async def expect(
        self, statuses: tuple[int, ...], method: str, path: str, body: Any = None, *, kept: bool = False
    ) -> dict[str, Any]:
        """The document of an answer that is as it should be."""
        status, said = await self.clients.request(method, path, body, kept=kept)
        if status in statuses:
            return said or {"data": None}
        self.failed.append(f"{method} {path}: {status} {said}")
        return {}


def rolling_restart(node: Node, workload: str, namespace: str) -> float:
    """Restart its pods as its manifest wants it, until the last old one is gone. Gives the seconds."""
    began, where = time.monotonic(), f"--namespace={namespace}"
    node.kubectl("rollout", "restart", workload, where)
    node.kubectl("rollout", "status", workload, where, "--timeout=240s")
    selector = f"--selector=app.kubernetes.io/name={workload.partition('/')[2]}"
    while any("deletionTimestamp" in pod["metadata"] for pod in listed(node, "pods", namespace, selector)):
        time.sleep(0.2)
    return time.monotonic() - began


def listed(node: Node, kind: str, namespace: str, *how: str) -> list[dict[str, Any]]:
    return list(json.loads(node.kubectl("get", kind, f"--namespace={namespace}", "--output=json", *how))["items"])


@pytest.fixture
def echo(deployed_platform: Node) -> Iterator[DeployedFunction]:
    function = DeployedFunction(deployed_platform, "echo")
    function.create(ECHO_FUNCTION_SOURCE, maxWorkers=2, minAvailableCount=2, concurrency=16, idleTimeoutSeconds=60)
    assert function.invoke_sync(0, invocationID=BASELINE_UNIT)[0] == 200
    yield function
    function.delete()


@asynccontextmanager
async def clients_of(node: Node) -> AsyncIterator[RetryingClients]:
    patience, each_its_own = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(timeout=patience) as kept,
        aiohttp.ClientSession(timeout=patience, connector=each_its_own) as fresh,
    ):
        yield RetryingClients(api_url(node), kept, fresh)


async def test_rolling_restart_of_everything_fails_no_retried_request(echo: DeployedFunction) -> None:
    node = echo.node
    async with clients_of(node) as clients, asyncio.TaskGroup() as tasks:
        load = SteadyLoad(clients, echo)
        await load.seed_stock()
        tasks.create_task(load.run())
        for each in DEPLOYMENTS:
            await load.restart_under_load(f"deployment/{each}", "runtime-system")
        clients.max_retries = 60  # it is one server, which is away for some seconds; on three it would be as above
        await load.restart_under_load("statefulset/nats", "messaging")
        load.stopped.set()
    results = await echo.results(len(load.called) + 1, 180)
    assert load.failed == []
    states = Counter(result["state"] for result in results.values())
    assert (set(results) - {BASELINE_UNIT}, set(states)) == (set(load.called), {"succeeded"})
    left = [each for each in listed(node, "gpuunits", "runtime-stock") if each["spec"]["specName"] == load.flavor]
    assert len(left) + len(consumed_stock(node, load.created)) == load.seeded
    node.kubectl("delete", "gpuunits", *(each["metadata"]["name"] for each in left), "--namespace=runtime-stock")


def consumed_stock(node: Node, names: list[str]) -> set[str]:
    """The stock from which the units of these names were made."""
    operations = {each["spec"]["operationID"]: each for each in listed(node, "operations", "runtime-system")}
    made = [operations[f"make-{name}"]["status"] for name in names]
    assert {each["state"] for each in made} == {"Succeeded"}
    found = {each["stock"]["uid"] for each in made}
    assert len(found) == len(names), "stock was given out twice"
    return found
