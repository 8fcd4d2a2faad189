"""An HTTP proxy between one runtime API replica and the API server. It kills or pauses the replica at a chosen write.

The proxy forwards every request with the identity of the runtime API, and records the writes.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import TypeAlias

import aiohttp
import yaml
from aiohttp import web

from localcluster.control_plane import ControlPlane
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER
from tests.integration.runtime_api.live_platform import LiveApiProcess, LivePlatform

Forward: TypeAlias = Callable[[], Awaitable[web.StreamResponse]]
WRITE_METHODS = ("POST", "PATCH", "PUT", "DELETE")
HOP_BY_HOP_HEADERS = {"host", "connection", "transfer-encoding", "content-length"}


@dataclass
class KubeWriteProxy:
    """Forwards the requests of one replica, and injects one fault at the write with the number `fault_at_write`."""

    upstream: aiohttp.ClientSession
    upstream_url: str
    fault_at_write: int
    """The number of the write at which the proxy injects the fault. The first write has the number 1."""
    after_write: bool
    """True: the API server executes the write, and the fault comes before the replica receives the response.

    False: the fault comes before the proxy forwards the write.
    """
    replica: LiveApiProcess = field(init=False)
    writes: list[str] = field(default_factory=list)
    """Method and resource of every write so far."""
    fault_reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the replica has been killed or paused."""
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the paused replica may continue. The proxy then also finishes the write at which the pause began."""
    pause_replica: bool = False
    """True: the fault is a pause (SIGSTOP). False: the fault is a kill (SIGKILL)."""
    paused_write_status: "asyncio.Future[int]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The status that the API server returned for the write at which the replica was paused. Set after the resume."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()

        async def forward() -> web.StreamResponse:
            return await self._forward(request, body)

        if request.method not in WRITE_METHODS:
            return await forward()
        self.writes.append(f"{request.method} {_resource_of(request.path)}")
        if len(self.writes) != self.fault_at_write:
            return await forward()
        return await (self._fault_after_write(forward) if self.after_write else self._fault_before_write(forward))

    async def _fault_before_write(self, forward: Forward) -> web.StreamResponse:
        await self._inject_fault()
        if not self.pause_replica:
            raise web.HTTPBadGateway  # The replica is dead and does not receive this response.
        response = await forward()
        self.paused_write_status.set_result(response.status)
        return response

    async def _fault_after_write(self, forward: Forward) -> web.StreamResponse:
        response = await forward()
        await self._inject_fault()
        self.paused_write_status.set_result(response.status)
        return response

    async def _inject_fault(self) -> None:
        if self.pause_replica:
            self.replica.signal(Signals.SIGSTOP)
        else:
            self.replica.kill()
        self.fault_reached.set()
        if self.pause_replica:
            await self.resumed.wait()

    def resume(self) -> None:
        self.resumed.set()
        self.replica.signal(Signals.SIGCONT)

    async def _forward(self, request: web.Request, body: bytes) -> web.StreamResponse:
        url = f"{self.upstream_url}{request.raw_path}"
        headers = _end_to_end_headers(request.headers)
        async with self.upstream.request(request.method, url, data=body, headers=headers) as response:
            if "watch=true" in request.query_string:
                return await _stream_response(request, response)
            headers = _end_to_end_headers(response.headers)
            return web.Response(status=response.status, body=await response.read(), headers=headers)


def _end_to_end_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}


async def _stream_response(request: web.Request, response: aiohttp.ClientResponse) -> web.StreamResponse:
    stream = web.StreamResponse(status=response.status, headers={"Content-Type": response.content_type})
    with suppress(ConnectionError, aiohttp.ClientError):
        await stream.prepare(request)
        async for chunk in response.content.iter_any():
            await stream.write(chunk)
    return stream


@asynccontextmanager
async def kube_write_proxy(
    platform: LivePlatform, name: str, at_write: int, *, after_write: bool, pause_replica: bool = False
) -> AsyncIterator[KubeWriteProxy]:
    """A running proxy with its own replica. The caller starts the replica.

    The recovery of the replica does not run during the test, so that every write belongs to the request of the test.
    """
    connector = aiohttp.TCPConnector(ssl=_tls(platform.control_plane), limit=0)
    no_timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=no_timeout, auto_decompress=False) as upstream:
        proxy = KubeWriteProxy(upstream, platform.control_plane.url, at_write, after_write, pause_replica=pause_replica)
        async with _running_proxy(proxy) as port:
            kubeconfig = _kubeconfig(platform.folder / f"{name}.kubeconfig", port)
            proxy.replica = platform.new_replica(name, kubeconfig, operations={"recoveryIntervalSeconds": 3600})
            try:
                yield proxy
            finally:
                proxy.resumed.set()
                proxy.replica.stop()


@asynccontextmanager
async def _running_proxy(proxy: KubeWriteProxy) -> AsyncIterator[int]:
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", proxy.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _tls(plane: ControlPlane) -> ssl.SSLContext:
    identity = plane.authority.issue("runtime-api", RUNTIME_API_USER)
    context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    context.load_cert_chain(identity.certificate, identity.key)
    return context


def _kubeconfig(path: Path, port: int) -> Path:
    config = {
        "current-context": "proxy",
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy"}}],
        "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def _resource_of(path: str) -> str:
    """The plural resource name, with the subresource if the path has one: `operations/status`."""
    parts = path.partition("/namespaces/")[2].split("/")
    return "/".join((parts[1], *parts[3:]))
