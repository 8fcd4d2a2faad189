"""Generates invocation load: synchronous and asynchronous invocations, replays, cancels and reads."""

import asyncio
import time
from dataclasses import dataclass

from tests.chaos.request_history import Invocation
from tests.chaos.retrying_api_client import RetryingApiClient
from tests.integration.runtime_api.live_platform import ApiResponse

INVOCATIONS_PATH = "/api/v1/serverless/invocations"
LONG_TIMEOUT_SECONDS, SHORT_TIMEOUT_SECONDS = 240, 4
"""Invocation timeouts. The long one usually ends after the round. The short one may end before a worker is ready."""

FUNCTION_SOURCE = """
import asyncio
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    with open({executions!r}, "ab", buffering=0) as executions:
        executions.write(request.invocation_id.encode() + b"\\n")
    await asyncio.sleep(request.payload["seconds"])
    return request.payload

serve()
"""


@dataclass
class InvocationLoad:
    caller: RetryingApiClient
    function: str
    call_seconds: tuple[float, float]
    """The minimum and maximum duration of a call."""
    pause_seconds: tuple[float, float]
    """The minimum and maximum time between two invocations."""
    invocation_count: int = 0

    async def run(self, until: float) -> None:
        rng = self.caller.rng
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
                # A long pause lets the activator delete the last idle worker, so that the next call is a cold start.
                long_pause = rng.uniform(5, 9) if rng.random() < 0.06 else 0
                await asyncio.sleep(rng.uniform(*self.pause_seconds) + long_pause)


@dataclass
class InvocationScenario:
    caller: RetryingApiClient
    function: str
    number: int
    call_seconds: tuple[float, float]

    async def run(self) -> None:
        rng = self.caller.rng
        invocation = self._new_invocation()
        self.caller.history.invocations[invocation.id] = invocation
        await self._invoke(invocation, "sync" if rng.random() < 0.3 else "async")
        for action in rng.sample(
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
            await asyncio.sleep(rng.uniform(0, 3))
            await action(invocation)

    def _new_invocation(self) -> Invocation:
        rng = self.caller.rng
        payload = {"n": self.number, "seconds": round(rng.uniform(*self.call_seconds), 2)}
        request = {
            "invocationID": f"{self.function}-{self.number}",
            "serverlessRequestID": self.function,
            "payload": payload,
            "timeoutSeconds": SHORT_TIMEOUT_SECONDS if rng.random() < 0.05 else LONG_TIMEOUT_SECONDS,
        }
        return Invocation(str(request["invocationID"]), self.function, request, sent_at=time.time())

    async def _invoke(self, invocation: Invocation, mode: str) -> None:
        body = invocation.request | {"mode": mode}
        response, _ = await self.caller.request("POST", INVOCATIONS_PATH, body, (200, 202, 504))
        invocation.accepted = True
        if mode == "sync" and response.status == 200:
            invocation.sync_responses.append(response.body["data"])

    async def _replay(self, invocation: Invocation) -> None:
        await self._invoke(invocation, "async")

    async def _reuse_invocation_id(self, invocation: Invocation) -> None:
        body = invocation.request | {"payload": {"n": -1, "seconds": 0}}
        response = await self.caller.request_once("POST", INVOCATIONS_PATH, body)
        if response.status not in (0, 429, 503) and response.code != "invocation_reused":
            invocation.violations.append(f"another payload with the same invocationID had the response {response}")

    async def _cancel(self, invocation: Invocation) -> None:
        if self.caller.rng.random() < 0.3:
            invocation.cancelled = True
            await self.caller.request("DELETE", f"{INVOCATIONS_PATH}/{invocation.id}", None, (200, 202, 409))

    async def _read_state(self, invocation: Invocation) -> None:
        await read_invocation(self.caller, invocation)


async def read_invocation(caller: RetryingApiClient, invocation: Invocation) -> ApiResponse:
    response = await caller.request_once("GET", f"{INVOCATIONS_PATH}/{invocation.id}")
    if response.status == 200:
        invocation.record_view(response.body["data"])
    elif response.status not in (0, 429, 503):
        invocation.violations.append(f"a read had the response {response}")
    return response
