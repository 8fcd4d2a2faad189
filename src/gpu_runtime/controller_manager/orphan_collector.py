"""Takes away what Kubernetes' garbage collector has overlooked.

A Deployment that is deleted and made again under its name while the collector reads everything anew, as it does after
a restart of the API server, looks to it like one that was changed. The ReplicaSet of the first one then stays, and with
it a pod that nobody wants, and its GPUs.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import pool_uids, unit_uids
from gpu_runtime.controller_manager.workload.unstructured import RAW_DEPLOYMENTS
from gpu_runtime.kube.builtin_kinds import REPLICA_SETS, Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeConflict, KubeError, KubeNotFound
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey, OwnerReference

logger = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)

COLLECT_INTERVAL_SECONDS = 5.0
"""Seconds between two looks at the pods."""


@dataclass
class OrphanCollector:
    client: KubeClient
    informers: ControllerInformers
    clock: Callable[[], float]
    grace_seconds: float = 20.0
    """Seconds that Kubernetes has to take a pod away by itself when its unit or pool is gone."""
    _orphaned_since: dict[str, float] = field(default_factory=dict)
    """Since when pods have belonged to nobody, by their UIDs."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        for cache in (self.informers.units, self.informers.pools, self.informers.pods):
            await cache.wait_for_sync()
        while not self._stopping.is_set():
            await self.collect()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COLLECT_INTERVAL_SECONDS):
                    await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()

    async def collect(self) -> None:
        now, nobodys = self.clock(), self._orphaned_pods()
        self._orphaned_since = {uid: self._orphaned_since.get(uid, now) for uid in nobodys}
        for uid, pod in nobodys.items():
            if now - self._orphaned_since[uid] >= self.grace_seconds:
                try:
                    await self._delete_orphaned_replica_set(pod)
                except KubeError as error:  # the next look comes soon
                    logger.warning(
                        "cannot look into a stray", extra={"pod": str(pod.metadata.key), "error": str(error)}
                    )

    def _orphaned_pods(self) -> dict[str, Pod]:
        """Pods of units and pools that are not there, by their UIDs. What is on its way out needs nobody's help."""
        there = {
            each.metadata.uid for cache in (self.informers.units, self.informers.pools) for each in cache.store.all()
        }
        return {
            pod.metadata.uid: pod
            for pod in self.informers.pods.store.all()
            if pod.metadata.deletion_timestamp is None
            and (owners := (*unit_uids(pod), *pool_uids(pod)))
            and there.isdisjoint(owners)
        }

    async def _delete_orphaned_replica_set(self, pod: Pod) -> None:
        """Delete its ReplicaSet if the Deployment is gone whose it was. Who left a Deployment on purpose keeps it."""
        namespace = pod.metadata.namespace
        replica_set = await self._get_referenced(REPLICA_SETS, namespace, pod.metadata.controller_ref)
        if replica_set is None or (owner := replica_set.metadata.controller_ref) is None:
            return
        if (
            owner.kind != RAW_DEPLOYMENTS.kind
            or await self._get_referenced(RAW_DEPLOYMENTS, namespace, owner) is not None
        ):
            return
        logger.warning("deleting what the garbage collector overlooked", extra={"pod": str(pod.metadata.key)})
        with contextlib.suppress(KubeNotFound, KubeConflict):
            await self.client.delete(REPLICA_SETS, replica_set.metadata.key, uid=replica_set.metadata.uid)

    async def _get_referenced(
        self, resource: ApiResource[T], namespace: str, reference: OwnerReference | None
    ) -> T | None:
        """What is referred to, if that very object is there."""
        if reference is None or reference.kind != resource.kind:
            return None
        try:
            found = await self.client.get(resource, ObjectKey(namespace, reference.name))
        except KubeNotFound:
            return None
        return found if found.metadata.uid == reference.uid else None
