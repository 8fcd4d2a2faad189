"""Generates create requests in a separate process, at a fixed rate or with a fixed concurrency.

    python -m bench.create_load < job.json > outcome.json

At a fixed rate, the latency of a create is measured from its scheduled time, so that a slow server does not hide the
waiting time of later requests. The target is the runtime API over HTTP, or the floor: this process makes the Kubernetes
writes of a create itself.
"""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.floors.handoff_writes import StockUnit, delete_stock_unit, write_handoff
from bench.kube_api import KubeAccess, for_each_concurrently, raw_kube_client
from localcluster.paths import PROJECT_ROOT

START_DELAY_SECONDS = 0.2
"""The time between the start of a job and its first scheduled create."""


class CreateAPITarget(msgspec.Struct, tag=True):
    """The URLs of the API replicas, used in round-robin order, and the token of the caller."""

    urls: list[str]
    token: str


class CreateFloorTarget(msgspec.Struct, tag=True):
    access: KubeAccess
    stock: list[StockUnit]


class CreateJob(msgspec.Struct):
    target: CreateAPITarget | CreateFloorTarget
    requests: list[dict[str, Any]]
    rate: float = 0
    """Creates per second. If it is 0, `concurrency` limits the creates."""
    concurrency: int = 1


class CreateResult(msgspec.Struct):
    """Times are in seconds of the monotonic clock, which all processes of the machine share."""

    name: str
    due_at: float
    answered_at: float
    error: str = ""

    @property
    def latency_seconds(self) -> float:
        return self.answered_at - self.due_at


class CreateLoadResult(msgspec.Struct):
    creates: list[CreateResult]
    cpu_seconds: float
    """The CPU time of the load generator."""
    wall_seconds: float


SendCreate = Callable[[int], Awaitable[str]]
"""Sends the request with this number and returns the error, or an empty string."""


async def run_create_load(job: CreateJob, folder: Path) -> CreateLoadResult:
    """Run the job in a separate process."""
    job_path, result_path = folder / "job.json", folder / "outcome.json"
    job_path.write_bytes(msgspec.json.encode(job))
    with job_path.open("rb") as stdin, result_path.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.create_load", stdin=stdin, stdout=stdout, cwd=PROJECT_ROOT
        )
        if await process.wait():
            raise RuntimeError("the load generator failed")
    return msgspec.json.decode(result_path.read_bytes(), type=CreateLoadResult)


async def run_job(job: CreateJob) -> CreateLoadResult:
    cpu, wall = time.process_time(), time.monotonic()
    async with _open_target(job) as send:
        creates = await (_at_rate(job, send) if job.rate else _at_concurrency(job, send))
    return CreateLoadResult(creates, time.process_time() - cpu, time.monotonic() - wall)


async def _at_rate(job: CreateJob, send: SendCreate) -> list[CreateResult]:
    start = time.monotonic() + START_DELAY_SECONDS
    due_times = [start + number / job.rate for number in range(len(job.requests))]
    async with asyncio.TaskGroup() as tasks:
        create_tasks = []
        for number, due_at in enumerate(due_times):
            await asyncio.sleep(due_at - time.monotonic())
            create_tasks.append(tasks.create_task(_create(job, send, number, due_at)))
    return [task.result() for task in create_tasks]


async def _at_concurrency(job: CreateJob, send: SendCreate) -> list[CreateResult]:
    creates: list[CreateResult] = []

    async def run_create(number: int) -> None:
        creates.append(await _create(job, send, number, time.monotonic()))

    await for_each_concurrently(job.concurrency, range(len(job.requests)), run_create)
    return creates


async def _create(job: CreateJob, send: SendCreate, number: int, due_at: float) -> CreateResult:
    error = await send(number)
    return CreateResult(job.requests[number]["name"], due_at, time.monotonic(), error)


@asynccontextmanager
async def _open_target(job: CreateJob) -> AsyncIterator[SendCreate]:
    match job.target:
        case CreateAPITarget(urls, token):
            connector = aiohttp.TCPConnector(limit=0)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                yield _http_sender(session, urls, job.requests)
        case CreateFloorTarget(access, stock):
            async with raw_kube_client(access) as api, asyncio.TaskGroup() as deletions:

                async def write(number: int) -> str:
                    await write_handoff(api, job.requests[number], stock[number])
                    deletions.create_task(delete_stock_unit(api, stock[number]))
                    return ""

                yield write


def _http_sender(session: aiohttp.ClientSession, urls: Sequence[str], requests: Sequence[dict[str, Any]]) -> SendCreate:
    replicas = cycle(urls)

    async def post(number: int) -> str:
        body = msgspec.json.encode(requests[number])
        async with session.post(f"{next(replicas)}/api/v1/gpu-units", data=body) as response:
            text = await response.text()
            return "" if response.status == 201 else f"{response.status} {text}"

    return post


if __name__ == "__main__":
    gc.disable()  # the pauses of the garbage collector would be measured as latency of the target
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=CreateJob)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run_job(job))))
