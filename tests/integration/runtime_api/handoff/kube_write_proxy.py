"""Between one replica and the API server: every request passes here, and at one of its writes something happens."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
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
    """Over which a replica reaches the API server, as itself."""

    upstream: aiohttp.ClientSession
    upstream_url: str
    fault_at_write: int
    """At which write it happens, counted from one."""
    after_write: bool
    """Whether it happens after that write was carried out, and before the replica hears of it; else before."""
    replica: LiveApiProcess = field(init=False)
    writes: list[str] = field(default_factory=list)
    """Method and kind of every write so far."""
    fault_reached: asyncio.Event = field(default_factory=asyncio.Event)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: a replica that was paused goes on, and with it the write at which it was."""
    pause_replica: bool = False
    """Whether the replica is paused there; else it is killed."""
    paused_write_status: "asyncio.Future[int]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """What the API server answered to the write at which the replica was paused, once that has gone on."""

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
            raise web.HTTPBadGateway  # which nobody hears
        answer = await forward()
        self.paused_write_status.set_result(answer.status)
        return answer

    async def _fault_after_write(self, forward: Forward) -> web.StreamResponse:
        answer = await forward()
        await self._inject_fault()
        self.paused_write_status.set_result(answer.status)
        return answer

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
        headers = {name: text for name, text in request.headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}
        url = f"{self.upstream_url}{request.raw_path}"
        async with self.upstream.request(request.method, url, data=body, headers=headers) as answer:
            if "watch=true" in request.query_string:
                return await _stream_response(request, answer)
            kept = {name: text for name, text in answer.headers.items() if name.lower() not in HOP_BY_HOP_HEADERS}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


async def _stream_response(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    stream = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
    with suppress(ConnectionError, aiohttp.ClientError):
        await stream.prepare(request)
        async for chunk in answer.content.iter_any():
            await stream.write(chunk)
    return stream


@asynccontextmanager
async def kube_write_proxy(
    platform: LivePlatform, name: str, at_write: int, *, after_write: bool, pause_replica: bool = False
) -> AsyncIterator[KubeWriteProxy]:
    """One with a replica behind it that is not started yet, and sweeps nothing: every write is of its request."""
    connector = aiohttp.TCPConnector(ssl=_tls(platform.control_plane), limit=0)
    forever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=forever, auto_decompress=False) as upstream:
        made = KubeWriteProxy(upstream, platform.control_plane.url, at_write, after_write, pause_replica=pause_replica)
        async with _running_proxy(made) as port:
            kubeconfig = _kubeconfig(platform.folder / f"{name}.kubeconfig", port)
            made.replica = platform.new_replica(name, kubeconfig, operations={"recoveryIntervalSeconds": 3600})
            try:
                yield made
            finally:
                made.resumed.set()
                made.replica.stop()


@asynccontextmanager
async def _running_proxy(made: KubeWriteProxy) -> AsyncIterator[int]:
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{path:.*}", made.handle)
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
        "current-context": "crossing",
        "contexts": [{"name": "crossing", "context": {"cluster": "crossing"}}],
        "clusters": [{"name": "crossing", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def _resource_of(path: str) -> str:
    """The plural, with the subresource where there is one."""
    parts = path.partition("/namespaces/")[2].split("/")
    return "/".join((parts[1], *parts[3:]))
