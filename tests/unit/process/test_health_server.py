"""Health, readiness and metrics as Kubernetes and Prometheus ask for them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from prometheus_client import Counter

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.process.health_server import serve_app, serve_health
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.shared_settings import BindAddressSettings


class Served:
    def __init__(self) -> None:
        self.registry = new_registry("test")
        self.stopping = asyncio.Event()
        self.unsynced: list[str] = ["gpuunits"]
        self.url = ""

    def caches(self) -> str | None:
        return f"waiting for {', '.join(self.unsynced)}" if self.unsynced else None

    async def get(self, path: str, **headers: str) -> tuple[int, str, str]:
        async with ClientSession() as session, session.get(self.url + path, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers["Content-Type"]


@pytest.fixture
async def running_server() -> AsyncIterator[Served]:
    it = Served()
    settings = BindAddressSettings(bind_address="127.0.0.1:0")
    async with serve_health(settings, it.registry, it.stopping, readiness_checks={"caches": it.caches}) as port:
        it.url = f"http://127.0.0.1:{port}"
        yield it


async def test_readyz_names_the_failing_check(running_server: Served) -> None:
    status, text, _ = await running_server.get("/readyz")
    assert (status, text) == (503, "[+] stopping: ok\n[-] caches: waiting for gpuunits\n")
    running_server.unsynced.clear()
    assert (await running_server.get("/readyz"))[0] == 200


async def test_a_process_that_is_stopping_is_healthy_and_not_ready(running_server: Served) -> None:
    running_server.unsynced.clear()
    running_server.stopping.set()
    assert (await running_server.get("/healthz"))[0] == 200
    assert (await running_server.get("/readyz"))[0] == 503


async def test_metrics_are_served_as_openmetrics_and_as_text(running_server: Served) -> None:
    Counter("claims", "Stock claimed", registry=running_server.registry).inc()
    status, text, kind = await running_server.get("/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert "claims_total 1.0" in text
    assert 'gpu_runtime_build_info{process="test",version="' in text
    assert "process_resident_memory_bytes" in text
    _, text, kind = await running_server.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_port_in_use_is_reported(running_server: Served) -> None:
    taken = BindAddressSettings(bind_address=running_server.url.removeprefix("http://"))
    with pytest.raises(Unavailable, match=f"cannot listen on {taken.bind_address}: .*address already in use"):
        async with serve_app(web.Application(), taken, shutdown_timeout=1):
            pass


async def test_malformed_http_is_answered_400_and_not_logged(
    running_server: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for garbage in (
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(running_server.url.rpartition(":")[2]))
        writer.write(garbage)
        assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
        writer.close()
        await writer.wait_closed()
    assert caplog.records == []
