"""Monitors whether the framework can serve invocations.

While the framework is unhealthy, the worker pulls no invocations, because each delivery would fail and count as one of
the allowed attempts. The monitor checks an idle framework at an interval. It does not check a busy framework, because
a busy framework may be too slow to answer. If a busy framework dies, the calls in progress fail and trigger a check.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.event_wait import is_set_within
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class FrameworkHealthMonitor:
    """Checks the framework and calls back when its health changes."""

    framework: FrameworkClient
    interval_seconds: float
    """Interval between checks of an idle framework."""
    is_busy: Callable[[], bool]
    on_healthy: Callable[[], None]
    """Called when the framework becomes healthy, for the first time or again."""
    on_unhealthy: Callable[[], None]
    """Called when a healthy framework becomes unhealthy."""

    problem: str | None = "the framework has not passed a health check yet"
    _unhealthy: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            await self.framework.wait_until_healthy()
            self.problem = None
            self._unhealthy.clear()
            self.on_healthy()
            while not self._unhealthy.is_set():
                await is_set_within(self._unhealthy, self.interval_seconds)
                if not self.is_busy():
                    await self.check()

    async def check(self) -> None:
        """Check the framework now, for example because a call failed."""
        problem = await self.framework.check_health()
        if problem is not None and not self._unhealthy.is_set():
            logger.warning(
                "framework became unhealthy; the sidecar pulls no invocations until the framework is healthy",
                extra={"reason": problem},
            )
            self.problem = problem
            self._unhealthy.set()
            self.on_unhealthy()
