"""Invocations from a process of their own, so many at a time.

    python -m bench.invoke_load < job.json > outcome.json

The contenders are the runtime API over HTTP, and the floor: a bare NATS pipeline of the same hops, whose first hop is
made by this process itself.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.floors.nats_pipeline import Ingress, ingress
from bench.kube_api import at_a_time
from localcluster.paths import PROJECT


class RuntimeAPI(msgspec.Struct, tag=True):
    """Whoever is asked, the caller's token, and the functions that are called in turn."""

    url: str
    token: str
    functions: list[str]


class Pipeline(msgspec.Struct, tag=True):
    nats: str


class Job(msgspec.Struct):
    contender: RuntimeAPI | Pipeline
    name: str
    """What the IDs of its invocations begin with."""
    calls: int
    at_a_time: int
    sync: bool = False
    payload: Any = None


class Outcome(msgspec.Struct):
    seconds: list[float]
    """Each call's, in their order."""
    began: float
    """On the machine's monotonic clock, which all its processes share."""
    cpu: float
    refusals: list[str]


Call = Callable[[str], Awaitable[str]]
"""Invokes under this ID. Gives the refusal, if it is one."""


async def run(job: Job, folder: Path) -> Outcome:
    """The job, in a process of its own."""
    given, found = folder / "calls.json", folder / "called.json"
    given.write_bytes(msgspec.json.encode(job))
    with given.open("rb") as asked, found.open("wb") as answer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.invoke_load", stdin=asked, stdout=answer, cwd=PROJECT
        )
        if await process.wait():
            raise RuntimeError("the caller failed")
    return msgspec.json.decode(found.read_bytes(), type=Outcome)


async def carry_out(job: Job) -> Outcome:
    seconds = [0.0] * job.calls
    refusals: list[str] = []
    async with _caller(job) as call:

        async def one(number: int) -> None:
            started = time.monotonic()
            refusal = await call(f"{job.name}-{number}")
            seconds[number] = time.monotonic() - started
            if refusal:
                refusals.append(refusal)

        cpu, began = time.process_time(), time.monotonic()
        await at_a_time(job.at_a_time, range(job.calls), one)
        return Outcome(seconds, began, time.process_time() - cpu, refusals)


@asynccontextmanager
async def _caller(job: Job) -> AsyncIterator[Call]:
    match job.contender:
        case RuntimeAPI(url, token, functions):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
                yield _over_http(session, job, url, functions)
        case Pipeline(nats):
            async with ingress(nats) as first:
                yield _through(first, job)


def _over_http(session: aiohttp.ClientSession, job: Job, url: str, functions: list[str]) -> Call:
    called = cycle(functions)
    wanted = 200 if job.sync else 202

    async def post(invocation_id: str) -> str:
        asked = {"invocationID": invocation_id, "serverlessRequestID": next(called), "payload": job.payload}
        body = msgspec.json.encode(asked | {"mode": "sync" if job.sync else "async", "timeoutSeconds": 300})
        async with session.post(f"{url}/api/v1/serverless/invocations", data=body) as answer:
            text = await answer.text()
            return "" if answer.status == wanted else f"{answer.status} {text}"

    return post


def _through(first: Ingress, job: Job) -> Call:
    body = msgspec.json.encode(job.payload)

    async def send(invocation_id: str) -> str:
        await first.send(invocation_id, body, wait=job.sync)
        return ""

    return send


if __name__ == "__main__":
    gc.disable()  # its pauses would be taken for those of whoever is asked
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(carry_out(given))))
