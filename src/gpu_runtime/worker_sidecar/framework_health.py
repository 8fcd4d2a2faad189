"""Monitors whether the framework can serve invocations.

While the framework is unhealthy, the worker pulls no invocations, because each delivery would fail and count as one of
the allowed attempts. The monitor checks an idle framework at an interval. It does not check a busy framework, because
a busy framework may be too slow to answer. If a busy framework dies, the calls in progress fail and trigger a check.

A framework whose health changes often must not cause much work for other processes. The readiness of the pod follows
the health slowly, because each change of the readiness causes writes to several Kubernetes objects. After each change,
the worker also waits longer before it pulls again, because each new pull causes requests to NATS.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.backoff import Backoff
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient

logger = logging.getLogger(__name__)

MIN_UNHEALTHY_SECONDS = 10.0
"""How long the framework must be unhealthy until the pod is reported as not ready."""
REPORT_BACKOFF = Backoff(initial_seconds=10.0, max_seconds=300.0)
"""Minimum time between two changes of the reported readiness. It doubles with each change."""
FREE_READINESS_CHANGES = 2
"""Number of changes without a minimum time: the framework can fail once and recover."""
RESUME_BACKOFF = Backoff(initial_seconds=0.1, max_seconds=10.0)
"""Delay until the worker pulls again. It doubles each time that the framework becomes unhealthy."""
STABLE_HEALTH_SECONDS = 600.0
"""If the readiness has not changed for this time, earlier changes no longer count. For the delay until the worker pulls
again, this is the time that the framework was healthy."""


@dataclass
class ReportedReadiness:
    """The readiness of the framework as the pod reports it. Nothing here awaits or reads a clock."""

    problem: str | None
    changed_at: float = 0.0
    changes: int = 0
    min_seconds: float = 0.0
    """Minimum time until the next change."""

    def update(self, problem: str | None, since: float, now: float) -> str | None:
        """Return the problem to report. The framework has `problem`, or is healthy, since the time `since`."""
        if (problem is None) == (self.problem is None):
            self.problem = problem
            if now - self.changed_at >= STABLE_HEALTH_SECONDS:
                self.changes, self.min_seconds = 0, 0.0
            return self.problem
        is_lasting = problem is None or now - since >= MIN_UNHEALTHY_SECONDS
        if is_lasting and now - self.changed_at >= self.min_seconds:
            self.problem, self.changed_at, self.changes = problem, now, self.changes + 1
            excess = self.changes - FREE_READINESS_CHANGES
            self.min_seconds = REPORT_BACKOFF.delay(excess) if excess > 0 else 0.0
        return self.problem


INITIAL_PROBLEM = "the framework has not passed a health check yet"


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
    clock: Callable[[], float] = time.monotonic

    _problem: str | None = INITIAL_PROBLEM
    _changed_at: float = 0.0
    _failures: int = 0
    _readiness: ReportedReadiness = field(default_factory=lambda: ReportedReadiness(INITIAL_PROBLEM))
    _unhealthy: asyncio.Event = field(default_factory=asyncio.Event)

    def reported_problem(self) -> str | None:
        """Return the problem for the readiness check."""
        return self._readiness.update(self._problem, self._changed_at, self.clock())

    async def run(self) -> None:
        while True:
            await self.framework.wait_until_healthy()
            self._set_problem(None)
            self._unhealthy.clear()
            self.on_healthy()
            while not self._unhealthy.is_set():
                await is_set_within(self._unhealthy, self.interval_seconds)
                if not self.is_busy():
                    await self.check()
            await asyncio.sleep(RESUME_BACKOFF.delay(self._failures))

    async def check(self) -> None:
        """Check the framework now, for example because a call failed."""
        problem = await self.framework.check_health()
        if problem is not None and not self._unhealthy.is_set():
            logger.warning(
                "framework became unhealthy; the sidecar pulls no invocations until the framework is healthy",
                extra={"reason": problem},
            )
            self._failures = 1 if self.clock() - self._changed_at >= STABLE_HEALTH_SECONDS else self._failures + 1
            self._set_problem(problem)
            self._unhealthy.set()
            self.on_unhealthy()

    def _set_problem(self, problem: str | None) -> None:
        self._problem, self._changed_at = problem, self.clock()
