"""Calls of the handler: so many at a time, each until its deadline.

An async handler is cancelled at its deadline or when its caller hangs up. A thread cannot be stopped: its caller is
answered in time, but its slot is free only when the handler returns.
"""

import asyncio
import inspect
import math
from typing import Any

from gpu_runtime.framework.errors import Reject, Retry
from gpu_runtime.framework.registry import Handler
from gpu_runtime.framework.request import Request
from gpu_runtime.framework.responses import Answer, answer_of, answer_to_exception, problem, shortened, text_of
from gpu_runtime.framework.stderr_log import say, say_traceback
from gpu_runtime.framework.thread_pool import Threads


class Calls:
    """Belongs to the running event loop."""

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._threads: Threads[Answer] = Threads()
        self._running: set[asyncio.Future[Answer]] = set()
        self._overdue: set[asyncio.Future[Answer]] = set()

    @property
    def stuck(self) -> bool:
        """Every slot is held by a handler that nobody waits for any more."""
        return len(self._overdue) >= self._concurrency

    async def answer(self, request: Request, hung_up: asyncio.Future[None]) -> Answer:
        if not await self._slot(request):
            return problem(503, "Busy", "every slot of this worker is taken; the handler was not called")
        if request.remaining() <= 0 or hung_up.done():
            self._slots.release()
            return problem(504, "DeadlineExceeded", "the deadline passed before the handler was called")
        running = self._start(request)
        either: set[asyncio.Future[Any]] = {running, hung_up}
        await asyncio.wait(either, timeout=_timeout(request.remaining()), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return _result(running)
        self._give_up(running, request)
        return problem(504, "DeadlineExceeded", "the handler did not return before the deadline")

    async def _slot(self, request: Request) -> bool:
        if self.stuck:
            return False
        try:
            async with asyncio.timeout(_timeout(request.remaining())):
                await self._slots.acquire()
        except TimeoutError:
            return False
        return True

    def _start(self, request: Request) -> asyncio.Future[Answer]:
        running: asyncio.Future[Answer] = (
            asyncio.ensure_future(_awaited(self._handler, request))
            if self._is_async
            else self._threads.run(lambda: _called(self._handler, request))
        )
        self._running.add(running)
        running.add_done_callback(self._ended)
        return running

    def _ended(self, running: asyncio.Future[Answer]) -> None:
        self._running.discard(running)
        self._overdue.discard(running)
        self._slots.release()

    def _give_up(self, running: asyncio.Future[Answer], request: Request) -> None:
        self._overdue.add(running)
        why = "its deadline passed" if request.remaining() <= 0 else "its caller hung up"
        if self._is_async:
            say(f"invocation {request.invocation_id!r}: {why}; the handler is cancelled")
            running.cancel()
        else:
            say(f"invocation {request.invocation_id!r}: {why}; its thread holds a slot until the handler returns")


def _is_async(handler: Handler) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _timeout(remaining: float) -> float | None:
    return None if remaining == math.inf else max(0.0, remaining)


async def _awaited(handler: Handler, request: Request) -> Answer:
    try:
        return answer_of(await handler(request))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's code does, the process stays
        return _failed(error, request)


def _called(handler: Handler, request: Request) -> Answer:
    try:
        return answer_of(_no_coroutine(handler(request)))
    except BaseException as error:  # noqa: BLE001 - whatever a user's code does, its thread stays
        return _failed(error, request)


def _no_coroutine(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("the handler returned a coroutine; write it as 'async def'")
    return value


def _failed(error: BaseException, request: Request) -> Answer:
    what = f"invocation {request.invocation_id!r}, attempt {request.attempt}"
    if isinstance(error, (Reject, Retry)):
        say(f"{what}: {type(error).__name__}: {shortened(text_of(error))}")
    else:
        say_traceback(f"{what}: the handler failed", error)
    return answer_to_exception(error)


def _result(running: asyncio.Future[Answer]) -> Answer:
    if running.cancelled():
        return problem(500, "CancelledError", "the handler cancelled itself")
    return running.result()
