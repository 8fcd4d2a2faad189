"""Sends HTTP requests to one API server, with credentials, timeouts and retries. Checks the fence before writes.

This module knows no kinds and no models. Bodies are bytes.
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
from urllib.parse import urlsplit

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
"""aiohttp rounds timeouts above this threshold up to whole seconds. The remaining time of a leader must not be rounded
up, so the threshold is longer than every timeout here."""
_ACCEPTED_TYPES = "application/json, application/jwk-set+json;q=0.9"
"""The second type is the one of the public keys of the cluster."""
_NO_RESPONSE = "<error>"
"""The label `code` of rest_client_requests_total for a request without a response."""


class Fence(Protocol):
    """The right to write, which expires. The transport checks it before every write of a fenced client."""

    def remaining(self) -> float:
        """Return the seconds until the right to write expires. Zero or negative: it has expired."""
        ...


@dataclass(frozen=True, slots=True)
class KubeRequest:
    """One request, and the options with which the transport sends it."""

    method: str
    target: str
    """Encoded path and query."""
    body: bytes | None = None
    content_type: str = "application/json"
    idempotent: bool = False
    """Whether the request has the same effect if the server executes it twice."""
    timeout: float = 10.0
    fence: Fence | None = None
    bypass_connection_limit: bool = False
    """Whether the transport sends the request even if the connection limit is reached."""


class Transport:
    """The connections to one API server. Use it as a context manager: the exit closes the connections."""

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
        """One slot per connection that the limit allows. Watches use no slot, because they occupy their connections for
        minutes. Requests that bypass the connection limit use no slot either."""
        # Request uncompressed responses: within a cluster, decompression costs more than the transfer of the additional
        # bytes.
        self._headers = CIMultiDict(
            {hdrs.USER_AGENT: user_agent, hdrs.ACCEPT: _ACCEPTED_TYPES, hdrs.ACCEPT_ENCODING: "identity"}
        )
        self._auth: _RequestAuth | None = None
        self._host = urlsplit(config.server).netloc.rpartition("@")[2] or "none"
        self._request_counters: dict[tuple[str, int | None], Counter] = {}

    async def __aenter__(self) -> Self:
        # The semaphore limits the connections, because it is fair. With the limit of aiohttp, new requests would
        # overtake waiting requests.
        connector = _Connector(limit=0, keepalive_timeout=60, socket_factory=_keepalive_socket)
        self._session = ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def request(self, request: KubeRequest, retries: RetryPolicy) -> bytes:
        """Send a request and return the body of the successful response. Every failure is raised as a KubeError.

        The transport repeats failed attempts as the retry policy allows. After the first 401, it repeats the request
        immediately if the credentials can be refreshed.
        """
        attempt, refreshed = 1, False
        while True:
            try:
                return await self._attempt(request)
            except (KubeApiError, KubeUnreachable) as error:
                if isinstance(error, KubeUnauthorized) and not refreshed and self._config.credentials.invalidate():
                    refreshed = True
                    continue
                delay = retries.delay(error, attempt, idempotent=request.idempotent)
                if delay is None:
                    raise
            attempt += 1
            await asyncio.sleep(delay)

    async def _attempt(self, request: KubeRequest) -> bytes:
        if request.bypass_connection_limit:
            return await self._round_trip(request)
        await self._acquire_connection(request)
        try:
            return await self._round_trip(request)
        finally:
            self._connection_slots.release()

    async def _acquire_connection(self, request: KubeRequest) -> None:
        try:
            async with asyncio.timeout(request.timeout if self._connection_slots.locked() else None):
                await self._connection_slots.acquire()
        except TimeoutError as error:
            message = f"no connection was free within {request.timeout:g} s: {request.method} {request.target}"
            raise KubeUnreachable(message, sent=False) from error

    async def _round_trip(self, request: KubeRequest) -> bytes:
        auth = await self._current_auth()
        timeout = _client_timeout(request)
        with _RoundTrip(self, request, timeout) as round_trip:
            async with self._send(request, auth, timeout, round_trip.body) as response:
                round_trip.on_response(response.status)
                body = await response.read()
        if response.status >= 300:
            raise error_from_response(response.status, body, response.headers.get(hdrs.RETRY_AFTER))
        return body

    async def server_date(self, request: KubeRequest) -> str:
        """Send a request, and return the header Date of its response, which has it even if it is an error."""
        auth, timeout = await self._current_auth(), _client_timeout(request)
        with _RoundTrip(self, request, timeout) as round_trip:
            async with self._send(request, auth, timeout, None) as response:
                round_trip.on_response(response.status)
                await response.read()
        return response.headers.get(hdrs.DATE, "")

    @asynccontextmanager
    async def stream(self, request: KubeRequest, *, idle_timeout: float) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request with an endless response, and yield its chunks.

        Raises KubeUnreachable when no chunk arrives for `idle_timeout` seconds.
        """
        auth = await self._current_auth()
        timeout = ClientTimeout(connect=request.timeout, sock_read=idle_timeout, ceil_threshold=_CEIL_THRESHOLD_SECONDS)
        with _RoundTrip(self, request, timeout) as round_trip:
            async with self._send(request, auth, timeout, None) as response:
                round_trip.on_response(response.status)
                if response.status >= 300:
                    raise self._stream_error(response, await response.read())
                yield response.content.iter_any()

    def _send(
        self, request: KubeRequest, auth: "_RequestAuth", timeout: ClientTimeout, body: "bytes | _FencedBody | None"
    ) -> AbstractAsyncContextManager[ClientResponse]:
        return self._session.request(
            request.method,
            URL(self._config.server + request.target, encoded=True),
            data=body,
            headers=auth.headers_for(request),
            ssl=auth.tls,
            server_hostname=self._config.tls.server_name,
            timeout=timeout,
            allow_redirects=False,
        )

    def _stream_error(self, response: ClientResponse, body: bytes) -> KubeApiError:
        error = error_from_response(response.status, body, response.headers.get(hdrs.RETRY_AFTER))
        if isinstance(error, KubeUnauthorized):
            self._config.credentials.invalidate()
        return error

    def count_request(self, method: str, code: int | None) -> None:
        """Count an attempt by the status code of its response. None: there was no response."""
        counter = self._request_counters.get((method, code))
        if counter is None:
            label = _NO_RESPONSE if code is None else str(code)
            counter = self._metrics.rest_client_requests.labels(label, method, self._host)
            self._request_counters[method, code] = counter
        counter.inc()

    def reset_auth(self) -> None:
        """Make the next request read the certificates again."""
        self._auth = None

    async def _current_auth(self) -> "_RequestAuth":
        identity = await self._config.credentials.current()
        if self._auth is None or self._auth.identity is not identity:
            self._auth = _RequestAuth(identity, tls_context(self._config.tls, identity), self._headers)
        return self._auth


class _RoundTrip:
    """One attempt of a request: checks the fence, counts the attempt, and translates failures to KubeErrors."""

    __slots__ = ("_counted", "_fence_closed", "_request", "_socket_transport", "_timeout", "_transport")

    def __init__(self, transport: Transport, request: KubeRequest, timeout: ClientTimeout) -> None:
        self._transport, self._request, self._timeout = transport, request, timeout
        self._socket_transport: asyncio.Transport | None = None
        self._fence_closed = False
        self._counted = False

    def __enter__(self) -> Self:
        _CURRENT_ROUND_TRIP.set(self)
        return self

    def on_connected(self, connection: Connection) -> None:
        self._socket_transport = connection.transport

    def on_response(self, status_code: int) -> None:
        """Count the attempt when its response headers arrive.

        The end of the response would be too late: the response of a watch lasts for minutes.
        """
        self._transport.count_request(self._request.method, status_code)
        self._counted = True

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
        if not self._counted:
            self._transport.count_request(self._request.method, None)
        if error is None:
            return
        if self._socket_transport is not None:
            # Abort, do not close: data in the send buffer must not be sent later, and a close would wait for a server
            # that does not respond.
            self._socket_transport.abort()
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            self._transport.reset_auth()  # the CA certificate file may have been replaced
        if self._fence_closed:
            raise _not_leader_error(self._request) from error
        if isinstance(error, aiohttp.ClientError | TimeoutError):
            raise KubeUnreachable(self._error_message(error), sent=not isinstance(error, _NOT_SENT_ERRORS)) from error

    def _error_message(self, error: Exception) -> str:
        request = f"{self._request.method} {self._request.target}"
        if isinstance(error, TimeoutError):
            return f"no response within {self._timeout.total or self._timeout.sock_read or 0:g} s: {request}"
        if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
            return f"cannot connect to {error.host}:{error.port}: {error.strerror}: {request}"
        return f"{str(error) or type(error).__name__}: {request}"


class _RequestAuth:
    """The headers and the TLS context of an identity. A new identity gets a new TLS context, and so new connections."""

    def __init__(self, identity: ClientIdentity, tls: ssl.SSLContext, headers: CIMultiDict[str]) -> None:
        self.identity = identity
        self.tls = tls
        self._headers = headers.copy()
        if identity.authorization:
            self._headers[hdrs.AUTHORIZATION] = identity.authorization
        self._headers_by_content_type: dict[str, CIMultiDict[str]] = {}

    def headers_for(self, request: KubeRequest) -> CIMultiDict[str]:
        content_type = request.content_type
        if request.body is None:
            return self._headers
        if content_type not in self._headers_by_content_type:
            headers = CIMultiDict([*self._headers.items(), (hdrs.CONTENT_TYPE, content_type)])
            self._headers_by_content_type[content_type] = headers
        return self._headers_by_content_type[content_type]


_CURRENT_ROUND_TRIP: ContextVar[_RoundTrip | None] = ContextVar("round_trip", default=None)


class _FencedBody(BytesPayload):
    """A request body that checks the fence again immediately before it is written to the socket.

    The process may have been paused since the first check: while it waited for a connection, or while the body waited
    for the event loop. If the second check fails, the server has received at most the headers. Headers without a body
    have no effect, because every write has a body. Only a pause between this check and the system call that sends the
    body stays undetected. An update or delete of the controller manager has a precondition, so a late one conflicts. A
    late create fails only if the name exists.
    """

    def __init__(self, value: bytes, content_type: str, round_trip: _RoundTrip) -> None:
        super().__init__(value, content_type=content_type)
        self._round_trip = round_trip

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._round_trip.check_fence()
        await super().write_with_length(writer, content_length)


class _Connector(aiohttp.TCPConnector):
    """Reports the connection to the round trip that requested it."""

    async def connect(self, req: ClientRequest, traces: list[Any], timeout: ClientTimeout) -> Connection:  # noqa: ASYNC109
        connection = await super().connect(req, traces, timeout)
        round_trip = _CURRENT_ROUND_TRIP.get()
        if round_trip is not None:
            round_trip.on_connected(connection)
        return connection


def _client_timeout(request: KubeRequest) -> ClientTimeout:
    """Return the timeout of the request. A fenced write times out at the latest when the right to write expires."""
    if request.fence is None:
        return ClientTimeout(total=request.timeout, ceil_threshold=_CEIL_THRESHOLD_SECONDS)
    remaining = request.fence.remaining()
    if remaining <= 0:
        raise _not_leader_error(request)
    return ClientTimeout(total=min(request.timeout, remaining), ceil_threshold=_CEIL_THRESHOLD_SECONDS)


def _not_leader_error(request: KubeRequest) -> KubeNotLeader:
    return KubeNotLeader(f"this process is no longer the leader; request not sent: {request.method} {request.target}")


def _keepalive_socket(address: Any) -> socket.socket:
    """Create a socket on which the kernel detects a lost peer within half a minute. The default is two hours."""

    connection = socket.socket(address[0], address[1], address[2])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)
    return connection
