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
class FrameworkWatch:
    framework: FrameworkClient
    seconds: float
    """How often an idle framework is asked."""
    is_busy: Callable[[], bool]
    well: Callable[[], None]
    """Called when the framework answers, for the first time or again."""
    ill: Callable[[], None]
    """Called when it does so no longer."""

    problem: str | None = "the framework has not answered yet"
    _failed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            await self.framework.wait_until_healthy()
            self.problem = None
            self._failed.clear()
            self.well()
            while not self._failed.is_set():
                await self._pause()
                if not self.is_busy():
                    await self.look()

    async def look(self) -> None:
        """Ask now. A call that broke off is a reason to."""
        problem = await self.framework.health()
        if problem is not None and not self._failed.is_set():
            logger.warning("the framework does not answer any more", extra={"problem": problem})
            self.problem = problem
            self._failed.set()
            self.ill()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self.seconds):
                await self._failed.wait()
        except TimeoutError:
            return
