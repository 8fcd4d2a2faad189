"""Calls the handler: limits the concurrency and enforces the deadline of each invocation.

The executor cancels an async handler when its deadline passes or when its caller disconnects. Python cannot stop a
thread. So when the deadline of a synchronous handler passes, the caller gets its response in time, but the slot becomes
free only when the handler returns.
"""

import asyncio
import inspect
import math
from typing import Any

from gpu_runtime.framework.errors import Reject, Retry
from gpu_runtime.framework.registry import HandlerFunction
from gpu_runtime.framework.request import Request
from gpu_runtime.framework.responses import (
    EncodedResponse,
    error_response,
    exception_text,
    response_from_exception,
    response_from_value,
    truncate,
)
from gpu_runtime.framework.stderr_log import log_line, log_traceback
from gpu_runtime.framework.thread_pool import DaemonThreadPool


class HandlerExecutor:
    """Runs at most `concurrency` handler calls at a time. Create it in the event loop that uses it."""

    def __init__(self, handler: HandlerFunction, concurrency: int) -> None:
        self._handler = handler
        self._is_async = _is_async(handler)
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._thread_pool: DaemonThreadPool[EncodedResponse] = DaemonThreadPool()
        self._running: set[asyncio.Future[EncodedResponse]] = set()
        self._overdue: set[asyncio.Future[EncodedResponse]] = set()

    @property
    def stuck(self) -> bool:
        """Whether every slot is occupied by a handler whose deadline passed or whose caller disconnected."""
        return len(self._overdue) >= self._concurrency

    async def execute(self, request: Request, disconnected: asyncio.Future[None]) -> EncodedResponse:
        """Call the handler. Return an error response if no slot becomes free or the deadline passes."""
        if not await self._acquire_slot(request):
            return error_response(503, "Busy", "every slot of this worker is occupied; the handler was not called")
        if request.remaining() <= 0 or disconnected.done():
            self._slots.release()
            return error_response(504, "DeadlineExceeded", "the deadline passed before the handler was called")
        call = self._start(request)
        either: set[asyncio.Future[Any]] = {call, disconnected}
        await asyncio.wait(either, timeout=_timeout(request.remaining()), return_when=asyncio.FIRST_COMPLETED)
        if call.done():
            return _handler_response(call)
        self._mark_overdue(call, request)
        return error_response(504, "DeadlineExceeded", "the handler did not return before the deadline")

    async def _acquire_slot(self, request: Request) -> bool:
        if self.stuck:
            return False
        try:
            async with asyncio.timeout(_timeout(request.remaining())):
                await self._slots.acquire()
        except TimeoutError:
            return False
        return True

    def _start(self, request: Request) -> asyncio.Future[EncodedResponse]:
        call: asyncio.Future[EncodedResponse] = (
            asyncio.ensure_future(_run_async(self._handler, request))
            if self._is_async
            else self._thread_pool.submit(lambda: _run_sync(self._handler, request))
        )
        self._running.add(call)
        call.add_done_callback(self._on_done)
        return call

    def _on_done(self, call: asyncio.Future[EncodedResponse]) -> None:
        self._running.discard(call)
        self._overdue.discard(call)
        self._slots.release()

    def _mark_overdue(self, call: asyncio.Future[EncodedResponse], request: Request) -> None:
        self._overdue.add(call)
        reason = "the deadline passed" if request.remaining() <= 0 else "the caller disconnected"
        if self._is_async:
            log_line(f"{_subject(request)}: handler cancelled because {reason}")
            call.cancel()
        else:
            log_line(
                f"{_subject(request)}: handler still running although {reason}:"
                " its thread occupies a slot until the handler returns"
            )


def _is_async(handler: HandlerFunction) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _timeout(remaining: float) -> float | None:
    return None if remaining == math.inf else max(0.0, remaining)


async def _run_async(handler: HandlerFunction, request: Request) -> EncodedResponse:
    try:
        return response_from_value(await handler(request))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an exception in user code must not end the process
        return _log_handler_exception(error, request)


def _run_sync(handler: HandlerFunction, request: Request) -> EncodedResponse:
    try:
        return response_from_value(_reject_coroutine(handler(request)))
    except BaseException as error:  # noqa: BLE001 - an exception in user code must not end the thread
        return _log_handler_exception(error, request)


def _reject_coroutine(value: Any) -> Any:
    if inspect.iscoroutine(value):
        value.close()
        raise TypeError("the handler returned a coroutine; define the handler with 'async def'")
    return value


def _log_handler_exception(error: BaseException, request: Request) -> EncodedResponse:
    if isinstance(error, (Reject, Retry)):
        log_line(f"{_subject(request)}: handler raised {type(error).__name__}: {truncate(exception_text(error))}")
    else:
        log_traceback(f"{_subject(request)}: handler raised an exception", error)
    return response_from_exception(error)


def _subject(request: Request) -> str:
    """The subject of a log line about an invocation."""
    return f"invocation {request.invocation_id!r} attempt {request.attempt}"


def _handler_response(call: asyncio.Future[EncodedResponse]) -> EncodedResponse:
    if call.cancelled():
        return error_response(500, "CancelledError", "the handler cancelled itself")
    return call.result()
