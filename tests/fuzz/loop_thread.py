"""An event loop in a thread: hypothesis calls synchronous test functions, which must wait for asynchronous code."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Self, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_seconds: float = 60) -> T:
        """Run a coroutine in the loop and return its result. Raises TimeoutError."""

        async def limited() -> T:
            async with asyncio.timeout(timeout_seconds):
                return await coroutine

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context during the block.

        One task enters and exits it, because contexts with a task group require this.
        """
        entered: asyncio.Future[T] = self.call(_future())
        exit_requested: asyncio.Event = self.call(_event())

        async def hold_context() -> None:
            try:
                async with context as value:
                    entered.set_result(value)
                    await exit_requested.wait()
            except BaseException as error:
                if not entered.done():
                    entered.set_exception(error)
                raise

        task = asyncio.run_coroutine_threadsafe(hold_context(), self._loop)
        try:
            yield self.call(_awaited(entered))
        finally:
            self._loop.call_soon_threadsafe(exit_requested.set)
            task.result(60)


async def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


async def _event() -> asyncio.Event:
    return asyncio.Event()


async def _awaited(future: "asyncio.Future[T]") -> T:
    return await future
