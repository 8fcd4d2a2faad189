"""Callers of functions: some wait for the answer, some fetch it, some take the call back."""

import asyncio
import time
from dataclasses import dataclass

from tests.chaos.request_history import Invocation
from tests.chaos.retrying_api_client import RetryingApiClient
from tests.integration.runtime_api.live_platform import ApiResponse

INVOCATIONS_PATH = "/api/v1/serverless/invocations"
LONG_TIMEOUT_SECONDS, SHORT_TIMEOUT_SECONDS = 240, 4
"""Seconds after which an answer no longer counts: usually after the round, and of some before a worker may be there."""

FUNCTION_SOURCE = """
import asyncio
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    with open({executions!r}, "ab", buffering=0) as told:
        told.write(request.invocation_id.encode() + b"\\n")
    await asyncio.sleep(request.payload["seconds"])
    return request.payload

serve()
"""


@dataclass
class InvocationLoad:
    caller: RetryingApiClient
    function: str
    call_seconds: tuple[float, float]
    """How long a call takes, at least and at most."""
    pause_seconds: tuple[float, float]
    """Between two calls."""
    invocation_count: int = 0

    async def run(self, until: float) -> None:
        chance = self.caller.rng
        async with asyncio.TaskGroup() as calls:
            while time.monotonic() < until:
                self.invocation_count += 1
                calls.create_task(
                    InvocationScenario(
                        self.caller.derive(self.invocation_count),
                        self.function,
                        self.invocation_count,
                        self.call_seconds,
                    ).run()
                )
                # Now and then long enough for the last worker to go, so that the next call finds none.
                rest = chance.uniform(5, 9) if chance.random() < 0.06 else 0
                await asyncio.sleep(chance.uniform(*self.pause_seconds) + rest)


@dataclass
class InvocationScenario:
    caller: RetryingApiClient
    function: str
    number: int
    call_seconds: tuple[float, float]

    async def run(self) -> None:
        chance = self.caller.rng
        invocation = self._new_invocation()
        self.caller.history.invocations[invocation.id] = invocation
        await self._invoke(invocation, "sync" if chance.random() < 0.3 else "async")
        for act in chance.sample(
            (
                self._replay,
                self._reuse_invocation_id,
                self._cancel,
                self._read_state,
                self._read_state,
                self._read_state,
            ),
            k=3,
        ):
            await asyncio.sleep(chance.uniform(0, 3))
            await act(invocation)

    def _new_invocation(self) -> Invocation:
        chance = self.caller.rng
        payload = {"n": self.number, "seconds": round(chance.uniform(*self.call_seconds), 2)}
        request = {
            "invocationID": f"{self.function}-{self.number}",
            "serverlessRequestID": self.function,
            "payload": payload,
            "timeoutSeconds": SHORT_TIMEOUT_SECONDS if chance.random() < 0.05 else LONG_TIMEOUT_SECONDS,
        }
        return Invocation(str(request["invocationID"]), self.function, request, sent_at=time.time())

    async def _invoke(self, invocation: Invocation, mode: str) -> None:
        body = invocation.request | {"mode": mode}
        answer, _ = await self.caller.request("POST", INVOCATIONS_PATH, body, (200, 202, 504))
        invocation.accepted = True
        if mode == "sync" and answer.status == 200:
            invocation.sync_responses.append(answer.body["data"])

    async def _replay(self, invocation: Invocation) -> None:
        await self._invoke(invocation, "async")

    async def _reuse_invocation_id(self, invocation: Invocation) -> None:
        body = invocation.request | {"payload": {"n": -1, "seconds": 0}}
        answer = await self.caller.request_once("POST", INVOCATIONS_PATH, body)
        if answer.status not in (0, 429, 503) and answer.code != "invocation_reused":
            invocation.violations.append(f"another call under its ID was answered {answer}")

    async def _cancel(self, invocation: Invocation) -> None:
        if self.caller.rng.random() < 0.3:
            invocation.cancelled = True
            await self.caller.request("DELETE", f"{INVOCATIONS_PATH}/{invocation.id}", None, (200, 202, 409))

    async def _read_state(self, invocation: Invocation) -> None:
        await read_invocation(self.caller, invocation)


async def read_invocation(caller: RetryingApiClient, invocation: Invocation) -> ApiResponse:
    answer = await caller.request_once("GET", f"{INVOCATIONS_PATH}/{invocation.id}")
    if answer.status == 200:
        invocation.record_view(answer.body["data"])
    elif answer.status not in (0, 429, 503):
        invocation.violations.append(f"was looked up, and answered {answer}")
    return answer
