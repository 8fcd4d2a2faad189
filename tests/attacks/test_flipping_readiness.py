"""A framework changes its health twice a second. Without a defense, the readiness of its pod follows every change."""

import asyncio
import time
from itertools import pairwise

from localcluster.nats_server import NatsAccount
from tests.integration.framework.framework_process import temporary_socket_dir
from tests.integration.kube.polling import eventually
from tests.integration.worker_sidecar.sidecar_harness import running_sidecar, sidecar_harness, sidecar_settings


async def answer_health_check(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer health checks with 200 and 503 in turn, for half a second each."""
    await reader.readuntil(b"\r\n\r\n")
    status = b"200 OK" if int(time.monotonic() * 2) % 2 else b"503 Service Unavailable"
    writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    writer.close()


async def test_readiness_does_not_follow_a_flipping_framework(nats_account: NatsAccount) -> None:
    with temporary_socket_dir() as directory:
        socket = str(directory / "framework.sock")
        settings = sidecar_settings(nats_account, socket)
        async with (
            await asyncio.start_unix_server(answer_health_check, socket),
            sidecar_harness(settings) as harness,
            running_sidecar(settings) as running,
        ):
            await eventually(lambda: bool(harness.events), "the worker registers")
            readiness = []
            for _ in range(60):
                readiness.append(await running.is_ready())
                await asyncio.sleep(0.1)
    changes = sum(before != after for before, after in pairwise(readiness))
    assert changes <= 1
