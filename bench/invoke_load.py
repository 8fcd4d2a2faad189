"""Generates invocations in a separate process, with a fixed concurrency.

    python -m bench.invoke_load < job.json > outcome.json

The target is the runtime API over HTTP, or the floor: a plain NATS pipeline of the same hops, to which this process
publishes directly.
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
    """The URL of the API, the token of the caller, and the functions that are called in round-robin order."""

    url: str
    token: str
    functions: list[str]


class InvokePipelineTarget(msgspec.Struct, tag=True):
    nats_url: str


class InvokeJob(msgspec.Struct):
    target: InvokeAPITarget | InvokePipelineTarget
    id_prefix: str
    """The prefix of the invocation IDs."""
    call_count: int
    concurrency: int
    sync: bool = False
    payload: Any = None
    timeout_seconds: int = 300


class InvokeLoadResult(msgspec.Struct):
    latency_seconds: list[float]
    """The latency of each call, in the order of the calls."""
    started_at: float
    """The start time on the monotonic clock, which all processes of the machine share."""
    cpu_seconds: float
    errors: list[str]


InvokeCall = Callable[[str], Awaitable[str]]
"""Sends the invocation with this ID and returns the error, or an empty string."""


async def run_invoke_load(job: InvokeJob, folder: Path) -> InvokeLoadResult:
    """Run the job in a separate process."""
    job_path, result_path = folder / "invoke-job.json", folder / "invoke-outcome.json"
    job_path.write_bytes(msgspec.json.encode(job))
    with job_path.open("rb") as stdin, result_path.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.invoke_load", stdin=stdin, stdout=stdout, cwd=PROJECT_ROOT
        )
        if await process.wait():
            raise RuntimeError("the load generator failed")
    return msgspec.json.decode(result_path.read_bytes(), type=InvokeLoadResult)


async def run_job(job: InvokeJob) -> InvokeLoadResult:
    seconds = [0.0] * job.call_count
    errors: list[str] = []
    async with _open_target(job) as call:

        async def run_call(number: int) -> None:
            started = time.monotonic()
            error = await call(f"{job.id_prefix}-{number}")
            seconds[number] = time.monotonic() - started
            if error:
                errors.append(error)

        cpu, started_at = time.process_time(), time.monotonic()
        await for_each_concurrently(job.concurrency, range(job.call_count), run_call)
        return InvokeLoadResult(seconds, started_at, time.process_time() - cpu, errors)


@asynccontextmanager
async def _open_target(job: InvokeJob) -> AsyncIterator[InvokeCall]:
    match job.target:
        case InvokeAPITarget(url, token, functions):
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers) as session:
                yield _http_call(session, job, url, functions)
        case InvokePipelineTarget(nats):
            async with pipeline_caller(nats) as caller:
                yield _pipeline_call(caller, job)


def _http_call(session: aiohttp.ClientSession, job: InvokeJob, url: str, functions: list[str]) -> InvokeCall:
    next_function = cycle(functions)
    expected_status = 200 if job.sync else 202

    async def post(invocation_id: str) -> str:
        request = {"invocationID": invocation_id, "serverlessRequestID": next(next_function), "payload": job.payload}
        body = msgspec.json.encode(
            request | {"mode": "sync" if job.sync else "async", "timeoutSeconds": job.timeout_seconds}
        )
        async with session.post(f"{url}/api/v1/serverless/invocations", data=body) as response:
            text = await response.text()
            return "" if response.status == expected_status else f"{response.status} {text}"

    return post


def _pipeline_call(caller: PipelineCaller, job: InvokeJob) -> InvokeCall:
    body = msgspec.json.encode(job.payload)

    async def send(invocation_id: str) -> str:
        await caller.send(invocation_id, body, wait=job.sync)
        return ""

    return send


if __name__ == "__main__":
    gc.disable()  # the pauses of the garbage collector would be measured as latency of the target
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=InvokeJob)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run_job(job))))
