"""An event loop beside the test: hypothesis calls functions that wait, and what they wait for is asynchronous."""

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

    def call(self, doing: Coroutine[Any, Any, T], within: float = 60) -> T:
        """What it gives. TimeoutError where it hangs."""

        async def limited() -> T:
            async with asyncio.timeout(within):
                return await doing

        return asyncio.run_coroutine_threadsafe(limited(), self._loop).result()

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """For the length of the block, entered and left by one task, as contexts with tasks of their own need it."""
        entered: asyncio.Future[T] = self.call(_future())
        over: asyncio.Event = self.call(_event())

        async def live() -> None:
            try:
                async with context as given:
                    entered.set_result(given)
                    await over.wait()
            except BaseException as error:
                if not entered.done():
                    entered.set_exception(error)
                raise

        living = asyncio.run_coroutine_threadsafe(live(), self._loop)
        try:
            yield self.call(_awaited(entered))
        finally:
            self._loop.call_soon_threadsafe(over.set)
            living.result(60)


async def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


async def _event() -> asyncio.Event:
    return asyncio.Event()


async def _awaited(future: "asyncio.Future[T]") -> T:
    return await future
