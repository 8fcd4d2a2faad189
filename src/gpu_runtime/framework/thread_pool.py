"""A pool of daemon threads for synchronous handlers. It grows to the highest number of concurrent calls.

The framework does not use `concurrent.futures`: Python waits for the threads of that module when the process exits, so
a handler that hangs would prevent the exit forever.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class DaemonThreadPool(Generic[T]):
    """Runs functions in threads for the event loop that creates the pool. The caller limits the concurrency."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[tuple[Callable[[], T], asyncio.Future[T]]] = SimpleQueue()
        self._started = 0
        self._busy = 0

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run the function in a thread. The function must not raise: the pool reports only results."""
        self._busy += 1
        if self._busy > self._started:
            self._started += 1
            threading.Thread(target=self._run_thread, name=f"handler-{self._started}", daemon=True).start()
        future: asyncio.Future[T] = self._loop.create_future()
        self._tasks.put((function, future))
        return future

    def _run_thread(self) -> None:
        while True:
            function, future = self._tasks.get()
            result = function()
            with contextlib.suppress(RuntimeError):  # the event loop is closed, so no coroutine waits for the result
                self._loop.call_soon_threadsafe(self._finish, future, result)

    def _finish(self, future: asyncio.Future[T], result: T) -> None:
        self._busy -= 1
        if not future.done():
            future.set_result(result)
