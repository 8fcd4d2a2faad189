"""Requests are repeated only when that is safe, and no write passes a fence that has closed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu_runtime.kube.builtin_kinds import LEASES, NODES
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import (
    KubeNotLeader,
    KubeServerError,
    KubeTooManyRequests,
    KubeUnauthorized,
    KubeUnreachable,
)
from gpu_runtime.kube.kube_credentials import ClientIdentity, StaticCredentials
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import NO_RETRY, Backoff, RetryPolicy
from gpu_runtime.kube.transport import Transport

KEY = ObjectKey("ns", "lead")
MANIFEST = {"metadata": {"namespace": "ns", "name": "lead"}}
QUICK = RetryPolicy(max_attempts=3, backoff=Backoff(initial_seconds=0.001, max_seconds=0.01))
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
) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as listening:
        config = ClusterConfig(str(listening.make_url("")).rstrip("/"), StaticCredentials(ClientIdentity()))
        async with Transport(config, max_connections=connections, metrics=metrics) as transport:
            yield KubeClient(transport, field_manager="test", retries=QUICK)


async def test_reads_are_repeated_after_failures_of_the_server() -> None:
    server, metrics = Scripted(status(503), hang_up), KubeMetrics()
    async with client_of(server, metrics=metrics) as client:
        await client.get(LEASES, KEY)
    assert len(server.asked) >= 3
    assert metrics.registry.get_sample_value("kube_client_requests_total", {"method": "GET", "code": "503"}) == 1
    assert metrics.registry.get_sample_value("kube_client_requests_total", {"method": "GET", "code": "200"}) == 1


async def test_create_with_unknown_outcome_is_not_retried() -> None:
    for failure, error in ((status(500), KubeServerError), (hang_up, KubeUnreachable)):
        server = Scripted(failure)
        async with client_of(server) as client:
            with pytest.raises(error):
                await client.create(LEASES, MANIFEST)
        assert len(server.asked) == 1


async def test_rejected_create_is_retried() -> None:
    server = Scripted(status(429, Retry_After="0"), status(503, Retry_After="0"))
    async with client_of(server) as client:
        await client.create(LEASES, MANIFEST)
    assert len(server.asked) == 3


async def test_apply_is_retried_because_it_is_idempotent() -> None:
    server = Scripted(status(500), status(502))
    async with client_of(server) as client:
        await client.apply(LEASES, MANIFEST)
    assert len(server.asked) == 3


async def test_request_fails_after_max_attempts() -> None:
    server = Scripted(*[status(429, Retry_After="0")] * 3)
    async with client_of(server) as client:
        with pytest.raises(KubeTooManyRequests):
            await client.get(LEASES, KEY)
    assert len(server.asked) == 3


async def test_retry_waits_for_retry_after() -> None:
    server = Scripted(status(429, Retry_After="1"))
    async with client_of(server) as client:
        started = asyncio.get_running_loop().time()
        await client.get(LEASES, KEY)
        assert asyncio.get_running_loop().time() - started >= 1


async def test_401_with_static_credentials_is_not_retried() -> None:
    server = Scripted(status(401))
    async with client_of(server) as client:
        with pytest.raises(KubeUnauthorized):
            await client.get(LEASES, KEY)
    assert len(server.asked) == 1


async def test_redirects_are_not_followed() -> None:
    server = Scripted(status(302, Location="/elsewhere"))
    async with client_of(server) as client:
        with pytest.raises(Exception, match="302"):
            await client.get(LEASES, KEY)
    assert len(server.asked) == 1


async def test_writes_have_strict_validation_and_a_field_manager() -> None:
    server = Scripted()
    async with client_of(server) as client:
        await client.create(LEASES, MANIFEST)
        await client.apply(LEASES, MANIFEST)
        await client.apply(LEASES, MANIFEST, force=False)
    create, forced, polite = (request.query for request in server.asked)
    assert dict(create) == {"fieldManager": "test", "fieldValidation": "Strict"}
    assert forced["force"] == "true"
    assert "force" not in polite


async def test_request_without_namespace_name_or_version_is_not_sent() -> None:
    server = Scripted()
    async with client_of(server) as client:
        with pytest.raises(ValueError, match="names no namespace"):
            await client.create(LEASES, {"metadata": {"name": "a"}})
        with pytest.raises(ValueError, match="needs the resourceVersion"):
            await client.replace(LEASES, MANIFEST)
        with pytest.raises(ValueError, match="does not name one"):
            await client.delete(LEASES, ObjectKey("ns", ""))
    assert server.asked == []


class ManualFence:
    """A fence that a test closes."""

    def __init__(self, remaining: float = 60.0) -> None:
        self.remaining_seconds = remaining
        self.asked = asyncio.Event()

    def remaining(self) -> float:
        self.asked.set()
        return self.remaining_seconds


async def test_closed_fence_blocks_writes_and_allows_reads() -> None:
    server, gate = Scripted(), ManualFence(0.0)
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
            with pytest.raises(KubeNotLeader):
                await write
        await plain.create(LEASES, MANIFEST)
    assert [request.method for request in server.asked] == ["GET", "POST"]


async def test_fence_that_closes_while_a_write_waits_for_a_connection_blocks_it() -> None:
    server, gate = Scripted(), ManualFence()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, ObjectKey("", "one")))
        await server.arrived.wait()
        tasks.create_task(_expect_not_leading(client.fenced(gate)))
        gate.remaining_seconds = 0.0
        server.open.set()
    assert [request.method for request in server.asked] == ["GET"]


async def test_connections_are_assigned_in_fifo_order() -> None:
    """aiohttp's own limit would let the busy one overtake the one that waits, again and again."""
    server = Scripted()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        for name in ("one", "two", "three"):
            tasks.create_task(_get_repeatedly(client, name))
    asked = [request.path.rpartition("/")[2] for request in server.asked]
    assert asked == ["one", "two", "three"] * 10


async def _get_repeatedly(client: KubeClient, name: str) -> None:
    for _ in range(10):
        await client.get(NODES, ObjectKey("", name))


async def test_waiting_for_a_connection_times_out() -> None:
    server = Scripted()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, ObjectKey("", "one")))
        await server.arrived.wait()
        with pytest.raises(KubeUnreachable, match="no connection was free") as failure:
            await client.with_options(timeout=0.05, retries=NO_RETRY).create(LEASES, MANIFEST)
        assert not failure.value.sent
        server.open.set()


async def test_request_without_queueing_does_not_wait_for_a_free_connection() -> None:
    server = Scripted()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, ObjectKey("", "one")))
        await server.arrived.wait()
        server.arrived.clear()
        tasks.create_task(client.without_connection_limit().get(LEASES, KEY))
        async with asyncio.timeout(60):
            await server.arrived.wait()
        server.open.set()
    assert len(server.asked) == 2


async def _expect_not_leading(client: KubeClient) -> None:
    with pytest.raises(KubeNotLeader):
        await client.create(LEASES, MANIFEST)


async def test_fence_that_closes_before_the_body_is_sent_blocks_the_write() -> None:
    """A process may be stopped after the first look at the fence and woken before the bytes are written."""

    class Closing(ManualFence):
        def remaining(self) -> float:
            return 0.0 if self.asked.is_set() else super().remaining()

    server = Scripted()
    async with client_of(server) as client:
        await client.get(LEASES, KEY)
        with pytest.raises(KubeNotLeader):
            await client.fenced(Closing()).create(LEASES, MANIFEST)
        await client.get(LEASES, KEY)
    assert [request.method for request in server.asked] == ["GET", "GET"]


async def test_fence_that_closes_between_attempts_stops_the_retries() -> None:
    gate = ManualFence()

    def fail_and_close(_: web.Request) -> web.StreamResponse:
        gate.remaining_seconds = 0.0
        return web.Response(status=429, headers={"Retry-After": "0"})

    server = Scripted(fail_and_close)
    async with client_of(server) as client:
        with pytest.raises(KubeNotLeader):
            await client.fenced(gate).create(LEASES, MANIFEST)
    assert len(server.asked) == 1


async def test_write_times_out_when_the_leadership_ends() -> None:
    server = Scripted()
    server.open.clear()
    async with client_of(server) as client:
        with pytest.raises(KubeUnreachable, match=r"no answer within 0\.2 s") as failure:
            await client.fenced(ManualFence(0.2)).create(LEASES, MANIFEST)
        assert failure.value.sent
        server.open.set()
