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
from tests.integration.runtime_api.live import UNITS
from tests.integration.runtime_api.storages.holding import Mounted

AWAY = (ApiError, httpx2.HTTPError, OSError)
"""What one who asks the API server meets while that is away."""


@dataclass
class Origins:
    """Which unit comes from which stock."""

    living: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of every unit that is there, by its UID: its name, and the UID of the stock that it was made from."""
    shared: list[str] = field(default_factory=list)
    """What must never be: two units of one stock."""

    def take_note(self, event: str, unit: Object) -> None:
        about = unit["metadata"]
        self.living.pop(about["uid"], None)
        stock = (about.get("annotations") or {}).get(Annotation.SOURCE_STOCK_UID)
        if event == "DELETED" or not stock:
            return
        others = [name for name, origin in self.living.values() if origin == stock]
        self.shared += [f"{about['name']} and {other} were both made from stock {stock}" for other in others]
        self.living[about["uid"]] = about["name"], stock


@dataclass
class Watch:
    mounted: Mounted = field(default_factory=Mounted)
    origins: Origins = field(default_factory=Origins)
    pods: dict[str, Object] = field(default_factory=dict)
    """By UID."""
    listeners: list[Callable[[Iterable[Object]], None]] = field(default_factory=list)
    """Who hears of all pods after each change."""
    breaks: int = 0

    @property
    def violations(self) -> list[str]:
        return [*self.mounted.shared, *self.origins.shared]

    def note_pod(self, event: str, pod: Object) -> None:
        self.mounted.take_note_of_pod(event, pod)
        self.pods.pop(pod["metadata"]["uid"], None)
        if event != "DELETED":
            self.pods[pod["metadata"]["uid"]] = pod
        for listener in self.listeners:
            listener(self.pods.values())

    def all_pods(self, found: Sequence[Object]) -> None:
        there = {each["metadata"]["uid"] for each in found}
        for gone in [pod for uid, pod in self.pods.items() if uid not in there]:
            self.note_pod("DELETED", gone)

    def all_units(self, found: Sequence[Object]) -> None:
        there = {each["metadata"]["uid"] for each in found}
        self.origins.living = {uid: each for uid, each in self.origins.living.items() if uid in there}

    def all_storages(self, _found: Sequence[Object]) -> None:
        self.mounted.holders.clear()


@asynccontextmanager
async def watching(kube: AsyncClient) -> AsyncIterator[Watch]:
    made = Watch()
    tasks = [
        asyncio.create_task(_follow(made, kube, Pod, made.all_pods, made.note_pod)),
        asyncio.create_task(_follow(made, kube, UNIT, made.all_units, made.origins.take_note)),
        asyncio.create_task(_follow(made, kube, STORAGE, made.all_storages, made.mounted.take_note_of_storage)),
    ]
    try:
        yield made
        assert not any(each.done() for each in tasks), "nobody was watching"
    finally:
        for each in tasks:
            each.cancel()


async def _follow(
    made: Watch,
    kube: AsyncClient,
    kind: Any,
    all_of: Callable[[Sequence[Object]], None],
    note: Callable[[str, Object], None],
) -> None:
    while True:
        try:
            listed = kube.list(kind, namespace=UNITS)
            found = [as_dict(each) async for each in listed]
            all_of(found)
            for each in found:
                note("ADDED", each)
            async for event, each in kube.watch(kind, namespace=UNITS, resource_version=listed.resourceVersion):
                note(event, as_dict(each))
        except AWAY:
            await asyncio.sleep(0.2)
        made.breaks += 1
