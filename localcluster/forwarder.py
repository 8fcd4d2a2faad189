"""Forwards fixed ports of this machine to Services of the cluster, independent of the lifetime of their pods.

A separate program: `python -m localcluster.forwarder FD=SERVICE:PORT ...`. It runs inside the node's namespaces, in
which Service names and addresses are valid. It accepts connections on sockets that were opened outside the namespaces
and passed as file descriptors.
"""

import asyncio
import contextlib
import socket
import sys

CHUNK_BYTES = 64 * 1024
CONNECT_TIMEOUT_SECONDS = 5.0
CONNECT_RETRY_SECONDS = 0.05


async def serve(descriptor: int, host: str, port: int) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            try:
                upstream, to_upstream = await _connect(host, port)
            except TimeoutError:
                print(f"cannot connect to {host}:{port} within {CONNECT_TIMEOUT_SECONDS:g} s", flush=True)
                return
            with contextlib.closing(to_upstream):
                await asyncio.gather(_copy(reader, to_upstream), _copy(upstream, writer))

    server = await asyncio.start_server(accept, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a pod of the Service.

    A terminating pod refuses the connection. A retry is safe, because no data has been sent yet.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        while True:
            try:
                return await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(CONNECT_RETRY_SECONDS)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender closes its side, then close the same direction to the receiver."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
            return
    writer.close()


async def main(routes: list[str]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for route in routes:
            descriptor, _, target = route.partition("=")
            host, _, port = target.rpartition(":")
            tasks.create_task(serve(int(descriptor), host, int(port)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
