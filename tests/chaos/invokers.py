"""Callers of functions: some wait for the answer, some fetch it, some take the call back."""

import asyncio
import time
from dataclasses import dataclass

from tests.chaos.callers import Caller
from tests.chaos.history import Invocation
from tests.integration.runtime_api.live import Answer

INVOCATIONS = "/api/v1/serverless/invocations"
LASTING, SHORT = 240, 4
"""Seconds after which an answer no longer counts: usually after the round, and of some before a worker may be there."""

SOURCE = """
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
class Invoker:
    caller: Caller
    function: str
    seconds: tuple[float, float]
    """How long a call takes, at least and at most."""
    pause: tuple[float, float]
    """Between two calls."""
    asked: int = 0

    async def live(self, until: float) -> None:
        chance = self.caller.chance
        async with asyncio.TaskGroup() as calls:
            while time.monotonic() < until:
                self.asked += 1
                calls.create_task(Call(self.caller.other(self.asked), self.function, self.asked, self.seconds).live())
                # Now and then long enough for the last worker to go, so that the next call finds none.
                rest = chance.uniform(5, 9) if chance.random() < 0.06 else 0
                await asyncio.sleep(chance.uniform(*self.pause) + rest)


@dataclass
class Call:
    caller: Caller
    function: str
    number: int
    seconds: tuple[float, float]

    async def live(self) -> None:
        chance = self.caller.chance
        invocation = self._made()
        self.caller.history.invocations[invocation.id] = invocation
        await self._ask(invocation, "sync" if chance.random() < 0.3 else "async")
        for act in chance.sample((self._again, self._misuse, self._cancel, self._look, self._look, self._look), k=3):
            await asyncio.sleep(chance.uniform(0, 3))
            await act(invocation)

    def _made(self) -> Invocation:
        chance = self.caller.chance
        payload = {"n": self.number, "seconds": round(chance.uniform(*self.seconds), 2)}
        request = {
            "invocationID": f"{self.function}-{self.number}",
            "serverlessRequestID": self.function,
            "payload": payload,
            "timeoutSeconds": SHORT if chance.random() < 0.05 else LASTING,
        }
        return Invocation(str(request["invocationID"]), self.function, request, sent=time.time())

    async def _ask(self, invocation: Invocation, mode: str) -> None:
        body = invocation.request | {"mode": mode}
        answer, _ = await self.caller.answered("POST", INVOCATIONS, body, (200, 202, 504))
        invocation.accepted = True
        if mode == "sync" and answer.status == 200:
            invocation.answers.append(answer.body["data"])

    async def _again(self, invocation: Invocation) -> None:
        await self._ask(invocation, "async")

    async def _misuse(self, invocation: Invocation) -> None:
        body = invocation.request | {"payload": {"n": -1, "seconds": 0}}
        answer = await self.caller.once("POST", INVOCATIONS, body)
        if answer.status not in (0, 429, 503) and answer.code != "invocation_reused":
            invocation.complaints.append(f"another call under its ID was answered {answer}")

    async def _cancel(self, invocation: Invocation) -> None:
        if self.caller.chance.random() < 0.3:
            invocation.cancelled = True
            await self.caller.answered("DELETE", f"{INVOCATIONS}/{invocation.id}", None, (200, 202, 409))

    async def _look(self, invocation: Invocation) -> None:
        await look_up(self.caller, invocation)


async def look_up(caller: Caller, invocation: Invocation) -> Answer:
    answer = await caller.once("GET", f"{INVOCATIONS}/{invocation.id}")
    if answer.status == 200:
        invocation.look_up(answer.body["data"])
    elif answer.status not in (0, 429, 503):
        invocation.complaints.append(f"was looked up, and answered {answer}")
    return answer
