"""Creates from a process of its own: at times that are fixed beforehand, or so many at a time.

    python -m bench.create_load < job.json > outcome.json

At a rate, a create's latency counts from when it was to be sent, so that a server that makes others wait gains nothing
by it. The contenders are the runtime API over HTTP, and the floor: the writes alone, made by this process itself.
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
"""Seconds until the first create, in which nothing has to be ready yet."""


class CreateAPITarget(msgspec.Struct, tag=True):
    """Whoever is asked in turn, and the caller's token."""

    urls: list[str]
    token: str


class CreateFloorTarget(msgspec.Struct, tag=True):
    access: KubeAccess
    stock: list[StockUnit]


class CreateJob(msgspec.Struct):
    target: CreateAPITarget | CreateFloorTarget
    requests: list[dict[str, Any]]
    rate: float = 0
    """Creates per second. 0: as many as come of so many at a time."""
    concurrency: int = 1


class CreateResult(msgspec.Struct):
    """In seconds of the machine's monotonic clock, which all its processes share."""

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
    """Seconds, of this process."""
    wall_seconds: float


SendCreate = Callable[[int], Awaitable[str]]
"""Sends the request with this number. Gives the refusal, if it is one."""


async def run_create_load(job: CreateJob, folder: Path) -> CreateLoadResult:
    """The job, in a process of its own."""
    given, found = folder / "job.json", folder / "outcome.json"
    given.write_bytes(msgspec.json.encode(job))
    with given.open("rb") as asked, found.open("wb") as answer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.create_load", stdin=asked, stdout=answer, cwd=PROJECT_ROOT
        )
        if await process.wait():
            raise RuntimeError("the load generator failed")
    return msgspec.json.decode(found.read_bytes(), type=CreateLoadResult)


async def run_job(job: CreateJob) -> CreateLoadResult:
    cpu, wall = time.process_time(), time.monotonic()
    async with _open_target(job) as send:
        creates = await (_at_rate(job, send) if job.rate else _at_concurrency(job, send))
    return CreateLoadResult(creates, time.process_time() - cpu, time.monotonic() - wall)


async def _at_rate(job: CreateJob, send: SendCreate) -> list[CreateResult]:
    start = time.monotonic() + START_DELAY_SECONDS
    due = [start + number / job.rate for number in range(len(job.requests))]
    async with asyncio.TaskGroup() as tasks:
        running = []
        for number, moment in enumerate(due):
            await asyncio.sleep(moment - time.monotonic())
            running.append(tasks.create_task(_create(job, send, number, moment)))
    return [task.result() for task in running]


async def _at_concurrency(job: CreateJob, send: SendCreate) -> list[CreateResult]:
    creates: list[CreateResult] = []

    async def one(number: int) -> None:
        creates.append(await _create(job, send, number, time.monotonic()))

    await for_each_concurrently(job.concurrency, range(len(job.requests)), one)
    return creates


async def _create(job: CreateJob, send: SendCreate, number: int, due: float) -> CreateResult:
    refusal = await send(number)
    return CreateResult(job.requests[number]["name"], due, time.monotonic(), refusal)


@asynccontextmanager
async def _open_target(job: CreateJob) -> AsyncIterator[SendCreate]:
    match job.target:
        case CreateAPITarget(urls, token):
            connector = aiohttp.TCPConnector(limit=0)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                yield _http_sender(session, urls, job.requests)
        case CreateFloorTarget(access, stock):
            async with raw_kube_client(access) as api, asyncio.TaskGroup() as afterwards:

                async def write(number: int) -> str:
                    await write_handoff(api, job.requests[number], stock[number])
                    afterwards.create_task(delete_stock_unit(api, stock[number]))
                    return ""

                yield write


def _http_sender(session: aiohttp.ClientSession, urls: Sequence[str], requests: Sequence[dict[str, Any]]) -> SendCreate:
    replicas = cycle(urls)

    async def post(number: int) -> str:
        body = msgspec.json.encode(requests[number])
        async with session.post(f"{next(replicas)}/api/v1/gpu-units", data=body) as answer:
            text = await answer.text()
            return "" if answer.status == 201 else f"{answer.status} {text}"

    return post


if __name__ == "__main__":
    gc.disable()  # its pauses would be taken for those of whoever is asked
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=CreateJob)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(run_job(given))))
