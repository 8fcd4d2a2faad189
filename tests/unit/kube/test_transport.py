"""Requests are repeated only when that is safe, and no write passes a fence that has closed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu_runtime.kube.builtin_kinds import LEASES, NODES
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import NotLeading, ServerFailure, TooManyRequests, Unauthorized, Unreachable
from gpu_runtime.kube.kube_credentials import Fixed, Identity
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import IMPATIENT, Backoff, RetryPolicy
from gpu_runtime.kube.transport import Transport

KEY = Key("ns", "lead")
MANIFEST = {"metadata": {"namespace": "ns", "name": "lead"}}
QUICK = RetryPolicy(attempts=3, backoff=Backoff(first=0.001, longest=0.01))
Answer = Callable[[web.Request], web.StreamResponse]


class Scripted:
    """A server that answers from a script, then always well, and remembers what it was asked."""

    def __init__(self, *script: Answer) -> None:
        self.script = list(script)
        self.asked: list[web.Request] = []
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.arrived.set()
        await self.open.wait()
        await request.read()
        return self.script.pop(0)(request) if self.script else web.json_response({"metadata": {"name": "lead"}})


def status(code: int, **headers: str) -> Answer:
    return lambda _: web.Response(status=code, headers={key.replace("_", "-"): text for key, text in headers.items()})


def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def client_of(
    server: Scripted, connections: int = 4, metrics: KubeMetrics | None = None
) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as listening:
        config = ClusterConfig(str(listening.make_url("")).rstrip("/"), Fixed(Identity()))
        async with Transport(config, connections=connections, metrics=metrics) as transport:
            yield Client(transport, field_manager="test", retries=QUICK)


async def test_reads_are_repeated_after_failures_of_the_server() -> None:
    server, metrics = Scripted(status(503), hang_up), KubeMetrics()
    async with client_of(server, metrics=metrics) as client:
        await client.get(LEASES, KEY)
    assert len(server.asked) >= 3
    assert metrics.registry.get_sample_value("kube_client_requests_total", {"method": "GET", "code": "503"}) == 1
    assert metrics.registry.get_sample_value("kube_client_requests_total", {"method": "GET", "code": "200"}) == 1


async def test_a_create_that_may_have_been_carried_out_is_not_repeated() -> None:
    for failure, error in ((status(500), ServerFailure), (hang_up, Unreachable)):
        server = Scripted(failure)
        async with client_of(server) as client:
            with pytest.raises(error):
                await client.create(LEASES, MANIFEST)
        assert len(server.asked) == 1


async def test_a_create_that_was_surely_not_carried_out_is_repeated() -> None:
    server = Scripted(status(429, Retry_After="0"), status(503, Retry_After="0"))
    async with client_of(server) as client:
        await client.create(LEASES, MANIFEST)
    assert len(server.asked) == 3


async def test_an_apply_is_repeated_for_twice_is_as_good_as_once() -> None:
    server = Scripted(status(500), status(502))
    async with client_of(server) as client:
        await client.apply(LEASES, MANIFEST)
    assert len(server.asked) == 3


async def test_patience_ends() -> None:
    server = Scripted(*[status(429, Retry_After="0")] * 3)
    async with client_of(server) as client:
        with pytest.raises(TooManyRequests):
            await client.get(LEASES, KEY)
    assert len(server.asked) == 3


async def test_the_server_is_waited_for_as_long_as_it_asks() -> None:
    server = Scripted(status(429, Retry_After="1"))
    async with client_of(server) as client:
        started = asyncio.get_running_loop().time()
        await client.get(LEASES, KEY)
        assert asyncio.get_running_loop().time() - started >= 1


async def test_an_identity_that_cannot_be_renewed_is_refused_once() -> None:
    server = Scripted(status(401))
    async with client_of(server) as client:
        with pytest.raises(Unauthorized):
            await client.get(LEASES, KEY)
    assert len(server.asked) == 1


async def test_redirects_are_not_followed() -> None:
    server = Scripted(status(302, Location="/elsewhere"))
    async with client_of(server) as client:
        with pytest.raises(Exception, match="302"):
            await client.get(LEASES, KEY)
    assert len(server.asked) == 1


async def test_writes_are_strict_and_carry_their_manager() -> None:
    server = Scripted()
    async with client_of(server) as client:
        await client.create(LEASES, MANIFEST)
        await client.apply(LEASES, MANIFEST)
        await client.apply(LEASES, MANIFEST, force=False)
    create, forced, polite = (request.query for request in server.asked)
    assert dict(create) == {"fieldManager": "test", "fieldValidation": "Strict"}
    assert forced["force"] == "true"
    assert "force" not in polite


async def test_what_names_no_place_or_version_is_not_sent() -> None:
    server = Scripted()
    async with client_of(server) as client:
        with pytest.raises(ValueError, match="names no namespace"):
            await client.create(LEASES, {"metadata": {"name": "a"}})
        with pytest.raises(ValueError, match="needs the resourceVersion"):
            await client.replace(LEASES, MANIFEST)
        with pytest.raises(ValueError, match="does not name one"):
            await client.delete(LEASES, Key("ns", ""))
    assert server.asked == []


class Gate:
    """A fence that a test closes."""

    def __init__(self, remaining: float = 60.0) -> None:
        self.left = remaining
        self.asked = asyncio.Event()

    def remaining(self) -> float:
        self.asked.set()
        return self.left


async def test_a_closed_fence_holds_writes_back_and_lets_reads_pass() -> None:
    server, gate = Scripted(), Gate(0.0)
    async with client_of(server) as plain:
        client = plain.fenced(gate)
        await client.get(LEASES, KEY)
        for write in (
            client.create(LEASES, MANIFEST),
            client.apply(LEASES, MANIFEST),
            client.merge_patch(LEASES, KEY, {}),
            client.json_patch(LEASES, KEY, []),
            client.delete(LEASES, KEY),
            client.replace(LEASES, {"metadata": {**MANIFEST["metadata"], "resourceVersion": "1"}}),
        ):
            with pytest.raises(NotLeading):
                await write
        await plain.create(LEASES, MANIFEST)
    assert [request.method for request in server.asked] == ["GET", "POST"]


async def test_a_fence_that_closes_while_a_write_waits_for_a_connection_holds_it_back() -> None:
    server, gate = Scripted(), Gate()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, Key("", "one")))
        await server.arrived.wait()
        tasks.create_task(_refused(client.fenced(gate)))
        gate.left = 0.0
        server.open.set()
    assert [request.method for request in server.asked] == ["GET"]


async def test_whoever_waits_for_a_connection_gets_the_next_one() -> None:
    """aiohttp's own limit would let the busy one overtake the one that waits, again and again."""
    server = Scripted()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        for name in ("one", "two", "three"):
            tasks.create_task(_keep_asking(client, name))
    asked = [request.path.rpartition("/")[2] for request in server.asked]
    assert asked == ["one", "two", "three"] * 10


async def _keep_asking(client: Client, name: str) -> None:
    for _ in range(10):
        await client.get(NODES, Key("", name))


async def test_waiting_for_a_connection_has_an_end() -> None:
    server = Scripted()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, Key("", "one")))
        await server.arrived.wait()
        with pytest.raises(Unreachable, match="no connection was free") as failure:
            await client.patient(timeout=0.05, retries=IMPATIENT).create(LEASES, MANIFEST)
        assert not failure.value.sent
        server.open.set()


async def test_an_urgent_request_does_not_wait_until_a_connection_is_free() -> None:
    server = Scripted()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, Key("", "one")))
        await server.arrived.wait()
        server.arrived.clear()
        tasks.create_task(client.urgent().get(LEASES, KEY))
        async with asyncio.timeout(60):
            await server.arrived.wait()
        server.open.set()
    assert len(server.asked) == 2


async def _refused(client: Client) -> None:
    with pytest.raises(NotLeading):
        await client.create(LEASES, MANIFEST)


async def test_a_fence_that_closes_while_a_body_waits_for_the_event_loop_holds_it_back() -> None:
    """A process may be stopped after the first look at the fence and woken before the bytes are written."""

    class Closing(Gate):
        def remaining(self) -> float:
            return 0.0 if self.asked.is_set() else super().remaining()

    server = Scripted()
    async with client_of(server) as client:
        await client.get(LEASES, KEY)
        with pytest.raises(NotLeading):
            await client.fenced(Closing()).create(LEASES, MANIFEST)
        await client.get(LEASES, KEY)
    assert [request.method for request in server.asked] == ["GET", "GET"]


async def test_a_fence_that_closes_between_attempts_ends_them() -> None:
    gate = Gate()

    def fail_and_close(_: web.Request) -> web.StreamResponse:
        gate.left = 0.0
        return web.Response(status=429, headers={"Retry-After": "0"})

    server = Scripted(fail_and_close)
    async with client_of(server) as client:
        with pytest.raises(NotLeading):
            await client.fenced(gate).create(LEASES, MANIFEST)
    assert len(server.asked) == 1


async def test_a_write_does_not_outlive_the_right_to_write() -> None:
    server = Scripted()
    server.open.clear()
    async with client_of(server) as client:
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s") as failure:
            await client.fenced(Gate(0.2)).create(LEASES, MANIFEST)
        assert failure.value.sent
        server.open.set()
