"""Records all changes of pods with a watch that is independent of the code of the product."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Self

from lightkube import AsyncClient
from lightkube.resources.core_v1 import Pod

from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.live_platform import ApiCaller, until


@dataclass(frozen=True, order=True)
class LoggedTime:
    event: int
    """The number of the watch event. It gives the order of changes that have the same time."""
    time: datetime


@dataclass
class LoggedPod:
    pod: Object
    """The pod as in its last watch event."""
    created: LoggedTime
    bound: LoggedTime | None = None
    """When the pod got a node."""
    ended: LoggedTime | None = None
    """When the pod was deleted or marked for deletion, or had failed."""
    deleted: bool = False

    @property
    def labels(self) -> Object:
        return dict(self.pod["metadata"].get("labels", {}))


@dataclass
class PodLog:
    """All pods of the cluster since the start of the watch, by UID."""

    kube: AsyncClient
    pods: dict[str, LoggedPod] = field(default_factory=dict)
    _event_numbers: Iterable[int] = field(default_factory=count)

    @classmethod
    @asynccontextmanager
    async def watching(cls, client: ApiCaller) -> AsyncIterator[Self]:
        """Watch pods until the context ends. The context fails if the watch has failed."""
        log = cls(client.kube)
        task = asyncio.create_task(log._watch())
        try:
            await log.catch_up()
            yield log
            await log.catch_up()
            assert not task.done(), "the watch of pods has ended"
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def catch_up(self) -> None:
        """Wait until the log contains every creation and deletion that the API server knows."""

        async def is_current() -> bool:
            listed = {str(each.metadata.uid) async for each in self.kube.list(Pod, namespace="*") if each.metadata}
            return listed == {uid for uid, each in self.pods.items() if not each.deleted}

        await until(is_current, "the watch has received all events of pods")

    def ended(self) -> dict[str, LoggedPod]:
        """Return the pods that had a node and have ended. A pod without a node uses no GPU."""
        return {uid: each for uid, each in self.pods.items() if each.ended and each.bound}

    async def _watch(self) -> None:
        numbers = iter(self._event_numbers)
        async for event, found in self.kube.watch(Pod, namespace="*"):
            self._record(str(event), dict(found.to_dict()), LoggedTime(next(numbers), datetime.now(UTC)))

    def _record(self, event: str, pod: Object, now: LoggedTime) -> None:
        logged = self.pods.setdefault(pod["metadata"]["uid"], LoggedPod(pod, created=now))
        logged.pod, logged.deleted = pod, event == "DELETED"
        has_failed = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
        if pod["spec"].get("nodeName"):
            logged.bound = logged.bound or now
        if logged.deleted or has_failed or "deletionTimestamp" in pod["metadata"]:
            logged.ended = logged.ended or now
