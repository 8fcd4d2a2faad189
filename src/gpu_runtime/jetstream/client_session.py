"""One connection of the client library, from its dialling to its end. It never reconnects: `connect` makes another one.

The library's own reconnecting is switched off. It gives up for good after some errors of the server, keeps what was
published meanwhile and sends it late, and leaves requests waiting whose answers were lost.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from nats.aio.client import Client
from nats.errors import Error as NatsError

from gpu_runtime.jetstream.connection_options import ConnectionOptions, redact_url
from gpu_runtime.jetstream.delivery import parse_headers
from gpu_runtime.jetstream.errors import NatsMessageTooLarge, NatsMisconfigured, NatsUnreachable

logger = logging.getLogger(__name__)

HEADER_OVERHEAD_BYTES = len("NATS/1.0\r\n\r\n")
FLUSH_TIMEOUT_SECONDS = 5.0
CLOSE_TIMEOUT_SECONDS = 0.5


class _NatsClient(Client):
    """The library's client with three corrections, each held by a test that fails without it, and two short cuts.

    The library passes every message through a queue to a task of its own, on its way out and on its way in. Here what
    is to be sent is written when everybody had his turn, in one piece, without a task; and what comes is handed over
    at once, since whoever receives never waits.
    """

    def __init__(self, *, require_tls: bool) -> None:
        super().__init__()
        self.require_tls = require_tls
        self.closed = asyncio.Event()
        self._write_handle: asyncio.Handle | None = None

    def _connect_command(self) -> bytes:
        """Give the credentials to nobody in the clear. The library follows a server that wants no TLS."""
        if self.require_tls and not self._server_info.get("tls_required"):
            raise NatsError("the server offers no TLS")
        return super()._connect_command()

    async def _process_pong(self) -> None:
        """Take an answer also when nobody waits for it any more. The library would stop reading, and tell nobody."""
        if self._pongs and self._pongs[0].done():
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Come to the end in any case. The library stops half-way when what is left to send meets a dead socket, and
        waits for ever where it meets a server that takes nothing."""
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
        if force_flush:  # much waits already: now whoever sends must wait until the server has taken some of it
            self._write_pending()
        elif self._write_handle is None:
            self._write_handle = asyncio.get_running_loop().call_soon(self._write_pending)

    def _write_pending(self) -> None:
        self._write_handle = None
        if self._pending_data_size and self.is_connected and self._transport:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            with contextlib.suppress(RuntimeError):  # the socket is closed, and whoever reads from it hears of it
                self._transport.write(b"".join(pending))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        subscription = self._subs.get(sid)
        if subscription is None or subscription._cb is None:
            return
        said = await self._process_headers(headers)
        try:
            await subscription._cb(self._build_message(sid, subject, reply, data, said))
        except Exception as error:  # noqa: BLE001 - one message's fault is not that of the others
            await self._error_cb(error)

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        return parse_headers(raw)

    async def wait_writable(self) -> None:
        """Wait until the server takes what was written, where that is much."""
        if self._transport:
            await self._transport.drain()  # type: ignore[no-untyped-call]


class NatsSession:
    def __init__(self, options: ConnectionOptions, url: str) -> None:
        self.options = options
        self.url = redact_url(url)
        self.last_error = ""
        """What the client last complained of: why it ended, once it has."""
        self.client = _NatsClient(require_tls=options.requires_tls)
        self._server_url = url

    @property
    def closed(self) -> asyncio.Event:
        return self.client.closed

    async def open(self) -> None:
        """Connect and log in, or Unreachable."""
        try:
            async with asyncio.timeout(2 * self.options.connect_timeout):
                await self._connect()
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            await self.abort()
            raise NatsUnreachable(f"{self.url}: {self.last_error or _error_text(error)}", sent=False) from error
        except asyncio.CancelledError:
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
            connect_timeout=self.options.connect_timeout,  # type: ignore[arg-type]  # a float will do
            ping_interval=self.options.ping_interval,  # type: ignore[arg-type]
            flush_timeout=FLUSH_TIMEOUT_SECONDS,
            error_cb=self._on_error,
            tls=self.options.tls_context(),
            tls_hostname=tls.server_name if tls and tls.server_name else None,
            **self.options.auth_arguments(),
        )

    async def send(self, subject: str, data: bytes, reply: str = "", headers: Mapping[str, str] | None = None) -> None:
        """Hand a message to the socket. TooLarge, or Unreachable if the connection is gone."""
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
        """Let everything that was sent reach the server, then end."""
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_SECONDS):
                await self.client.flush(timeout=int(FLUSH_TIMEOUT_SECONDS))
        await self.abort()

    async def abort(self) -> None:
        """End at once. A handshake that failed would keep the library waiting for a farewell that never comes."""
        with contextlib.suppress(NatsError, OSError, AssertionError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                await self.client.close()

    def _check_size(self, data: bytes, headers: Mapping[str, str] | None) -> None:
        """The library looks at the data alone, and to a message that is too large the server answers by hanging up."""
        size = len(data)
        if headers:
            size += HEADER_OVERHEAD_BYTES + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
        if size > self.client.max_payload:
            raise NatsMessageTooLarge(
                f"the message has {size} bytes; the NATS server takes at most {self.client.max_payload}"
            )

    async def _on_error(self, error: Exception) -> None:
        self.last_error = _error_text(error)
        logger.debug("nats", extra={"server": self.url, "error": self.last_error})


def _error_text(error: BaseException) -> str:
    text = str(error).removeprefix("nats: ").strip("'") or type(error).__name__
    return f"{text} (are the credentials right?)" if "authorization violation" in text.lower() else text


async def open_session(options: ConnectionOptions, url: str) -> NatsSession:
    """A session that is logged in. Misconfigured and Unreachable are both worth another try: files change, too."""
    session = NatsSession(options, url)
    try:
        await session.open()
    except NatsMisconfigured:
        await session.abort()
        raise
    return session
