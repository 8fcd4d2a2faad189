"""Watches the cluster and checks, event by event, what must never exist at the same time.

Faults also kill and pause the API server. When a watch is interrupted, all objects are listed again. States that
existed only during the interruption are not checked.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from lightkube import ApiError, AsyncClient
from lightkube.resources.core_v1 import Pod

from gpu_runtime.contract.crd.well_known import Annotation, Label
from tests.integration.controller_manager.conftest import STORAGE, UNIT, Object, as_dict
from tests.integration.runtime_api.live_platform import UNIT_NAMESPACE
from tests.integration.runtime_api.storages.storage_observer import MountObserver

API_SERVER_ERRORS = (ApiError, httpx2.HTTPError, OSError)
"""The errors of requests while the API server is not available."""


@dataclass
class StockOrigins:
    """Records from which stock unit or prepared pod each unit was created."""

    units: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The existing units by UID: the name of the unit, and the UID of its stock."""
    violations: list[str] = field(default_factory=list)
    """Pairs of units that were created from the same stock."""

    def observe(self, event: str, unit: Object) -> None:
        metadata = unit["metadata"]
        self.units.pop(metadata["uid"], None)
        stock = (metadata.get("annotations") or {}).get(Annotation.SOURCE_STOCK_UID)
        if event == "DELETED" or not stock:
            return
        others = [name for name, origin in self.units.values() if origin == stock]
        self.violations += [f"{metadata['name']} and {other} were created from stock {stock}" for other in others]
        self.units[metadata["uid"]] = metadata["name"], stock


@dataclass
class PodUsers:
    """Records which operation has claimed each pod, and which unit each pod belongs to. Both never change."""

    claims: dict[str, str] = field(default_factory=dict)
    """The operationID of the claim, by pod UID. Also of deleted pods."""
    units: dict[str, str] = field(default_factory=dict)
    """The UID of the unit, by pod UID. Also of deleted pods."""
    violations: list[str] = field(default_factory=list)

    def observe(self, pod: Object) -> None:
        metadata = pod["metadata"]
        claim = (metadata.get("annotations") or {}).get(Annotation.CLAIMED_BY, "")
        unit = (metadata.get("labels") or {}).get(Label.UNIT_UID, "")
        for text, recorded, now in (("claimed by", self.claims, claim), ("the pod of", self.units, unit)):
            if now:
                recorded.setdefault(metadata["uid"], now)
            if (before := recorded.get(metadata["uid"], "")) != now:
                self.violations.append(f"pod {metadata['name']} was {text} {before}, and then {text} {now or 'none'}")


@dataclass
class ClusterWatch:
    mounts: MountObserver = field(default_factory=MountObserver)
    origins: StockOrigins = field(default_factory=StockOrigins)
    pod_users: PodUsers = field(default_factory=PodUsers)
    pods: dict[str, Object] = field(default_factory=dict)
    """The existing pods, by UID."""
    listeners: list[Callable[[Iterable[Object]], None]] = field(default_factory=list)
    """Functions that are called with all pods after each change of a pod."""
    watch_restarts: int = 0

    @property
    def violations(self) -> list[str]:
        return [*self.mounts.violations, *self.origins.violations, *self.pod_users.violations]

    def observe_pod(self, event: str, pod: Object) -> None:
        self.mounts.observe_pod(event, pod)
        self.pod_users.observe(pod)
        self.pods.pop(pod["metadata"]["uid"], None)
        if event != "DELETED":
            self.pods[pod["metadata"]["uid"]] = pod
        for listener in self.listeners:
            listener(self.pods.values())

    def resync_pods(self, listed: Sequence[Object]) -> None:
        uids = {each["metadata"]["uid"] for each in listed}
        for deleted in [pod for uid, pod in self.pods.items() if uid not in uids]:
            self.observe_pod("DELETED", deleted)

    def resync_units(self, listed: Sequence[Object]) -> None:
        uids = {each["metadata"]["uid"] for each in listed}
        self.origins.units = {uid: each for uid, each in self.origins.units.items() if uid in uids}

    def resync_storages(self, _listed: Sequence[Object]) -> None:
        self.mounts.attached_units.clear()


@asynccontextmanager
async def watch_cluster(kube: AsyncClient) -> AsyncIterator[ClusterWatch]:
    watch = ClusterWatch()
    tasks = [
        asyncio.create_task(_watch_kind(watch, kube, Pod, watch.resync_pods, watch.observe_pod)),
        asyncio.create_task(_watch_kind(watch, kube, UNIT, watch.resync_units, watch.origins.observe)),
        asyncio.create_task(_watch_kind(watch, kube, STORAGE, watch.resync_storages, watch.mounts.observe_storage)),
    ]
    try:
        yield watch
        assert not any(each.done() for each in tasks), "a watch task has ended"
    finally:
        for each in tasks:
            each.cancel()


async def _watch_kind(
    watch: ClusterWatch,
    kube: AsyncClient,
    kind: Any,
    resync: Callable[[Sequence[Object]], None],
    observe: Callable[[str, Object], None],
) -> None:
    while True:
        try:
            listed = kube.list(kind, namespace=UNIT_NAMESPACE)
            objects = [as_dict(each) async for each in listed]
            resync(objects)
            for each in objects:
                observe("ADDED", each)
            async for event, each in kube.watch(
                kind, namespace=UNIT_NAMESPACE, resource_version=listed.resourceVersion
            ):
                observe(event, as_dict(each))
        except API_SERVER_ERRORS:
            await asyncio.sleep(0.2)
        watch.watch_restarts += 1
