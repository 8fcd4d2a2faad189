"""Controllers as a process runs them: caches always warm, work only while leading, an orderly end.

One TaskGroup owns every task. When the lead is lost, all work is cancelled, and only when its last task has ended is
this process a candidate again: an API server that was away costs no restart, and the caches stay warm.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpu_runtime.kube.election import LeaderElector
from gpu_runtime.kube.errors import KubeNotLeader
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.informer import Informer

logger = logging.getLogger(__name__)


class Runnable(Protocol):
    """What is done while leading; a Controller is such work."""

    async def run(self) -> None: ...
    def stop(self) -> None:
        """Begin nothing more. `run` returns when what is in progress is done."""


@dataclass(frozen=True)
class Manager:
    """All that runs together in one process."""

    informers: Sequence[Informer[Any]]
    runnables: Sequence[Runnable]
    leader_elector: LeaderElector | None = None
    """Without one, this process works at once and alone."""
    event_recorder: EventRecorder | None = None
    graceful_shutdown_timeout: float = 20.0
    """Seconds that work in progress has to finish after the end was asked for."""

    @property
    def has_synced(self) -> bool:
        """Whether every cache has been complete once: a standby is ready then, too."""
        return all(informer.has_synced for informer in self.informers)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until the event is set, then let work finish, give the lead back and write the last Events."""
        async with asyncio.TaskGroup() as tasks:
            background = self._start_background_tasks(tasks)
            if self.leader_elector is None:
                await self._run_runnables(stopping)
            else:
                await self._run_with_leader_election(self.leader_elector, stopping)
            for task in background:
                task.cancel()
        if self.event_recorder is not None:
            await self.event_recorder.flush_all(timeout=2.0)

    def _start_background_tasks(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[Any]]:
        """What runs with or without the lead."""
        background: list[asyncio.Task[Any]] = [tasks.create_task(informer.run()) for informer in self.informers]
        if self.event_recorder is not None:
            background.append(tasks.create_task(self.event_recorder.run()))
        return background

    async def _run_with_leader_election(self, elector: LeaderElector, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                async with asyncio.TaskGroup() as tasks:
                    leading = tasks.create_task(elector.run(lambda: self._run_runnables(stopping)))
                    waiting = tasks.create_task(stopping.wait())
                    await asyncio.wait({leading, waiting}, return_when=asyncio.FIRST_COMPLETED)
                    waiting.cancel()
                    if not elector.leadership.is_leader():
                        leading.cancel()  # still a candidate; a leader ends with its work
            except* KubeNotLeader as lost:
                logger.warning("the lead is lost, all work has stopped", extra={"error": str(lost.exceptions[0])})

    async def _run_runnables(self, stopping: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for controller in self.runnables:
                    tasks.create_task(controller.run())
                await stopping.wait()
                for controller in self.runnables:
                    controller.stop()
                limit.reschedule(asyncio.get_running_loop().time() + self.graceful_shutdown_timeout)
