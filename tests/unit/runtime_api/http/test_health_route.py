"""The health route reports problems, and shares one Kubernetes request between concurrent callers."""

import asyncio

import pytest

from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.runtime_api.http import health_route
from gpu_runtime.runtime_api.http.health_route import HEALTH, HealthService, KubeProbe, build_health
from tests.unit.runtime_api.http.http_harness import running_app

UNREACHABLE = "Kubernetes cannot be reached: no answer"


@pytest.mark.parametrize(
    ("error", "stale_reason", "nats_problem", "expected"),
    [
        ("", None, None, None),
        (UNREACHABLE, None, None, UNREACHABLE),
        ("", "it is still starting", None, "it is still starting"),
        (UNREACHABLE, "stale", None, UNREACHABLE),
        ("", None, "NATS is down", "NATS is down"),
        (UNREACHABLE, None, "NATS is down", f"{UNREACHABLE}; NATS is down"),
    ],
)
def test_degraded_health_states_the_cause(
    error: str, stale_reason: str | None, nats_problem: str | None, expected: str | None
) -> None:
    health = build_health("" if error else "v1.34.0", error, stale_reason, nats_problem)
    assert (health.status, health.error) == ("degraded" if expected else "ok", expected)
    assert health.kubernetes_connected == (not error)
    assert health.caches_complete == (stale_reason is None)
    assert health.nats_connected == (nats_problem is None)


async def test_health_route_always_returns_200() -> None:
    async def unreachable() -> tuple[str, str]:
        return "", UNREACHABLE

    async with running_app(HEALTH.bind(HealthService(unreachable, lambda: "stale", lambda: None))) as edge:
        reply = await edge.request("GET", "/api/v1/health")
    assert (reply.status, reply.json["data"]["kubernetesConnected"], reply.json["data"]["error"]) == (
        200,
        False,
        UNREACHABLE,
    )


class FakeKubernetes:
    """An API server that answers once and then fails, or that never answers."""

    def __init__(self) -> None:
        self.request_count = 0
        self.silent = False

    def with_options(self, *_: object) -> "FakeKubernetes":
        return self

    def without_connection_limit(self) -> "FakeKubernetes":
        return self

    async def server_version(self) -> str:
        self.request_count += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.request_count > 1:
            raise KubeUnreachable("no answer", sent=False)
        return "v1.34.0"


async def test_concurrent_health_checks_share_one_kubernetes_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kubernetes = FakeKubernetes()
    probe = KubeProbe(kubernetes)  # type: ignore[arg-type]
    assert await asyncio.gather(*(probe.check() for _ in range(50))) == [("v1.34.0", "")] * 50
    assert kubernetes.request_count == 1
    monkeypatch.setattr(health_route, "PROBE_CACHE_TTL_SECONDS", -1.0)
    assert await probe.check() == ("", UNREACHABLE)


async def test_health_check_times_out_for_a_silent_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_route, "PROBE_TIMEOUT_SECONDS", 0.05)
    kubernetes = FakeKubernetes()
    kubernetes.silent = True
    _, error = await KubeProbe(kubernetes).check()  # type: ignore[arg-type]
    assert error == "Kubernetes cannot be reached: no answer within 0.05 s"
