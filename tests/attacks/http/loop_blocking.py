"""Measures for how long a test blocks the event loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class LoopBlocking:
    longest_seconds: float = 0.0
    """The longest CPU time of the thread between two turns of a task that always wants to run."""


@asynccontextmanager
async def measured_loop() -> AsyncIterator[LoopBlocking]:
    found = LoopBlocking()

    async def measure() -> None:
        while True:
            started = time.thread_time()
            await asyncio.sleep(0)
            found.longest_seconds = max(found.longest_seconds, time.thread_time() - started)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(measure())
        await asyncio.sleep(0.05)
        found.longest_seconds = 0.0
        yield found
        task.cancel()
