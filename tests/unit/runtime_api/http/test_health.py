"""Health says what is not well, and asks Kubernetes no more often than it must."""

import asyncio

import pytest

from gpu_runtime.kube.errors import Unreachable
from gpu_runtime.runtime_api.http import health_route
from gpu_runtime.runtime_api.http.health_route import Pulse, routes, state_of_health
from tests.unit.runtime_api.http.serving import served

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
def test_what_is_not_well_is_said(error: str, unusable: str | None, nats: str | None, said: str | None) -> None:
    found = state_of_health("" if error else "v1.34.0", error, unusable, nats)
    assert (found.status, found.error) == ("degraded" if said else "ok", said)
    assert found.kubernetes_connected == (not error)
    assert found.caches_complete == (unusable is None)
    assert found.nats_connected == (nats is None)


async def test_health_answers_200_whatever_it_finds() -> None:
    async def away() -> tuple[str, str]:
        return "", AWAY

    async with served(routes(away, lambda: "stale", lambda: None)) as edge:
        reply = await edge.ask("GET", "/api/v1/health")
    assert (reply.status, reply.json["data"]["kubernetesConnected"], reply.json["data"]["error"]) == (200, False, AWAY)


class Kubernetes:
    """Answers, refuses or is silent, for the logic around it."""

    def __init__(self) -> None:
        self.asked = 0
        self.silent = False

    def patient(self, *_: object) -> "Kubernetes":
        return self

    def urgent(self) -> "Kubernetes":
        return self

    async def server_version(self) -> str:
        self.asked += 1
        if self.silent:
            await asyncio.Event().wait()
        if self.asked > 1:
            raise Unreachable("no answer", sent=False)
        return "v1.34.0"


async def test_those_who_ask_at_once_share_one_answer_and_later_ones_get_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kubernetes = Kubernetes()
    pulse = Pulse(kubernetes)  # type: ignore[arg-type]
    assert await asyncio.gather(*(pulse.feel() for _ in range(50))) == [("v1.34.0", "")] * 50
    assert kubernetes.asked == 1
    monkeypatch.setattr(health_route, "FRESH_SECONDS", -1.0)
    assert await pulse.feel() == ("", AWAY)


async def test_a_silent_kubernetes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_route, "ASK_SECONDS", 0.05)
    kubernetes = Kubernetes()
    kubernetes.silent = True
    _, error = await Pulse(kubernetes).feel()  # type: ignore[arg-type]
    assert error == "Kubernetes cannot be reached: no answer within 0.05 s"
