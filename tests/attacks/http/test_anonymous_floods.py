"""Requests without a token cost almost nothing: nothing is unpacked, no metrics are collected, and a rate applies."""

import gzip
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
import yaml

from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.swagger import swagger_handlers
from tests.integration.runtime_api.edge.conftest import ApiProcess
from tests.unit.runtime_api.http.http_harness import (
    AppOptions,
    FixedAuthenticator,
    make_route,
    running_app,
)

BUNDLE = "/swagger/swagger-ui-bundle.js"


async def test_swagger_ui_without_accept_encoding_is_not_unpacked_for_each_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers, unpacked = swagger_handlers(b"{}"), Counter[str]()

    def count(data: bytes) -> bytes:
        unpacked["calls"] += 1
        return decompress(data)

    decompress = gzip.decompress
    monkeypatch.setattr(gzip, "decompress", count)
    async with running_app([], AppOptions(plain_handlers=handlers)) as edge:
        replies = [await edge.request("GET", BUNDLE, headers={"Accept-Encoding": "identity"}) for _ in range(5)]
    assert {reply.status for reply in replies} == {200}
    assert len(replies[0].body) > 1_000_000
    assert unpacked["calls"] == 0


async def flood(path: str, **options: Any) -> list[int]:
    edge_options = AppOptions(
        authenticator=FixedAuthenticator(Scope.RUNTIME),
        anonymous_rate_limiter=CallerRateLimiter(per_second=1, burst=10),
        plain_handlers=swagger_handlers(b"{}"),
    )
    routes = [make_route(), make_route(path="/open", scope=None)]
    async with running_app(routes, edge_options) as edge:
        flooded = [await edge.request("GET", path, **options) for _ in range(30)]
        good = await edge.request("GET", "/items/a", headers={"Authorization": "Bearer good"})
    assert good.status == 200  # the same peer, with a token
    return [reply.status for reply in flooded]


@pytest.mark.parametrize("path", ["/swagger/index.html", "/openapi.json", "/open", "/unknown", "/items/a", "/healthz"])
async def test_flood_without_a_token_is_limited_by_peer(path: str) -> None:
    statuses = await flood(path)
    assert statuses[:5] != [429] * 5
    assert statuses[-5:] == [429] * 5


async def test_flood_with_invalid_tokens_is_limited_by_peer() -> None:
    statuses = await flood("/items/a", headers={"Authorization": "Bearer bad"})
    assert (statuses[0], statuses[-1]) == (401, 429)


@pytest.fixture
def api_without_kubernetes(tmp_path: Path) -> Iterator[ApiProcess]:
    """A runtime API that cannot reach Kubernetes. It answers requests without a token."""
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    user = {"name": "u", "user": {"token": "t"}}
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": [user], "current-context": "c"})
    )
    process = ApiProcess(tmp_path / "api", kubeconfig, {"nats": {"urls": ["nats://127.0.0.1:1"]}}).start()
    try:
        process.wait_for("/healthz", 200)
        yield process
    finally:
        process.signal(Signals.SIGKILL)
        process.wait_exit()


def test_metrics_are_not_served_on_the_api_port(api_without_kubernetes: ApiProcess) -> None:
    assert api_without_kubernetes.request("/metrics").status == 404
    health = f"http://127.0.0.1:{api_without_kubernetes.health_port}/metrics"
    with urllib.request.urlopen(health, timeout=30) as response:
        assert b"gpu_runtime_build_info" in response.read()
