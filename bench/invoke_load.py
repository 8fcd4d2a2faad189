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

from bench.floors.nats_pipeline import PipelineCaller, pipeline_caller
from bench.kube_api import for_each_concurrently
from localcluster.paths import PROJECT_ROOT


class InvokeAPITarget(msgspec.Struct, tag=True):
    """Whoever is asked, the caller's token, and the functions that are called in turn."""

    url: str
    token: str
    functions: list[str]


class InvokePipelineTarget(msgspec.Struct, tag=True):
    nats_url: str


class InvokeJob(msgspec.Struct):
    target: InvokeAPITarget | InvokePipelineTarget
    id_prefix: str
    """What the IDs of its invocations begin with."""
    call_count: int
    concurrency: int
    sync: bool = False
    payload: Any = None


class InvokeLoadResult(msgspec.Struct):
    latency_seconds: list[float]
    """Each call's, in their order."""
    started_at: float
    """On the machine's monotonic clock, which all its processes share."""
    cpu_seconds: float
    errors: list[str]


InvokeCall = Callable[[str], Awaitable[str]]
"""Invokes under this ID. Gives the refusal, if it is one."""


async def run_invoke_load(job: InvokeJob, folder: Path) -> InvokeLoadResult:
    """The job, in a process of its own."""
    given, found = folder / "calls.json", folder / "called.json"
    given.write_bytes(msgspec.json.encode(job))
    with given.open("rb") as asked, found.open("wb") as answer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.invoke_load", stdin=asked, stdout=answer, cwd=PROJECT_ROOT
        )
        if await process.wait():
            raise RuntimeError("the caller failed")
    return msgspec.json.decode(found.read_bytes(), type=InvokeLoadResult)


async def run_job(job: InvokeJob) -> InvokeLoadResult:
    seconds = [0.0] * job.call_count
    refusals: list[str] = []
    async with _open_target(job) as call:

        async def one(number: int) -> None:
            started = time.monotonic()
            refusal = await call(f"{job.id_prefix}-{number}")
            seconds[number] = time.monotonic() - started
            if refusal:
                refusals.append(refusal)

        cpu, began = time.process_time(), time.monotonic()
        await for_each_concurrently(job.concurrency, range(job.call_count), one)
        return InvokeLoadResult(seconds, began, time.process_time() - cpu, refusals)


@asynccontextmanager
async def _open_target(job: InvokeJob) -> AsyncIterator[InvokeCall]:
    match job.target:
        case InvokeAPITarget(url, token, functions):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
                yield _http_call(session, job, url, functions)
        case InvokePipelineTarget(nats):
            async with pipeline_caller(nats) as first:
                yield _pipeline_call(first, job)


def _http_call(session: aiohttp.ClientSession, job: InvokeJob, url: str, functions: list[str]) -> InvokeCall:
    called = cycle(functions)
    wanted = 200 if job.sync else 202

    async def post(invocation_id: str) -> str:
        asked = {"invocationID": invocation_id, "serverlessRequestID": next(called), "payload": job.payload}
        body = msgspec.json.encode(asked | {"mode": "sync" if job.sync else "async", "timeoutSeconds": 300})
        async with session.post(f"{url}/api/v1/serverless/invocations", data=body) as answer:
            text = await answer.text()
            return "" if answer.status == wanted else f"{answer.status} {text}"

    return post


def _pipeline_call(first: PipelineCaller, job: InvokeJob) -> InvokeCall:
    body = msgspec.json.encode(job.payload)

    async def send(invocation_id: str) -> str:
        await first.send(invocation_id, body, wait=job.sync)
        return ""

    return send


if __name__ == "__main__":
    gc.disable()  # its pauses would be taken for those of whoever is asked
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=InvokeJob)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run_job(given))))
