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
from tests.integration.runtime_api.edge.conftest import IDENTITY
from tests.integration.runtime_api.live import LiveReplica, Platform

Forward: TypeAlias = Callable[[], Awaitable[web.StreamResponse]]
WRITES = ("POST", "PATCH", "PUT", "DELETE")
NOT_PASSED_ON = {"host", "connection", "transfer-encoding", "content-length"}


@dataclass
class Crossing:
    """Over which a replica reaches the API server, as itself."""

    upstream: aiohttp.ClientSession
    server: str
    at_write: int
    """At which write it happens, counted from one."""
    carried_out: bool
    """Whether it happens after that write was carried out, and before the replica hears of it; else before."""
    replica: LiveReplica = field(init=False)
    writes: list[str] = field(default_factory=list)
    """Method and kind of every write so far."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    free: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: a replica that was paused goes on, and with it the write at which it was."""
    pauses: bool = False
    """Whether the replica is paused there; else it is killed."""
    through: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """What the API server answered to the write at which the replica was paused, once that has gone on."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()

        async def forward() -> web.StreamResponse:
            return await self._forward(request, body)

        if request.method not in WRITES:
            return await forward()
        self.writes.append(f"{request.method} {_kind(request.path)}")
        if len(self.writes) != self.at_write:
            return await forward()
        return await (self._after(forward) if self.carried_out else self._before(forward))

    async def _before(self, forward: Forward) -> web.StreamResponse:
        await self._happen()
        if not self.pauses:
            raise web.HTTPBadGateway  # which nobody hears
        answer = await forward()
        self.through.set_result(answer.status)
        return answer

    async def _after(self, forward: Forward) -> web.StreamResponse:
        answer = await forward()
        await self._happen()
        self.through.set_result(answer.status)
        return answer

    async def _happen(self) -> None:
        if self.pauses:
            self.replica.signal(Signals.SIGSTOP)
        else:
            self.replica.kill()
        self.reached.set()
        if self.pauses:
            await self.free.wait()

    def go_on(self) -> None:
        self.free.set()
        self.replica.signal(Signals.SIGCONT)

    async def _forward(self, request: web.Request, body: bytes) -> web.StreamResponse:
        headers = {name: text for name, text in request.headers.items() if name.lower() not in NOT_PASSED_ON}
        url = f"{self.server}{request.raw_path}"
        async with self.upstream.request(request.method, url, data=body, headers=headers) as answer:
            if "watch=true" in request.query_string:
                return await _streamed(request, answer)
            kept = {name: text for name, text in answer.headers.items() if name.lower() not in NOT_PASSED_ON}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


async def _streamed(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    stream = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
    with suppress(ConnectionError, aiohttp.ClientError):
        await stream.prepare(request)
        async for chunk in answer.content.iter_any():
            await stream.write(chunk)
    return stream


@asynccontextmanager
async def crossing(
    platform: Platform, name: str, at_write: int, *, carried_out: bool, pauses: bool = False
) -> AsyncIterator[Crossing]:
    """One with a replica behind it that is not started yet, and sweeps nothing: every write is of its request."""
    connector = aiohttp.TCPConnector(ssl=_tls(platform.plane), limit=0)
    forever = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=forever, auto_decompress=False) as upstream:
        made = Crossing(upstream, platform.plane.url, at_write, carried_out, pauses=pauses)
        async with _served(made) as port:
            kubeconfig = _kubeconfig(platform.folder / f"{name}.kubeconfig", port)
            made.replica = platform.replica(name, kubeconfig, operations={"sweepSeconds": 3600})
            try:
                yield made
            finally:
                made.free.set()
                made.replica.end()


@asynccontextmanager
async def _served(made: Crossing) -> AsyncIterator[int]:
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
    identity = plane.authority.issue("runtime-api", IDENTITY)
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


def _kind(path: str) -> str:
    """The plural, with the subresource where there is one."""
    parts = path.partition("/namespaces/")[2].split("/")
    return "/".join((parts[1], *parts[3:]))
