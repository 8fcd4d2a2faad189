"""Sends the requests of the measured caller at a fixed rate, and records the latency of each request.

    python -m bench.paced_load < job.json > result.json

The latency is measured from the scheduled time, so that a slow server does not hide the waiting time of later requests.
"""

import asyncio
import gc
import sys
import time
from dataclasses import dataclass
from itertools import count, cycle

import aiohttp
import msgspec
import uvloop

from bench.load_windows import RequestTemplate, Window, sleep_until


class PacedJob(msgspec.Struct):
    token: str
    requests: list[RequestTemplate]
    """The requests, in round-robin order."""
    rate: float
    """Requests per second."""
    windows: list[Window]
    settle_seconds: float = 0.5
    """The part of each window in which the caller sends no requests yet, while the flood starts."""
    alternate_connections: bool = False
    """Whether every second request uses a new connection."""


class PacedSample(msgspec.Struct, array_like=True):
    window: int
    name: str
    latency_seconds: float
    status: int
    """0 if there was no response."""
    error: str = ""
    """The body of a response with an error status, or the error of the connection."""


class PacedResult(msgspec.Struct):
    samples: list[PacedSample]
    cpu_seconds: list[float]
    """The CPU time of the load generator in each window."""


@dataclass(frozen=True)
class PacedRequest:
    window: int
    url: str
    template: RequestTemplate
    number: int
    due_at: float


async def run_job(job: PacedJob) -> PacedResult:
    headers = {"Authorization": f"Bearer {job.token}", "Content-Type": "application/json"}
    result, numbers, templates = PacedResult([], []), count(), cycle(job.requests)
    fresh_connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with (
        aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as kept,
        aiohttp.ClientSession(headers=headers, connector=fresh_connector) as fresh,
    ):
        sessions = cycle((kept, fresh) if job.alternate_connections else (kept,))
        for index, window in enumerate(job.windows):
            due_at, cpu = window.starts_at + job.settle_seconds, time.process_time()
            async with asyncio.TaskGroup() as tasks:
                while due_at < window.ends_at:
                    await sleep_until(due_at)
                    request = PacedRequest(index, window.url, next(templates), next(numbers), due_at)
                    tasks.create_task(_send(next(sessions), request, result.samples))
                    due_at += 1 / job.rate
            result.cpu_seconds.append(time.process_time() - cpu)
            gc.collect()
    return result


async def _send(session: aiohttp.ClientSession, request: PacedRequest, samples: list[PacedSample]) -> None:
    template = request.template
    body = template.body_of(request.number) or None
    try:
        async with session.request(
            template.method, request.url + template.path_of(request.number), data=body
        ) as response:
            text, status = await response.text(), response.status
            error = text if status >= 400 else ""
    except (aiohttp.ClientError, TimeoutError) as failure:
        status, error = 0, repr(failure)
    samples.append(PacedSample(request.window, template.name, time.monotonic() - request.due_at, status, error))


if __name__ == "__main__":
    gc.disable()  # the pauses of the garbage collector would be measured as latency of the target
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=PacedJob)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(run_job(job))))
