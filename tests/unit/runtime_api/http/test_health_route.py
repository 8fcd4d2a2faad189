"""Health says what is not well, and asks Kubernetes no more often than it must."""

import asyncio

import pytest

from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.runtime_api.http import health_route
from gpu_runtime.runtime_api.http.health_route import KubeProbe, build_health, routes
from tests.unit.runtime_api.http.http_harness import running_app

AWAY = "Kubernetes cannot be reached: no answer"


@pytest.mark.parametrize(
    ("error", "unusable", "nats", "said"),
    [
        ("", None, None, None),
        (AWAY, None, None, AWAY),
        ("", "it is still starting", None, "it is still starting"),
        (AWAY, "stale", None, AWAY),
        ("", None, "NATS hangs up", "NATS hangs up"),
        (AWAY, None, "NATS hangs up", f"{AWAY}; NATS hangs up"),
    ],
)
def test_degraded_health_states_the_cause(error: str, unusable: str | None, nats: str | None, said: str | None) -> None:
    found = build_health("" if error else "v1.34.0", error, unusable, nats)
    assert (found.status, found.error) == ("degraded" if said else "ok", said)
    assert found.kubernetes_connected == (not error)
    assert found.caches_complete == (unusable is None)
    assert found.nats_connected == (nats is None)


async def test_health_route_always_returns_200() -> None:
    async def away() -> tuple[str, str]:
        return "", AWAY

    async with running_app(routes(away, lambda: "stale", lambda: None)) as edge:
        reply = await edge.request("GET", "/api/v1/health")
    assert (reply.status, reply.json["data"]["kubernetesConnected"], reply.json["data"]["error"]) == (200, False, AWAY)


class FakeKubernetes:
    """Answers, refuses or is silent, for the logic around it."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = False

    def with_options(self, *_: object) -> "FakeKubernetes":
        return self

    def without_connection_limit(self) -> "FakeKubernetes":
        return self

    async def server_version(self) -> str:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.asked > 1:
            raise KubeUnreachable("no answer", sent=False)
        return "v1.34.0"


async def test_concurrent_health_checks_share_one_kubernetes_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kubernetes = FakeKubernetes()
    pulse = KubeProbe(kubernetes)  # type: ignore[arg-type]
    assert await asyncio.gather(*(pulse.check() for _ in range(50))) == [("v1.34.0", "")] * 50
    assert kubernetes.asked == 1
    monkeypatch.setattr(health_route, "FRESH_SECONDS", -1.0)
    assert await pulse.check() == ("", AWAY)


async def test_health_check_times_out_for_a_silent_kubernetes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_route, "ASK_SECONDS", 0.05)
    kubernetes = FakeKubernetes()
    kubernetes.silent = True
    _, error = await KubeProbe(kubernetes).check()  # type: ignore[arg-type]
    assert error == "Kubernetes cannot be reached: no answer within 0.05 s"
