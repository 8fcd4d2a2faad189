"""Keeps Services of the cluster at fixed ports of this machine, however their pods come and go.

A program of its own: `python -m localcluster.forwarder FD=SERVICE:PORT ...`. It runs inside the node, where Services
have names and addresses, and accepts on sockets that were opened outside and handed in as file descriptors.
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
                print(f"{host}:{port} does not answer within {CONNECT_TIMEOUT_SECONDS:g} s", flush=True)
                return
            with contextlib.closing(to_upstream):
                await asyncio.gather(_copy(reader, to_upstream), _copy(upstream, writer))

    server = await asyncio.start_server(accept, sock=socket.socket(fileno=descriptor))
    await server.serve_forever()


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A pod of the Service. One that is just ending refuses; nothing was said yet, so another one may be asked."""
    async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
        while True:
            try:
                return await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(CONNECT_RETRY_SECONDS)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the sender has no more to say, then say so to the receiver."""
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
