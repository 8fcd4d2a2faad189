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
from tests.e2e.asking import api_of
from tests.e2e.runtime_api.test_storages_over_http import STAYS
from tests.e2e.serverless.calling import INVOCATIONS, Function

DEPLOYMENTS = ("runtime-api", "controller-manager", "activator", "result-store")
FIRST = "before-all"
PAUSE = 1.0
"""Seconds before a client sends a request again, as Retry-After says."""
PASSING = (0, 503, 504)
"""What a client answers with the same request once more; 0 is a connection that broke."""
CALLERS, THINKING = 4, 0.1
"""So many call the function, one call after the other, and think for so many seconds in between."""
SHOPPING = 0.3
"""Seconds between two creates, where there is stock."""
GPUS = 8

ECHO = """
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    return request.payload

serve()
"""


@dataclass
class Clients:
    """They send what failed in passing again: once, and no more, unless they are told otherwise."""

    api: str
    kept: aiohttp.ClientSession
    """Uses its connections again, as the client of a busy product does."""
    fresh: aiohttp.ClientSession
    """Makes a connection for every request, so that each one is sent to any replica."""
    more_tries: int = 1
    asked: int = 0
    again: Counter[str] = field(default_factory=Counter)
    longest: float = 0

    async def ask(self, method: str, path: str, body: Any = None, *, kept: bool = False) -> tuple[int, dict[str, Any]]:
        began = time.monotonic()
        session = self.kept if kept else self.fresh
        self.asked += 1
        status, said = await self._once(session, method, path, body)
        for _ in range(self.more_tries):
            if status not in PASSING:
                break
            self.again[f"{status} {said['error']['code']}"] += 1
            await asyncio.sleep(PAUSE)
            status, said = await self._once(session, method, path, body)
        self.longest = max(self.longest, time.monotonic() - began)
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
class Load:
    """Units that are created, seen Ready and deleted, and a function that is called, at a steady pace."""

    clients: Clients
    function: Function
    over: asyncio.Event = field(default_factory=asyncio.Event)
    created: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    seeded: int = 0
    failed: list[str] = field(default_factory=list)

    @property
    def flavour(self) -> str:
        return f"e2e.{self.function.name}"

    async def run(self) -> None:
        numbers = itertools.count()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CALLERS):
                tasks.create_task(self.call(numbers))
            for number in itertools.count():
                if self.over.is_set():
                    return
                if await self.ready_stock() > 2 and (name := await self.create(number)):
                    tasks.create_task(self.live(name))
                await asyncio.sleep(SHOPPING)

    async def call(self, numbers: Iterator[int]) -> None:
        """Every third call waits for the answer."""
        while not self.over.is_set():
            number = next(numbers)
            named = {"invocationID": f"{self.function.name}-{number}", "serverlessRequestID": self.function.name}
            mode = "async" if number % 3 else "sync"
            body = {**named, "payload": number, "mode": mode, "timeoutSeconds": 300}
            said = await self.expect((200, 202), "POST", INVOCATIONS, body, kept=True)
            self.called.append(named["invocationID"])
            if said and mode == "sync" and said["data"].get("payload") != number:
                self.failed.append(f"call {number}: {said}")
            await asyncio.sleep(THINKING)

    async def create(self, number: int) -> str | None:
        """A unit from stock. What one replica says is there may be gone, or not known yet, where another one looks."""
        name = f"{self.function.name}-{number}"
        named = {"operationID": f"make-{name}", "name": name, "specName": self.flavour}
        body = {**named, "image": "busybox:1.36", "template": STAYS}
        while True:
            status, said = await self.clients.ask("POST", "/gpu-units", body)
            if status in (200, 201):
                self.created.append(name)
                return name
            if said["error"]["code"] != "no_stock":
                self.failed.append(f"create {name}: {status} {said}")
                return None
            await asyncio.sleep(SHOPPING)

    async def live(self, name: str) -> None:
        """The rest of a unit's life; its GPU becomes stock again."""
        await self.wait_ready(name)
        await self.expect((204, 404), "DELETE", f"/gpu-units/{name}")
        await self.seed(f"after-{name}", 1)

    async def ready_stock(self) -> int:
        said = await self.expect((200,), "GET", "/operator/inventory")
        flavours = said["data"]["flavours"] if said else []
        return sum(each["stock"]["ready"] for each in flavours if each["specName"] == self.flavour)

    async def stock_up(self) -> None:
        await self.seed("first", GPUS)
        async with asyncio.timeout(180):
            while await self.ready_stock() < GPUS:  # noqa: ASYNC110 - it is another process that is waited for
                await asyncio.sleep(0.2)

    async def during(self, workload: str, namespace: str) -> None:
        """Roll a workload under this load, and tell what that was like."""
        clients, units, calls = self.clients, len(self.created), len(self.called)
        clients.asked, clients.longest = 0, 0.0
        clients.again.clear()
        took = await asyncio.to_thread(roll, self.function.node, workload, namespace)
        print(
            f"\n{workload} in {took:.1f} s: {len(self.created) - units} units, {len(self.called) - calls} calls,"
            f" {clients.asked} requests, the longest {clients.longest:.1f} s; sent again: {dict(clients.again)}",
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
            "specName": self.flavour,
            "memory": "64Mi",
            "gpu": 1,
        }
        if await self.expect((200, 202), "POST", "/operator/stock-units", named | {"replicas": count}):
            self.seeded += count

    async def expect(
        self, statuses: tuple[int, ...], method: str, path: str, body: Any = None, *, kept: bool = False
    ) -> dict[str, Any]:
        """The document of an answer that is as it should be."""
        status, said = await self.clients.ask(method, path, body, kept=kept)
        if status in statuses:
            return said or {"data": None}
        self.failed.append(f"{method} {path}: {status} {said}")
        return {}


def roll(node: Node, workload: str, namespace: str) -> float:
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
def echo(whole_platform: Node) -> Iterator[Function]:
    function = Function(whole_platform, "echo")
    function.define(ECHO, maxWorkers=2, minAvailableCount=2, concurrency=16, idleTimeoutSeconds=60)
    assert function.answer(0, invocationID=FIRST)[0] == 200
    yield function
    function.remove()


@asynccontextmanager
async def clients_of(node: Node) -> AsyncIterator[Clients]:
    patience, each_its_own = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(timeout=patience) as kept,
        aiohttp.ClientSession(timeout=patience, connector=each_its_own) as fresh,
    ):
        yield Clients(api_of(node), kept, fresh)


async def test_a_roll_of_everything_fails_no_request_that_is_sent_again_once_and_loses_nothing(echo: Function) -> None:
    node = echo.node
    async with clients_of(node) as clients, asyncio.TaskGroup() as tasks:
        load = Load(clients, echo)
        await load.stock_up()
        tasks.create_task(load.run())
        for each in DEPLOYMENTS:
            await load.during(f"deployment/{each}", "runtime-system")
        clients.more_tries = 60  # it is one server, which is away for some seconds; on three it would be as above
        await load.during("statefulset/nats", "messaging")
        load.over.set()
    results = await echo.results(len(load.called) + 1, 180)
    assert load.failed == []
    states = Counter(result["state"] for result in results.values())
    assert (set(results) - {FIRST}, set(states)) == (set(load.called), {"succeeded"})
    left = [each for each in listed(node, "gpuunits", "runtime-stock") if each["spec"]["specName"] == load.flavour]
    assert len(left) + len(consumed(node, load.created)) == load.seeded
    node.kubectl("delete", "gpuunits", *(each["metadata"]["name"] for each in left), "--namespace=runtime-stock")


def consumed(node: Node, names: list[str]) -> set[str]:
    """The stock from which the units of these names were made."""
    operations = {each["spec"]["operationID"]: each for each in listed(node, "operations", "runtime-system")}
    made = [operations[f"make-{name}"]["status"] for name in names]
    assert {each["state"] for each in made} == {"Succeeded"}
    found = {each["stock"]["uid"] for each in made}
    assert len(found) == len(names), "stock was given out twice"
    return found
