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
    KubeApiError,
    KubeNotLeader,
    KubeUnauthorized,
    KubeUnreachable,
    error_from_response,
)
from gpu_runtime.kube.kube_credentials import ClientIdentity
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.tls import tls_context

_NOT_SENT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
_CEIL_THRESHOLD_SECONDS = 3600.0
"""aiohttp rounds longer timeouts up to whole seconds; a leader's remaining time must not be rounded up."""


class Fence(Protocol):
    """What a write must pass: the right to write, which ends by itself."""

    def remaining(self) -> float:
        """Seconds for which this process may still write. Not positive when it may not."""
        ...


@dataclass(frozen=True, slots=True)
class KubeRequest:
    """One request and how it may be treated."""

    method: str
    target: str
    """Path and query, encoded."""
    body: bytes | None = None
    content_type: str = "application/json"
    idempotent: bool = False
    """Whether carrying it out twice is as good as once."""
    timeout: float = 10.0
    fence: Fence | None = None
    bypass_connection_limit: bool = False
    """Whether it must not wait until a connection is free."""


class Transport:
    """Use as a context manager: leaving it closes the connections."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        metrics: KubeMetrics | None = None,
        max_connections: int = 128,
        user_agent: str = "gpu-runtime",
    ) -> None:
        self._config = config
        self._metrics = metrics or KubeMetrics()
        self._connection_slots = asyncio.Semaphore(max_connections)
        """Not for watches, which hold their connections for minutes, nor for what is urgent."""
        self._headers = CIMultiDict([*config.headers, (hdrs.USER_AGENT, user_agent)])
        # Decompression costs more than the bytes it saves on a cluster's own network.
        self._headers.extend({hdrs.ACCEPT: "application/json", hdrs.ACCEPT_ENCODING: "identity"})
        self._auth: _RequestAuth | None = None
        self._request_counters: dict[tuple[str, int], Counter] = {}

    async def __aenter__(self) -> Self:
        # The limit is the semaphore's, which is fair; aiohttp's own lets newcomers overtake those who wait.
        connector = _Connector(limit=0, keepalive_timeout=60, socket_factory=_keepalive_socket)
        self._session = ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(self, call: KubeRequest, retries: RetryPolicy) -> bytes:
        """The body of a successful answer; anything else is raised as a KubeError."""
        attempt, renewed = 1, False
        while True:
            try:
                return await self._attempt(call)
            except (KubeApiError, KubeUnreachable) as error:
                if isinstance(error, KubeUnauthorized) and not renewed and self._config.credentials.invalidate():
                    renewed = True
                    continue
                delay = retries.delay(error, attempt, idempotent=call.idempotent)
                if delay is None:
                    raise
            attempt += 1
            await asyncio.sleep(delay)

    async def _attempt(self, call: KubeRequest) -> bytes:
        if call.bypass_connection_limit:
            return await self._round_trip(call)
        await self._acquire_connection(call)
        try:
            return await self._round_trip(call)
        finally:
            self._connection_slots.release()

    async def _acquire_connection(self, call: KubeRequest) -> None:
        try:
            async with asyncio.timeout(call.timeout if self._connection_slots.locked() else None):
                await self._connection_slots.acquire()
        except TimeoutError as error:
            waited = f"no connection was free within {call.timeout:g} s: {call.method} {call.target}"
            raise KubeUnreachable(waited, sent=False) from error

    async def _round_trip(self, call: KubeRequest) -> bytes:
        dressed = await self._current_auth()
        timeout = _client_timeout(call)
        with _RoundTrip(self, call, timeout) as exchange:
            async with self._send(call, dressed, timeout, exchange.body) as response:
                exchange.status_code = response.status
                body = await response.read()
        if response.status >= 300:
            raise error_from_response(response.status, body, response.headers.get(hdrs.RETRY_AFTER))
        return body

    @asynccontextmanager
    async def stream(self, call: KubeRequest, *, idle_timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """The chunks of an answer without end, until none has come for `idle` seconds."""
        dressed = await self._current_auth()
        timeout = ClientTimeout(connect=call.timeout, sock_read=idle_timeout, ceil_threshold=_CEIL_THRESHOLD_SECONDS)
        with _RoundTrip(self, call, timeout) as exchange:
            async with self._send(call, dressed, timeout, None) as response:
                exchange.status_code = response.status
                if response.status >= 300:
                    raise self._stream_error(response, await response.read())
                yield response.content.iter_any()

    def _send(
        self, call: KubeRequest, dressed: "_RequestAuth", timeout: ClientTimeout, body: "bytes | _FencedBody | None"
    ) -> AbstractAsyncContextManager[ClientResponse]:
        return self._session.request(
            call.method,
            URL(self._config.server + call.target, encoded=True),
            data=body,
            headers=dressed.headers_for(call),
            ssl=dressed.tls,
            server_hostname=self._config.tls.server_name,
            proxy=self._config.proxy_url,
            timeout=timeout,
            allow_redirects=False,
        )

    def _stream_error(self, response: ClientResponse, body: bytes) -> KubeApiError:
        error = error_from_response(response.status, body, response.headers.get(hdrs.RETRY_AFTER))
        if isinstance(error, KubeUnauthorized):
            self._config.credentials.invalidate()
        return error

    def count_request(self, method: str, code: int) -> None:
        counter = self._request_counters.get((method, code))
        if counter is None:
            counter = self._request_counters[method, code] = self._metrics.rest_client_requests.labels(
                method, str(code or "none")
            )
        counter.inc()

    def reset_auth(self) -> None:
        """Read certificates anew before the next request."""
        self._auth = None

    async def _current_auth(self) -> "_RequestAuth":
        identity = await self._config.credentials.current()
        if self._auth is None or self._auth.identity is not identity:
            self._auth = _RequestAuth(identity, tls_context(self._config.tls, identity), self._headers)
        return self._auth


class _RoundTrip:
    """One request and its answer: behind the fence, counted, its failures in this package's words."""

    __slots__ = ("_fence_closed", "_request", "_socket_transport", "_timeout", "_transport", "status_code")

    def __init__(self, transport: Transport, call: KubeRequest, timeout: ClientTimeout) -> None:
        self._transport, self._request, self._timeout = transport, call, timeout
        self._socket_transport: asyncio.Transport | None = None
        self._fence_closed = False
        self.status_code = 0

    def __enter__(self) -> Self:
        _CURRENT_ROUND_TRIP.set(self)
        return self

    def on_connected(self, connection: Connection) -> None:
        self._socket_transport = connection.transport

    @property
    def body(self) -> "bytes | _FencedBody | None":
        if self._request.body is None or self._request.fence is None:
            return self._request.body
        return _FencedBody(self._request.body, content_type=self._request.content_type, round_trip=self)

    def check_fence(self) -> None:
        fence = self._request.fence
        if fence is not None and fence.remaining() <= 0:
            self._fence_closed = True
            raise _not_leader_error(self._request)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _CURRENT_ROUND_TRIP.set(None)
        self._transport.count_request(self._request.method, self.status_code)
        if error is None:
            return
        if self._socket_transport is not None:
            # What was not sent by now must not be sent later, and a server that is silent must not be waited for.
            self._socket_transport.abort()
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            self._transport.reset_auth()  # the authority may have been renewed on disk
        if self._fence_closed:
            raise _not_leader_error(self._request) from error
        if isinstance(error, aiohttp.ClientError | TimeoutError):
            raise KubeUnreachable(self._error_message(error), sent=not isinstance(error, _NOT_SENT_ERRORS)) from error

    def _error_message(self, error: Exception) -> str:
        asked = f"{self._request.method} {self._request.target}"
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout.total or self._timeout.sock_read or 0:g} s: {asked}"
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
            return f"cannot connect to {error.host}:{error.port}: {error.strerror}: {asked}"
        return f"{str(error) or type(error).__name__}: {asked}"


class _RequestAuth:
    """An identity as requests wear it. Another identity means another TLS context, and so other connections."""

    def __init__(self, identity: ClientIdentity, tls: ssl.SSLContext, headers: CIMultiDict[str]) -> None:
        self.identity = identity
        self.tls = tls
        self._headers = headers.copy()
        if identity.authorization:
            self._headers[hdrs.AUTHORIZATION] = identity.authorization
        self._headers_by_content_type: dict[str, CIMultiDict[str]] = {}

    def headers_for(self, call: KubeRequest) -> CIMultiDict[str]:
        if call.body is None:
            return self._headers
        if call.content_type not in self._headers_by_content_type:
            self._headers_by_content_type[call.content_type] = CIMultiDict(
                [*self._headers.items(), (hdrs.CONTENT_TYPE, call.content_type)]
            )
        return self._headers_by_content_type[call.content_type]


_CURRENT_ROUND_TRIP: ContextVar[_RoundTrip | None] = ContextVar("exchange", default=None)


class _FencedBody(BytesPayload):
    """Looks at the fence once more at the moment when it is written to the socket.

    A process may be stopped between any two steps before that: while it waits for a connection, or while the written
    body waits for its turn on the event loop. Headers alone do nothing, and every write has a body.
    """

    def __init__(self, value: bytes, content_type: str, round_trip: _RoundTrip) -> None:
        super().__init__(value, content_type=content_type)
        self._round_trip = round_trip

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._round_trip.check_fence()
        await super().write_with_length(writer, content_length)


class _Connector(aiohttp.TCPConnector):
    """Tells the exchange that asked when it has its connection."""

    async def connect(self, req: ClientRequest, traces: list[Any], timeout: ClientTimeout) -> Connection:  # noqa: ASYNC109
        connection = await super().connect(req, traces, timeout)
        exchange = _CURRENT_ROUND_TRIP.get()
        if exchange is not None:
            exchange.on_connected(connection)
        return connection


def _client_timeout(call: KubeRequest) -> ClientTimeout:
    """The time this request may take: a write must not outlive the right to write."""
    if call.fence is None:
        return ClientTimeout(total=call.timeout, ceil_threshold=_CEIL_THRESHOLD_SECONDS)
    remaining = call.fence.remaining()
    if remaining <= 0:
        raise _not_leader_error(call)
    return ClientTimeout(total=min(call.timeout, remaining), ceil_threshold=_CEIL_THRESHOLD_SECONDS)


def _not_leader_error(call: KubeRequest) -> KubeNotLeader:
    return KubeNotLeader(f"this process no longer leads; held back: {call.method} {call.target}")


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
