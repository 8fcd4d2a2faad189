"""One session of the nats-py client, from connect to close. A session never reconnects: `connection` opens a new one.

The reconnect logic of nats-py is disabled for three reasons:

- It stops permanently after some server errors.
- It buffers messages while it is disconnected, and sends them late.
- A request whose reply is lost does not fail when the connection is lost, but continues to wait.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.protocol import parser as nats_parser

from gpu_runtime.jetstream.connection_options import ConnectionOptions, redact_url
from gpu_runtime.jetstream.delivery import parse_headers
from gpu_runtime.jetstream.errors import NatsMessageTooLarge, NatsMisconfigured, NatsUnreachable

logger = logging.getLogger(__name__)

HEADER_OVERHEAD_BYTES = len("NATS/1.0\r\n\r\n")
FLUSH_TIMEOUT_SECONDS = 5.0
CLOSE_TIMEOUT_SECONDS = 0.5

# A subject may contain any byte except spaces, tabs and line breaks. nats-py also splits at other white space, so a
# sender could choose the subscription that gets a message, or end the connections of all subscribers.
nats_parser.MSG_RE = re.compile(rb"\AMSG ([^ \r\n]+) ([0-9]+) (([^ \r\n]+) )?([0-9]+)\r\n")
nats_parser.HMSG_RE = re.compile(rb"\AHMSG ([^ \r\n]+) ([0-9]+) (([^ \r\n]+) )?([0-9]+) ([0-9]+)\r\n")


class _NatsClient(Client):
    """The nats-py client with five bug fixes and two optimizations. Without a fix, the test of that fix fails.

    nats-py passes every outgoing and incoming message through a queue to a separate task. This class writes all pending
    messages in one piece at the end of the event loop iteration, without a task. For each incoming message, it calls
    the callback of the subscription directly, because our callbacks never block.
    """

    def __init__(self, *, require_tls: bool) -> None:
        super().__init__()
        self.require_tls = require_tls
        self.closed = asyncio.Event()
        self._write_handle: asyncio.Handle | None = None

    def _connect_command(self) -> bytes:
        """Refuse to send credentials without TLS if TLS is required.

        nats-py sends the credentials if the server does not require TLS.
        """
        if self.require_tls and not self._server_info.get("tls_required"):
            raise NatsError("the server does not offer TLS")
        return super()._connect_command()

    async def _process_pong(self) -> None:
        """Accept a pong whose waiter was cancelled. nats-py would stop reading from the socket, without an error."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close the connection even after an error.

        nats-py stops before the connection is closed if there is pending data and the socket is broken. It waits
        forever if the server does not read.
        """
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self._close_after_socket_error(status, do_cbs)
        except TimeoutError:
            self._transport._io_writer.transport.abort()  # type: ignore[union-attr]
        finally:
            self.closed.set()

    async def _close_after_socket_error(self, status: int, do_cbs: bool) -> None:
        try:
            await super()._close(status, do_cbs)
        except OSError:
            self._pending, self._pending_data_size = [], 0
            self._status = Client.DISCONNECTED
            await super()._close(status, do_cbs)

    async def _flush_pending(self, force_flush: bool = False) -> None:
        if force_flush:  # the pending buffer is large: write now, so that `wait_writable` makes the sender wait
            self._write_pending()
        elif self._write_handle is None:
            self._write_handle = asyncio.get_running_loop().call_soon(self._write_pending)

    def _write_pending(self) -> None:
        self._write_handle = None
        if self._pending_data_size and self.is_connected and self._transport:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            with contextlib.suppress(RuntimeError):  # the socket is closed; the read loop reports it
                self._transport.write(b"".join(pending))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        subscription = self._subs.get(sid)
        if subscription is None or subscription._cb is None:
            return
        parsed_headers = await self._process_headers(headers)
        try:
            # nats-py drops a message whose subject is not UTF-8. A message of a stream would then stay unacknowledged.
            subject, reply = (each.decode(errors="replace").encode() for each in (subject, reply))
            await subscription._cb(self._build_message(sid, subject, reply, data, parsed_headers))
        except Exception as error:  # noqa: BLE001 - a failure on one message must not stop the others
            await self._error_cb(error)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Ignore malformed headers. nats-py would stop reading from the socket, without an error."""
        try:
            return await super()._process_headers(headers)
        except (IndexError, ValueError):
            return None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return parse_headers(raw)

    async def wait_writable(self) -> None:
        """Wait while the write buffer of the socket is over its high-water mark."""
        if self._transport:
            await self._transport.drain()  # type: ignore[no-untyped-call]


class NatsSession:
    def __init__(self, options: ConnectionOptions, url: str) -> None:
        self.options = options
        self.url = redact_url(url)
        self.last_error = ""
        """The last error that nats-py reported. After the session has closed, this is the reason for which it
        closed."""
        self.client = _NatsClient(require_tls=options.requires_tls)
        self._server_url = url

    @property
    def closed(self) -> asyncio.Event:
        return self.client.closed

    async def open(self) -> None:
        """Connect and authenticate. Raises NatsMisconfigured or NatsUnreachable. The caller should retry after both.

        NatsMisconfigured can be temporary here, because the credentials and certificate files can change.
        """
        try:
            async with asyncio.timeout(2 * self.options.connect_timeout):
                await self._connect()
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            await self.abort()
            raise NatsUnreachable(f"{self.url}: {self.last_error or _error_text(error)}", sent=False) from error
        except (asyncio.CancelledError, NatsMisconfigured):
            await self.abort()
            raise

    async def _connect(self) -> None:
        tls = self.options.tls
        await self.client.connect(
            servers=[self._server_url],
            name=self.options.name,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            connect_timeout=self.options.connect_timeout,  # type: ignore[arg-type]  # nats-py accepts a float
            ping_interval=self.options.ping_interval,  # type: ignore[arg-type]
            flush_timeout=FLUSH_TIMEOUT_SECONDS,
            error_cb=self._on_error,
            tls=self.options.tls_context(),
            tls_hostname=tls.server_name if tls and tls.server_name else None,
            **self.options.auth_arguments(),
        )

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Write a message to the socket. Raises NatsMessageTooLarge, or NatsUnreachable if the connection is lost."""
        self._check_size(data, headers)
        try:
            await self.client.publish(subject, data, reply, dict(headers) if headers else None)
        except (NatsError, OSError) as error:
            raise NatsUnreachable(f"{self.url}: {_error_text(error)}", sent=False) from error
        try:
            await self.client.wait_writable()
        except OSError as error:
            raise NatsUnreachable(f"{self.url}: {_error_text(error)}", sent=True) from error

    async def flush_and_close(self) -> None:
        """Flush all pending messages to the server, then close."""
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_SECONDS):
                await self.client.flush(timeout=int(FLUSH_TIMEOUT_SECONDS))
        await self.abort()

    async def abort(self) -> None:
        """Close without flushing. The timeout is necessary: after a failed TLS handshake, nats-py waits forever."""
        with contextlib.suppress(NatsError, OSError, AssertionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.client.close()

    def _check_size(self, data: bytes, headers: Mapping[str, str] | None) -> None:
        """Reject a message that is too large, because the server would close the connection.

        The size check of nats-py does not count the headers.
        """
        size = len(data)
        if headers:
            size += HEADER_OVERHEAD_BYTES + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        if size > self.client.max_payload:
            raise NatsMessageTooLarge(
                f"the message has {size} bytes; the NATS server accepts at most {self.client.max_payload} (max_payload)"
            )

    async def _on_error(self, error: Exception) -> None:
        self.last_error = _error_text(error)
        logger.debug("NATS client reported an error", extra={"url": self.url, "error": self.last_error})


def _error_text(error: BaseException) -> str:
    text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    return f"{text} (check the credentials)" if "authorization violation" in text.lower() else text
