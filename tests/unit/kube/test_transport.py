"""The transport retries only safe requests, counts every attempt, and sends no write after its fence has closed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.builtin_kinds import LEASES
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import (
    KubeNotLeader,
    KubeResourceExpired,
    KubeServerError,
    KubeTooManyRequests,
    KubeUnauthorized,
    KubeUnreachable,
)
from gpu_runtime.kube.kube_credentials import ClientIdentity, StaticCredentials
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import NO_RETRY, RetryPolicy
from gpu_runtime.kube.transport import Transport
from tests.kube_kinds import NODES

KEY = ObjectKey("ns", "lead")
MANIFEST = {"metadata": {"namespace": "ns", "name": "lead"}}
QUICK = RetryPolicy(max_attempts=3, backoff=Backoff(initial_seconds=0.001, max_seconds=0.01))
Responder = Callable[[web.Request], web.StreamResponse]


class ScriptedServer:
    """A server that sends the responses of a script, then always a success, and records the requests.

    It sends no response while `open` is not set.
    """

    def __init__(self, *script: Responder) -> None:
        self.script = list(script)
        self.requests: list[web.Request] = []
        self.host = ""
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.arrived.set()
        await self.open.wait()
        await request.read()
        return self.script.pop(0)(request) if self.script else web.json_response({"metadata": {"name": "lead"}})


def status(code: int, **headers: str) -> Responder:
    return lambda _: web.Response(status=code, headers={key.replace("_", "-"): text for key, text in headers.items()})


def disconnect(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@asynccontextmanager
async def client_of(
    server: ScriptedServer, connections: int = 4, metrics: KubeMetrics | None = None
) -> AsyncIterator[KubeClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.respond)
    async with TestServer(app) as test_server:
        server.host = f"{test_server.host}:{test_server.port}"
        config = ClusterConfig(str(test_server.make_url("")).rstrip("/"), StaticCredentials(ClientIdentity()))
        async with Transport(config, max_connections=connections, metrics=metrics) as transport:
            yield KubeClient(transport, field_manager="test", retries=QUICK)


def request_count(metrics: KubeMetrics, server: ScriptedServer, method: str, code: str) -> float:
    labels = {"method": method, "code": code, "host": server.host}
    return metrics.registry.get_sample_value("rest_client_requests_total", labels) or 0


async def test_read_is_retried_after_a_server_error_and_every_attempt_is_counted() -> None:
    server, metrics = ScriptedServer(status(503), disconnect), KubeMetrics()
    async with client_of(server, metrics=metrics) as client:
        await client.get(LEASES, KEY)
    assert len(server.requests) >= 3
    assert request_count(metrics, server, "GET", "503") == 1
    assert request_count(metrics, server, "GET", "200") == 1


async def test_attempt_without_a_response_is_counted_as_error() -> None:
    server, metrics = ScriptedServer(disconnect), KubeMetrics()
    async with client_of(server, metrics=metrics) as client:
        with pytest.raises(KubeUnreachable):
            await client.create(LEASES, MANIFEST)
    assert request_count(metrics, server, "POST", "<error>") == 1


async def test_write_that_a_closed_fence_blocks_is_not_counted() -> None:
    server, metrics = ScriptedServer(), KubeMetrics()
    async with client_of(server, metrics=metrics) as client:
        with pytest.raises(KubeNotLeader):
            await client.fenced(ManualFence(0.0)).create(LEASES, MANIFEST)
    assert request_count(metrics, server, "POST", "<error>") == 0


async def test_watch_is_counted_when_its_response_begins() -> None:
    server, metrics = ScriptedServer(), KubeMetrics()
    async with client_of(server, metrics=metrics) as client:
        async with client.watch(LEASES, resource_version="1"):
            assert request_count(metrics, server, "GET", "200") == 1
        assert request_count(metrics, server, "GET", "200") == 1
        server.script.append(status(410))
        with pytest.raises(KubeResourceExpired):
            async with client.watch(LEASES, resource_version="1"):
                pass
        assert request_count(metrics, server, "GET", "410") == 1
        assert request_count(metrics, server, "GET", "<error>") == 0


@pytest.mark.parametrize(
    ("server", "host"),
    [
        ("https://api.example", "api.example"),
        ("https://api.example:6443/prefix", "api.example:6443"),
        ("https://[fd00::1]:443", "[fd00::1]:443"),
        ("", "none"),
    ],
)
async def test_host_label_is_the_host_of_the_configured_server(server: str, host: str) -> None:
    metrics = KubeMetrics()
    Transport(ClusterConfig(server, StaticCredentials(ClientIdentity())), metrics=metrics).count_request("GET", 200)
    labels = {"method": "GET", "code": "200", "host": host}
    assert metrics.registry.get_sample_value("rest_client_requests_total", labels) == 1


async def test_create_with_unknown_outcome_is_not_retried() -> None:
    for failure, error in ((status(500), KubeServerError), (disconnect, KubeUnreachable)):
        server = ScriptedServer(failure)
        async with client_of(server) as client:
            with pytest.raises(error):
                await client.create(LEASES, MANIFEST)
        assert len(server.requests) == 1


async def test_rejected_create_is_retried() -> None:
    server = ScriptedServer(status(429, Retry_After="0"), status(503, Retry_After="0"))
    async with client_of(server) as client:
        await client.create(LEASES, MANIFEST)
    assert len(server.requests) == 3


async def test_delete_of_a_uid_is_retried_because_it_is_idempotent() -> None:
    server = ScriptedServer(status(500), status(502))
    async with client_of(server) as client:
        await client.delete(LEASES, KEY, uid="u1")
    assert len(server.requests) == 3


async def test_request_fails_after_max_attempts() -> None:
    server = ScriptedServer(*[status(429, Retry_After="0")] * 3)
    async with client_of(server) as client:
        with pytest.raises(KubeTooManyRequests):
            await client.get(LEASES, KEY)
    assert len(server.requests) == 3


async def test_retry_waits_for_retry_after() -> None:
    server = ScriptedServer(status(429, Retry_After="1"))
    async with client_of(server) as client:
        started = asyncio.get_running_loop().time()
        await client.get(LEASES, KEY)
        assert asyncio.get_running_loop().time() - started >= 1


async def test_401_with_static_credentials_is_not_retried() -> None:
    server = ScriptedServer(status(401))
    async with client_of(server) as client:
        with pytest.raises(KubeUnauthorized):
            await client.get(LEASES, KEY)
    assert len(server.requests) == 1


async def test_redirects_are_not_followed() -> None:
    server = ScriptedServer(status(302, Location="/elsewhere"))
    async with client_of(server) as client:
        with pytest.raises(Exception, match="302"):
            await client.get(LEASES, KEY)
    assert len(server.requests) == 1


async def test_write_has_strict_field_validation_and_a_field_manager() -> None:
    server = ScriptedServer()
    async with client_of(server) as client:
        await client.create(LEASES, MANIFEST)
        await client.merge_patch(LEASES, KEY, {})
    for request in server.requests:
        assert dict(request.query) == {"fieldManager": "test", "fieldValidation": "Strict"}


async def test_request_without_namespace_name_or_version_is_not_sent() -> None:
    server = ScriptedServer()
    async with client_of(server) as client:
        with pytest.raises(ValueError, match=r"has no metadata\.namespace"):
            await client.create(LEASES, {"metadata": {"name": "a"}})
        with pytest.raises(ValueError, match=r"needs metadata\.resourceVersion"):
            await client.replace(LEASES, MANIFEST)
        with pytest.raises(ValueError, match="does not identify one"):
            await client.delete(LEASES, ObjectKey("ns", ""))
    assert server.requests == []


class ManualFence:
    """A fence whose remaining time a test sets."""

    def __init__(self, remaining: float = 60.0) -> None:
        self.remaining_seconds = remaining
        self.checked = asyncio.Event()

    def remaining(self) -> float:
        self.checked.set()
        return self.remaining_seconds


async def test_closed_fence_blocks_writes_and_allows_reads() -> None:
    server, fence = ScriptedServer(), ManualFence(0.0)
    async with client_of(server) as plain:
        client = plain.fenced(fence)
        await client.get(LEASES, KEY)
        for write in (
            client.create(LEASES, MANIFEST),
            client.merge_patch(LEASES, KEY, {}),
            client.delete(LEASES, KEY),
            client.replace(LEASES, {"metadata": {**MANIFEST["metadata"], "resourceVersion": "1"}}),
        ):
            with pytest.raises(KubeNotLeader):
                await write
        await plain.create(LEASES, MANIFEST)
    assert [request.method for request in server.requests] == ["GET", "POST"]


async def test_fence_that_closes_while_a_write_waits_for_a_connection_blocks_it() -> None:
    server, fence = ScriptedServer(), ManualFence()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, ObjectKey("", "one")))
        await server.arrived.wait()
        tasks.create_task(_expect_not_leader(client.fenced(fence)))
        fence.remaining_seconds = 0.0
        server.open.set()
    assert [request.method for request in server.requests] == ["GET"]


async def test_connections_are_assigned_in_fifo_order() -> None:
    """With the connection limit of aiohttp, a task that sends new requests would overtake the waiting tasks."""
    server = ScriptedServer()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        for name in ("one", "two", "three"):
            tasks.create_task(_get_repeatedly(client, name))
    names = [request.path.rpartition("/")[2] for request in server.requests]
    assert names == ["one", "two", "three"] * 10


async def _get_repeatedly(client: KubeClient, name: str) -> None:
    for _ in range(10):
        await client.get(NODES, ObjectKey("", name))


async def test_waiting_for_a_connection_times_out() -> None:
    server = ScriptedServer()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, ObjectKey("", "one")))
        await server.arrived.wait()
        with pytest.raises(KubeUnreachable, match="no connection was free") as failure:
            await client.with_options(timeout=0.05, retries=NO_RETRY).create(LEASES, MANIFEST)
        assert not failure.value.sent
        server.open.set()


async def test_request_without_connection_limit_does_not_wait_for_a_free_connection() -> None:
    server = ScriptedServer()
    server.open.clear()
    async with client_of(server, connections=1) as client, asyncio.TaskGroup() as tasks:
        tasks.create_task(client.get(NODES, ObjectKey("", "one")))
        await server.arrived.wait()
        server.arrived.clear()
        tasks.create_task(client.without_connection_limit().get(LEASES, KEY))
        async with asyncio.timeout(60):
            await server.arrived.wait()
        server.open.set()
    assert len(server.requests) == 2


async def _expect_not_leader(client: KubeClient) -> None:
    with pytest.raises(KubeNotLeader):
        await client.create(LEASES, MANIFEST)


async def test_fence_that_closes_before_the_body_is_sent_blocks_the_write() -> None:
    """A process may be paused after the first check of the fence and resumed before it writes the body."""

    class ClosingFence(ManualFence):
        def remaining(self) -> float:
            return 0.0 if self.checked.is_set() else super().remaining()

    server = ScriptedServer()
    async with client_of(server) as client:
        await client.get(LEASES, KEY)
        with pytest.raises(KubeNotLeader):
            await client.fenced(ClosingFence()).create(LEASES, MANIFEST)
        await client.get(LEASES, KEY)
    assert [request.method for request in server.requests] == ["GET", "GET"]


async def test_fence_that_closes_between_attempts_stops_the_retries() -> None:
    fence = ManualFence()

    def fail_and_close(_: web.Request) -> web.StreamResponse:
        fence.remaining_seconds = 0.0
        return web.Response(status=429, headers={"Retry-After": "0"})

    server = ScriptedServer(fail_and_close)
    async with client_of(server) as client:
        with pytest.raises(KubeNotLeader):
            await client.fenced(fence).create(LEASES, MANIFEST)
    assert len(server.requests) == 1


async def test_write_times_out_when_the_leadership_ends() -> None:
    server = ScriptedServer()
    server.open.clear()
    async with client_of(server) as client:
        with pytest.raises(KubeUnreachable, match=r"no response within 0\.2 s") as failure:
            await client.fenced(ManualFence(0.2)).create(LEASES, MANIFEST)
        assert failure.value.sent
        server.open.set()
