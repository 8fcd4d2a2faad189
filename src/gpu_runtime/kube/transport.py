"""Requests to one API server: connections, identity, timeouts, retries, and the fence before every write.

No kinds and no models here; bodies are bytes.
"""

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, Self

import aiohttp
from aiohttp import ClientRequest, ClientResponse, ClientSession, ClientTimeout, hdrs
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from aiohttp.payload import BytesPayload
from multidict import CIMultiDict
from prometheus_client import Counter
from yarl import URL

from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import (
    ApiError,
    NotLeading,
    Unauthorized,
    Unreachable,
    refusal,
)
from gpu_runtime.kube.kube_credentials import Identity
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.tls import tls_context

_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_EXACT = 3600.0
"""aiohttp rounds longer timeouts up to whole seconds; a leader's remaining time must not be rounded up."""


class Fence(Protocol):
    """What a write must pass: the right to write, which ends by itself."""

    def remaining(self) -> float:
        """Seconds for which this process may still write. Not positive when it may not."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request and how it may be treated."""

    method: str
    target: str
    """Path and query, encoded."""
    body: bytes | None = None
    content_type: str = "application/json"
    repeatable: bool = False
    """Whether carrying it out twice is as good as once."""
    timeout: float = 10.0
    fence: Fence | None = None
    urgent: bool = False
    """Whether it must not wait until a connection is free."""


class Transport:
    """Use as a context manager: leaving it closes the connections."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        metrics: KubeMetrics | None = None,
        connections: int = 128,
        user_agent: str = "gpu-runtime",
    ) -> None:
        self._config = config
        self._metrics = metrics or KubeMetrics()
        self._turns = asyncio.Semaphore(connections)
        """Not for watches, which hold their connections for minutes, nor for what is urgent."""
        self._headers = CIMultiDict([*config.headers, (hdrs.USER_AGENT, user_agent)])
        # Decompression costs more than the bytes it saves on a cluster's own network.
        self._headers.extend({hdrs.ACCEPT: "application/json", hdrs.ACCEPT_ENCODING: "identity"})
        self._dressed: _Dressed | None = None
        self._counters: dict[tuple[str, int], Counter] = {}

    async def __aenter__(self) -> Self:
        # The limit is the semaphore's, which is fair; aiohttp's own lets newcomers overtake those who wait.
        connector = _Connector(limit=0, keepalive_timeout=60, socket_factory=_keepalive_socket)
        self._session = ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(self, call: Call, retries: RetryPolicy) -> bytes:
        """The body of a successful answer; anything else is raised as a KubeError."""
        attempt, renewed = 1, False
        while True:
            try:
                return await self._attempt(call)
            except (ApiError, Unreachable) as error:
                if isinstance(error, Unauthorized) and not renewed and self._config.credentials.refused():
                    renewed = True
                    continue
                delay = retries.delay(error, attempt, repeatable=call.repeatable)
                if delay is None:
                    raise
            attempt += 1
            await asyncio.sleep(delay)

    async def _attempt(self, call: Call) -> bytes:
        if call.urgent:
            return await self._exchange(call)
        await self._wait_for_turn(call)
        try:
            return await self._exchange(call)
        finally:
            self._turns.release()

    async def _wait_for_turn(self, call: Call) -> None:
        try:
            async with asyncio.timeout(call.timeout if self._turns.locked() else None):
                await self._turns.acquire()
        except TimeoutError as error:
            waited = f"no connection was free within {call.timeout:g} s: {call.method} {call.target}"
            raise Unreachable(waited, sent=False) from error

    async def _exchange(self, call: Call) -> bytes:
        dressed = await self._dress()
        timeout = _allowed(call)
        with _Exchange(self, call, timeout) as exchange:
            async with self._sent(call, dressed, timeout, exchange.body) as response:
                exchange.code = response.status
                body = await response.read()
        if response.status >= 300:
            raise refusal(response.status, body, response.headers.get(hdrs.RETRY_AFTER))
        return body

    @asynccontextmanager
    async def stream(self, call: Call, *, idle: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of an answer without end, until none has come for `idle` seconds."""
        dressed = await self._dress()
        timeout = ClientTimeout(connect=call.timeout, sock_read=idle, ceil_threshold=_EXACT)
        with _Exchange(self, call, timeout) as exchange:
            async with self._sent(call, dressed, timeout, None) as response:
                exchange.code = response.status
                if response.status >= 300:
                    raise self._refused(response, await response.read())
                yield response.content.iter_any()

    def _sent(
        self, call: Call, dressed: "_Dressed", timeout: ClientTimeout, body: "bytes | _FencedBody | None"
    ) -> AbstractAsyncContextManager[ClientResponse]:
        return self._session.request(
            call.method,
            URL(self._config.server + call.target, encoded=True),
            data=body,
            headers=dressed.for_body(call),
            ssl=dressed.tls,
            server_hostname=self._config.trust.server_name,
            proxy=self._config.proxy,
            timeout=timeout,
            allow_redirects=False,
        )

    def _refused(self, response: ClientResponse, body: bytes) -> ApiError:
        error = refusal(response.status, body, response.headers.get(hdrs.RETRY_AFTER))
        if isinstance(error, Unauthorized):
            self._config.credentials.refused()
        return error

    def count(self, method: str, code: int) -> None:
        counter = self._counters.get((method, code))
        if counter is None:
            counter = self._counters[method, code] = self._metrics.requests.labels(method, str(code or "none"))
        counter.inc()

    def forget_identity(self) -> None:
        """Read certificates anew before the next request."""
        self._dressed = None

    async def _dress(self) -> "_Dressed":
        identity = await self._config.credentials.current()
        if self._dressed is None or self._dressed.identity is not identity:
            self._dressed = _Dressed(identity, tls_context(self._config.trust, identity), self._headers)
        return self._dressed


class _Exchange:
    """One request and its answer: behind the fence, counted, its failures in this package's words."""

    __slots__ = ("_call", "_held_back", "_timeout", "_transport", "_wire", "code")

    def __init__(self, transport: Transport, call: Call, timeout: ClientTimeout) -> None:
        self._transport, self._call, self._timeout = transport, call, timeout
        self._wire: asyncio.Transport | None = None
        self._held_back = False
        self.code = 0

    def __enter__(self) -> Self:
        _EXCHANGE.set(self)
        return self

    def connected(self, connection: Connection) -> None:
        self._wire = connection.transport

    @property
    def body(self) -> "bytes | _FencedBody | None":
        if self._call.body is None or self._call.fence is None:
            return self._call.body
        return _FencedBody(self._call.body, content_type=self._call.content_type, exchange=self)

    def pass_fence(self) -> None:
        fence = self._call.fence
        if fence is not None and fence.remaining() <= 0:
            self._held_back = True
            raise _held_back(self._call)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _EXCHANGE.set(None)
        self._transport.count(self._call.method, self.code)
        if error is None:
            return
        if self._wire is not None:
            # What was not sent by now must not be sent later, and a server that is silent must not be waited for.
            self._wire.abort()
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            self._transport.forget_identity()  # the authority may have been renewed on disk
        if self._held_back:
            raise _held_back(self._call) from error
        if isinstance(error, aiohttp.ClientError | TimeoutError):
            raise Unreachable(self._words(error), sent=not isinstance(error, _NEVER_SENT)) from error

    def _words(self, error: Exception) -> str:
        asked = f"{self._call.method} {self._call.target}"
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout.total or self._timeout.sock_read or 0:g} s: {asked}"
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
            return f"cannot connect to {error.host}:{error.port}: {error.strerror}: {asked}"
        return f"{str(error) or type(error).__name__}: {asked}"


class _Dressed:
    """An identity as requests wear it. Another identity means another TLS context, and so other connections."""

    def __init__(self, identity: Identity, tls: ssl.SSLContext, headers: CIMultiDict[str]) -> None:
        self.identity = identity
        self.tls = tls
        self._headers = headers.copy()
        if identity.authorization:
            self._headers[hdrs.AUTHORIZATION] = identity.authorization
        self._by_content: dict[str, CIMultiDict[str]] = {}

    def for_body(self, call: Call) -> CIMultiDict[str]:
        if call.body is None:
            return self._headers
        if call.content_type not in self._by_content:
            self._by_content[call.content_type] = CIMultiDict(
                [*self._headers.items(), (hdrs.CONTENT_TYPE, call.content_type)]
            )
        return self._by_content[call.content_type]


_EXCHANGE: ContextVar[_Exchange | None] = ContextVar("exchange", default=None)


class _FencedBody(BytesPayload):
    """Looks at the fence once more at the moment when it is written to the socket.

    A process may be stopped between any two steps before that: while it waits for a connection, or while the written
    body waits for its turn on the event loop. Headers alone do nothing, and every write has a body.
    """

    def __init__(self, value: bytes, content_type: str, exchange: _Exchange) -> None:
        super().__init__(value, content_type=content_type)
        self._exchange = exchange

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._exchange.pass_fence()
        await super().write_with_length(writer, content_length)


class _Connector(aiohttp.TCPConnector):
    """Tells the exchange that asked when it has its connection."""

    async def connect(self, req: ClientRequest, traces: list[Any], timeout: ClientTimeout) -> Connection:  # noqa: ASYNC109
        connection = await super().connect(req, traces, timeout)
        exchange = _EXCHANGE.get()
        if exchange is not None:
            exchange.connected(connection)
        return connection


def _allowed(call: Call) -> ClientTimeout:
    """The time this request may take: a write must not outlive the right to write."""
    if call.fence is None:
        return ClientTimeout(total=call.timeout, ceil_threshold=_EXACT)
    remaining = call.fence.remaining()
    if remaining <= 0:
        raise _held_back(call)
    return ClientTimeout(total=min(call.timeout, remaining), ceil_threshold=_EXACT)


def _held_back(call: Call) -> NotLeading:
    return NotLeading(f"this process no longer leads; held back: {call.method} {call.target}")


def _keepalive_socket(address: Any) -> socket.socket:
    """A peer that vanished without a word is noticed by the kernel in half a minute, not in two hours."""
    connection = socket.socket(address[0], address[1], address[2])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
    return connection
