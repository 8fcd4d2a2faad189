"""The server responds to the probes of Kubernetes and to the scrapes of Prometheus."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from prometheus_client import Counter

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.process.health_server import serve_app, serve_health
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.shared_settings import BindAddressSettings


class RunningServer:
    def __init__(self) -> None:
        self.registry = new_registry("test")
        self.stopping = asyncio.Event()
        self.unsynced: list[str] = ["gpuunits"]
        self.url = ""

    def caches(self) -> str | None:
        return f"waiting for {', '.join(self.unsynced)}" if self.unsynced else None

    async def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        async with ClientSession() as session, session.get(self.url + path, headers=headers) as response:
            return response.status, await response.text(), response.headers["Content-Type"]


@pytest.fixture
async def running_server() -> AsyncIterator[RunningServer]:
    server = RunningServer()
    settings = BindAddressSettings(bind_address="127.0.0.1:0")
    checks = {"caches": server.caches}
    async with serve_health(settings, server.registry, server.stopping, readiness_checks=checks) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server


async def test_readyz_names_the_failing_check(running_server: RunningServer) -> None:
    status, text, _ = await running_server.get("/readyz")
    assert (status, text) == (503, "[+] stopping: ok\n[-] caches: waiting for gpuunits\n")
    running_server.unsynced.clear()
    assert (await running_server.get("/readyz"))[0] == 200


async def test_stopping_process_is_healthy_and_not_ready(running_server: RunningServer) -> None:
    running_server.unsynced.clear()
    running_server.stopping.set()
    assert (await running_server.get("/healthz"))[0] == 200
    assert (await running_server.get("/readyz"))[0] == 503


async def test_metrics_are_served_as_openmetrics_and_as_text(running_server: RunningServer) -> None:
    Counter("claims", "Stock claimed", registry=running_server.registry).inc()
    status, text, content_type = await running_server.get("/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    assert "claims_total 1.0" in text
    assert 'gpu_runtime_build_info{process="test",version="' in text
    assert "process_resident_memory_bytes" in text
    _, text, content_type = await running_server.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_port_in_use_is_reported(running_server: RunningServer) -> None:
    used = BindAddressSettings(bind_address=running_server.url.removeprefix("http://"))
    with pytest.raises(
        Unavailable, match=f"cannot listen on bindAddress {used.bind_address}: .*address already in use"
    ):
        async with serve_app(web.Application(), used, shutdown_timeout=1):
            pass


async def test_malformed_http_is_answered_400_and_not_logged(
    running_server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    for malformed in (
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(running_server.url.rpartition(":")[2]))
        writer.write(malformed)
        assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
        writer.close()
        await writer.wait_closed()
    assert caplog.records == []
