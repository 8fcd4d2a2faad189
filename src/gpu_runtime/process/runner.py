"""Runs a process: loads its settings, runs its work until SIGTERM or SIGINT, then stops it gracefully."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.process import logs
from gpu_runtime.process.settings import InvalidSettings, load_settings
from gpu_runtime.process.shared_settings import ProcessSettings

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_OK, EXIT_FAILED, EXIT_INVALID_SETTINGS = 0, 1, 2
"""Exit codes of a process."""

P = TypeVar("P", bound=ProcessSettings)
T = TypeVar("T")


def run_process(config: Path, model: type[P], work: Callable[[P, asyncio.Event], Awaitable[None]]) -> int:
    """Run a process and return its exit code. The work must return soon after its event is set."""
    try:
        settings = load_settings(config, model)
    except InvalidSettings as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_INVALID_SETTINGS
    logs.configure_logging(settings.log)
    gc.freeze()  # imported modules never become garbage, and scanning them makes a full collection three times as long
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            run_until_signal(lambda stopping: work(settings, stopping), settings.graceful_shutdown_timeout_seconds)
        )


async def unless_stopped(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of the coroutine. Cancel it and return None if `stopping` is set first."""
    work_task, stop_task = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({work_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (work_task, stop_task):
            task.cancel()
        await asyncio.wait({work_task, stop_task})
    return None if work_task.cancelled() else work_task.result()


async def run_until_signal(work: Callable[[asyncio.Event], Awaitable[None]], shutdown_timeout: float) -> int:
    """Run the work until it returns, and return the exit code.

    SIGTERM or SIGINT sets the event of the work. A second signal, or the shutdown timeout, cancels the work.
    """
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    limit = asyncio.timeout(None)

    def stop(received: signal.Signals) -> None:
        fields = {"signal": received.name, "repeated": stopping.is_set()}
        logger.info("shutdown signal received; the process will exit", extra=fields)
        limit.reschedule(loop.time() + (0 if stopping.is_set() else shutdown_timeout))
        stopping.set()

    try:
        async with limit:
            for each in STOP_SIGNALS:
                loop.add_signal_handler(each, stop, each)
            await work(stopping)
    except Exception as error:
        if (fault := only_fault(error)) is not None:
            logger.critical("process failed and will exit", extra={"error": str(fault), "code": fault.code})
        elif limit.expired():
            # no traceback: it would only show the timeout
            logger.error("graceful shutdown was not completed; the process has cancelled unfinished work and will exit")  # noqa: TRY400
        else:
            logger.critical("process raised an unexpected exception and will exit", exc_info=True)
        return EXIT_FAILED
    finally:
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
    return EXIT_OK


def only_fault(error: BaseException) -> RuntimeFault | None:
    """Return the fault that ended the work. A task group wraps it, even if no other task has failed."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, RuntimeFault) else None
