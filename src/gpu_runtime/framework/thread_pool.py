"""Threads for handlers that are not async: as many as ever ran at once, each used again.

Not `concurrent.futures`: its threads are waited for when the process ends, and a handler that hangs would keep it from
ending for ever.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class DaemonThreadPool(Generic[T]):
    """Belongs to the running event loop. The caller bounds how much runs at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[tuple[Callable[[], T], asyncio.Future[T]]] = SimpleQueue()
        self._started = 0
        self._busy = 0

    def submit(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """The work must not raise: it has no other end than its result."""
        self._busy += 1
        if self._busy > self._started:
            self._started += 1
            threading.Thread(target=self._run_thread, name=f"handler-{self._started}", daemon=True).start()
        future: asyncio.Future[T] = self._loop.create_future()
        self._tasks.put((work, future))
        return future

    def _run_thread(self) -> None:
        while True:
            work, future = self._tasks.get()
            result = work()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._finish, future, result)

    def _finish(self, future: asyncio.Future[T], result: T) -> None:
        self._busy -= 1
        if not future.done():
            future.set_result(result)
