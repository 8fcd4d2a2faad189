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

from bench.floors.handoff_writes import Stock, cleared_up, handed_over
from bench.kube_api import Access, at_a_time, bare
from localcluster.paths import PROJECT

LEAD = 0.2
"""Seconds until the first create, in which nothing has to be ready yet."""


class RuntimeAPI(msgspec.Struct, tag=True):
    """Whoever is asked in turn, and the caller's token."""

    urls: list[str]
    token: str


class Floor(msgspec.Struct, tag=True):
    access: Access
    stock: list[Stock]


class Job(msgspec.Struct):
    contender: RuntimeAPI | Floor
    requests: list[dict[str, Any]]
    rate: float = 0
    """Creates per second. 0: as many as come of so many at a time."""
    at_a_time: int = 1


class Create(msgspec.Struct):
    """In seconds of the machine's monotonic clock, which all its processes share."""

    name: str
    due: float
    answered: float
    refusal: str = ""

    @property
    def seconds(self) -> float:
        return self.answered - self.due


class Outcome(msgspec.Struct):
    creates: list[Create]
    cpu: float
    """Seconds, of this process."""
    wall: float


Send = Callable[[int], Awaitable[str]]
"""Sends the request with this number. Gives the refusal, if it is one."""


async def run(job: Job, folder: Path) -> Outcome:
    """The job, in a process of its own."""
    given, found = folder / "job.json", folder / "outcome.json"
    given.write_bytes(msgspec.json.encode(job))
    with given.open("rb") as asked, found.open("wb") as answer:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.create_load", stdin=asked, stdout=answer, cwd=PROJECT
        )
        if await process.wait():
            raise RuntimeError("the load generator failed")
    return msgspec.json.decode(found.read_bytes(), type=Outcome)


async def carry_out(job: Job) -> Outcome:
    cpu, wall = time.process_time(), time.monotonic()
    async with _sender(job) as send:
        creates = await (_at_rate(job, send) if job.rate else _in_turns(job, send))
    return Outcome(creates, time.process_time() - cpu, time.monotonic() - wall)


async def _at_rate(job: Job, send: Send) -> list[Create]:
    start = time.monotonic() + LEAD
    due = [start + number / job.rate for number in range(len(job.requests))]
    async with asyncio.TaskGroup() as tasks:
        running = []
        for number, moment in enumerate(due):
            await asyncio.sleep(moment - time.monotonic())
            running.append(tasks.create_task(_create(job, send, number, moment)))
    return [task.result() for task in running]


async def _in_turns(job: Job, send: Send) -> list[Create]:
    creates: list[Create] = []

    async def one(number: int) -> None:
        creates.append(await _create(job, send, number, time.monotonic()))

    await at_a_time(job.at_a_time, range(len(job.requests)), one)
    return creates


async def _create(job: Job, send: Send, number: int, due: float) -> Create:
    refusal = await send(number)
    return Create(job.requests[number]["name"], due, time.monotonic(), refusal)


@asynccontextmanager
async def _sender(job: Job) -> AsyncIterator[Send]:
    match job.contender:
        case RuntimeAPI(urls, token):
            connector = aiohttp.TCPConnector(limit=0)
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
                yield _over_http(session, urls, job.requests)
        case Floor(access, stock):
            async with bare(access) as api, asyncio.TaskGroup() as afterwards:

                async def write(number: int) -> str:
                    await handed_over(api, job.requests[number], stock[number])
                    afterwards.create_task(cleared_up(api, stock[number]))
                    return ""

                yield write


def _over_http(session: aiohttp.ClientSession, urls: Sequence[str], requests: Sequence[dict[str, Any]]) -> Send:
    replicas = cycle(urls)

    async def post(number: int) -> str:
        body = msgspec.json.encode(requests[number])
        async with session.post(f"{next(replicas)}/api/v1/gpu-units", data=body) as answer:
            text = await answer.text()
            return "" if answer.status == 201 else f"{answer.status} {text}"

    return post


if __name__ == "__main__":
    gc.disable()  # its pauses would be taken for those of whoever is asked
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(carry_out(given))))
