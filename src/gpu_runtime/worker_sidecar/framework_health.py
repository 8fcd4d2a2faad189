"""Whether the framework can take invocations. While it cannot, none is taken from the queue: its tries would be wasted.

An idle framework is asked now and then. One that works is not: it may be too busy to answer, and if it dies, its calls
break off and tell.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.worker_sidecar.framework_client import FrameworkClient

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class FrameworkHealthMonitor:
    framework: FrameworkClient
    interval_seconds: float
    """How often an idle framework is asked."""
    is_busy: Callable[[], bool]
    on_healthy: Callable[[], None]
    """Called when the framework answers, for the first time or again."""
    on_unhealthy: Callable[[], None]
    """Called when it does so no longer."""

    problem: str | None = "the framework has not answered yet"
    _unhealthy: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            await self.framework.wait_until_healthy()
            self.problem = None
            self._unhealthy.clear()
            self.on_healthy()
            while not self._unhealthy.is_set():
                await self._wait_interval()
                if not self.is_busy():
                    await self.check()

    async def check(self) -> None:
        """Ask now. A call that broke off is a reason to."""
        problem = await self.framework.check_health()
        if problem is not None and not self._unhealthy.is_set():
            logger.warning("the framework does not answer any more", extra={"problem": problem})
            self.problem = problem
            self._unhealthy.set()
            self.on_unhealthy()

    async def _wait_interval(self) -> None:
        try:
            async with asyncio.timeout(self.interval_seconds):
                await self._unhealthy.wait()
        except TimeoutError:
            return
