"""What is in the cluster, event by event, and what must never be there at the same time.

The API server is killed and paused like everything else: when a watch breaks, all is listed anew, and what was not seen
in between is not judged.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.resources.core_v1 import Pod

from gpu_runtime.contract.crd.well_known import Annotation
from tests.integration.controller_manager.conftest import STORAGE, UNIT, Object, as_dict
from tests.integration.runtime_api.live_platform import UNIT_NAMESPACE
from tests.integration.runtime_api.storages.storage_observer import MountObserver

API_SERVER_ERRORS = (ApiError, httpx2.HTTPError, OSError)
"""What one who asks the API server meets while that is away."""


@dataclass
class StockOrigins:
    """Which unit comes from which stock."""

    units: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of every unit that is there, by its UID: its name, and the UID of the stock that it was made from."""
    violations: list[str] = field(default_factory=list)
    """What must never be: two units of one stock."""

    def observe(self, event: str, unit: Object) -> None:
        about = unit["metadata"]
        self.units.pop(about["uid"], None)
        stock = (about.get("annotations") or {}).get(Annotation.SOURCE_STOCK_UID)
        if event == "DELETED" or not stock:
            return
        others = [name for name, origin in self.units.values() if origin == stock]
        self.violations += [f"{about['name']} and {other} were both made from stock {stock}" for other in others]
        self.units[about["uid"]] = about["name"], stock


@dataclass
class ClusterWatch:
    mounts: MountObserver = field(default_factory=MountObserver)
    origins: StockOrigins = field(default_factory=StockOrigins)
    pods: dict[str, Object] = field(default_factory=dict)
    """By UID."""
    listeners: list[Callable[[Iterable[Object]], None]] = field(default_factory=list)
    """Who hears of all pods after each change."""
    watch_restarts: int = 0

    @property
    def violations(self) -> list[str]:
        return [*self.mounts.violations, *self.origins.violations]

    def observe_pod(self, event: str, pod: Object) -> None:
        self.mounts.observe_pod(event, pod)
        self.pods.pop(pod["metadata"]["uid"], None)
        if event != "DELETED":
            self.pods[pod["metadata"]["uid"]] = pod
        for listener in self.listeners:
            listener(self.pods.values())

    def resync_pods(self, found: Sequence[Object]) -> None:
        there = {each["metadata"]["uid"] for each in found}
        for gone in [pod for uid, pod in self.pods.items() if uid not in there]:
            self.observe_pod("DELETED", gone)

    def resync_units(self, found: Sequence[Object]) -> None:
        there = {each["metadata"]["uid"] for each in found}
        self.origins.units = {uid: each for uid, each in self.origins.units.items() if uid in there}

    def resync_storages(self, _found: Sequence[Object]) -> None:
        self.mounts.attached_units.clear()


@asynccontextmanager
async def watch_cluster(kube: AsyncClient) -> AsyncIterator[ClusterWatch]:
    made = ClusterWatch()
    tasks = [
        asyncio.create_task(_watch_kind(made, kube, Pod, made.resync_pods, made.observe_pod)),
        asyncio.create_task(_watch_kind(made, kube, UNIT, made.resync_units, made.origins.observe)),
        asyncio.create_task(_watch_kind(made, kube, STORAGE, made.resync_storages, made.mounts.observe_storage)),
    ]
    try:
        yield made
        assert not any(each.done() for each in tasks), "nobody was watching"
    finally:
        for each in tasks:
            each.cancel()


async def _watch_kind(
    made: ClusterWatch,
    kube: AsyncClient,
    kind: Any,
    all_of: Callable[[Sequence[Object]], None],
    note: Callable[[str, Object], None],
) -> None:
    while True:
        try:
            listed = kube.list(kind, namespace=UNIT_NAMESPACE)
            found = [as_dict(each) async for each in listed]
            all_of(found)
            for each in found:
                note("ADDED", each)
            async for event, each in kube.watch(
                kind, namespace=UNIT_NAMESPACE, resource_version=listed.resourceVersion
            ):
                note(event, as_dict(each))
        except API_SERVER_ERRORS:
            await asyncio.sleep(0.2)
        made.watch_restarts += 1
