"""Runs the informers, controllers, leader election and event recorder of a process, and stops them gracefully.

Informers run all the time. Controllers run only while the process is the leader. One TaskGroup owns every task. When
the process loses the leadership, the manager cancels all controllers. After all controllers have ended, the process
becomes a candidate again. An outage of the API server therefore causes no restart, and the caches stay warm.
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
    """Work that only the leader does. A Controller is a Runnable."""

    async def run(self) -> None: ...
    def stop(self) -> None:
        """Start no new work. `run` returns when the work in progress has finished."""


@dataclass(frozen=True)
class Manager:
    """The components that run together in one process."""

    informers: Sequence[Informer[Any]]
    runnables: Sequence[Runnable]
    leader_elector: LeaderElector | None = None
    """None: the runnables start immediately. Use None only if there is a single process."""
    event_recorder: EventRecorder | None = None
    graceful_shutdown_timeout: float = 20.0
    """Seconds for which work in progress can continue after the stop event is set. Then the manager cancels the
    work."""

    @property
    def has_synced(self) -> bool:
        """Whether every cache has synced at least once. A standby process with synced caches is ready, too."""
        return all(informer.has_synced for informer in self.informers)

    async def run(self, stopping: asyncio.Event) -> None:
        """Run until the event is set. Then let work in progress finish, release the Lease and write pending Events."""
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
        """Start the tasks that run on the leader and on a standby."""
        background: list[asyncio.Task[Any]] = [tasks.create_task(informer.run()) for informer in self.informers]
        if self.event_recorder is not None:
            background.append(tasks.create_task(self.event_recorder.run()))
        return background

    async def _run_with_leader_election(self, elector: LeaderElector, stopping: asyncio.Event) -> None:
        while not stopping.is_set():
            try:
                async with asyncio.TaskGroup() as tasks:
                    election = tasks.create_task(elector.run(lambda: self._run_runnables(stopping)))
                    stop = tasks.create_task(stopping.wait())
                    await asyncio.wait({election, stop}, return_when=asyncio.FIRST_COMPLETED)
                    stop.cancel()
                    if not elector.leadership.is_leader():
                        election.cancel()  # a candidate stops now; a leader stops when its runnables have returned
            except* KubeNotLeader as lost:
                fields = {**elector.log_fields, "error": str(lost.exceptions[0])}
                logger.warning(
                    "leadership lost; the process has cancelled its leader tasks and is a candidate again",
                    extra=fields,
                )

    async def _run_runnables(self, stopping: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for runnable in self.runnables:
                    tasks.create_task(runnable.run())
                await stopping.wait()
                for runnable in self.runnables:
                    runnable.stop()

                limit.reschedule(asyncio.get_running_loop().time() + self.graceful_shutdown_timeout)
