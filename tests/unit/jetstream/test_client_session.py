"""A session closes even if the server does not read."""

from typing import Any, cast
from urllib.parse import urlparse

from nats.aio.client import Client, Srv

from gpu_runtime.jetstream.client_session import _NatsClient


class BrokenTransport:
    """A transport whose peer has closed the connection."""

    closed = False

    def writelines(self, _lines: list[bytes]) -> None: ...

    async def drain(self) -> None:
        raise ConnectionResetError

    def close(self) -> None:
        self.closed = True

    async def wait_closed(self) -> None: ...


async def test_session_closes_with_unsent_data_for_a_dead_server() -> None:
    client, transport = _NatsClient(require_tls=False), BrokenTransport()
    client._status = Client.DISCONNECTED
    client._current_server = Srv(urlparse("nats://gone:4222"))
    client._transport = cast(Any, transport)
    client._flush_queue = cast(Any, object())
    client._pending, client._pending_data_size = [b"PUB a 1\r\nx\r\n"], 12
    await client.close()
    assert client.closed.is_set()
    assert client.is_closed
    assert transport.closed
