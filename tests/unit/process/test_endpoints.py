"""Health, readiness and metrics as Kubernetes and Prometheus ask for them."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web
from prometheus_client import Counter

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.process.health_server import listening, serve_endpoints
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.shared_settings import Endpoints


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
async def served() -> AsyncIterator[Served]:
    it = Served()
    settings = Endpoints(bind="127.0.0.1:0")
    async with serve_endpoints(settings, it.registry, it.stopping, ready={"caches": it.caches}) as port:
        it.url = f"http://127.0.0.1:{port}"
        yield it


async def test_readiness_says_what_it_waits_for(served: Served) -> None:
    status, text, _ = await served.get("/readyz")
    assert (status, text) == (503, "[+] stopping: ok\n[-] caches: waiting for gpuunits\n")
    served.unsynced.clear()
    assert (await served.get("/readyz"))[0] == 200


async def test_a_process_that_is_stopping_is_healthy_and_not_ready(served: Served) -> None:
    served.unsynced.clear()
    served.stopping.set()
    assert (await served.get("/healthz"))[0] == 200
    assert (await served.get("/readyz"))[0] == 503


async def test_metrics_speak_both_dialects(served: Served) -> None:
    Counter("claims", "Stock claimed", registry=served.registry).inc()
    status, text, kind = await served.get("/metrics")
    assert status == 200
    assert kind.startswith("text/plain")
    assert "claims_total 1.0" in text
    assert 'gpu_runtime_build_info{process="test",version="' in text
    assert "process_resident_memory_bytes" in text
    _, text, kind = await served.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_a_taken_port_is_one_sentence(served: Served) -> None:
    taken = Endpoints(bind=served.url.removeprefix("http://"))
    with pytest.raises(Unavailable, match=f"cannot listen on {taken.bind}: .*address already in use"):
        async with listening(web.Application(), taken, finish_within=1):
            pass


async def test_what_is_no_http_is_refused_and_fills_no_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    for garbage in (
        b"GET /\xff HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
        writer.write(garbage)
        assert (await reader.read()).startswith(b"HTTP/1.0 400 ")
        writer.close()
        await writer.wait_closed()
    assert caplog.records == []
