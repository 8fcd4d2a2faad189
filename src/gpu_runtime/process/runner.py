"""The life of a process: read the settings, work until told to stop, end in an orderly way or within the grace."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import uvloop

from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.process import logs
from gpu_runtime.process.settings import InvalidSettings, load_settings
from gpu_runtime.process.shared_settings import ProcessSettings

logger = logging.getLogger(__name__)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_OK, EXIT_FAILED, EXIT_INVALID_SETTINGS = 0, 1, 2
"""Exit statuses."""

P = TypeVar("P", bound=ProcessSettings)


def run_process(config: Path, model: type[P], work: Callable[[P, asyncio.Event], Awaitable[None]]) -> int:
    """Run a process to its end and give its exit status. The work ends soon after its event is set."""
    try:
        settings = load_settings(config, model)
    except InvalidSettings as bad:
        sys.stderr.write(f"{bad}\n")
        return EXIT_INVALID_SETTINGS
    logs.configure_logging(settings.log)
    gc.freeze()  # what is imported stays: to look at it each time makes a full collection three times as long
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(
            run_until_signal(lambda stopping: work(settings, stopping), settings.graceful_shutdown_timeout_seconds)
        )


async def run_until_signal(work: Callable[[asyncio.Event], Awaitable[None]], shutdown_timeout: float) -> int:
    """SIGTERM or SIGINT asks the work to end; a second one, or the end of the grace, cuts it short."""
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    limit = asyncio.timeout(None)

    def stop(received: signal.Signals) -> None:
        logger.info("stopping", extra={"signal": received.name, "again": stopping.is_set()})
        limit.reschedule(loop.time() + (0 if stopping.is_set() else shutdown_timeout))
        stopping.set()

    try:
        async with limit:
            for each in STOP_SIGNALS:
                loop.add_signal_handler(each, stop, each)
            await work(stopping)
    except RuntimeFault as fault:
        logger.critical("%s", fault, extra={"code": fault.code})
        return EXIT_FAILED
    except Exception:
        if limit.expired():
            logger.error("cut short: work was still in progress")  # noqa: TRY400 - the traceback would show the wait
        else:
            logger.critical("failed", exc_info=True)
        return EXIT_FAILED
    finally:
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
    return EXIT_OK
