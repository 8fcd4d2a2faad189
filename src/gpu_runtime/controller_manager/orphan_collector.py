"""Deletes orphaned ReplicaSets that the Kubernetes garbage collector missed.

After a restart of the API server, the garbage collector lists all objects again. If a Deployment is deleted and
created again with the same name during this time, the garbage collector treats the two Deployments as one that was
updated. It then does not delete the ReplicaSet of the first Deployment. The pod of this ReplicaSet continues to use
GPUs, although its unit or pool no longer exists.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import pool_uids, unit_uids
from gpu_runtime.controller_manager.unstructured import RAW_DEPLOYMENTS
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.kube.builtin_kinds import REPLICA_SETS, Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeConflict, KubeError, KubeNotFound
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey, OwnerReference

logger = logging.getLogger(__name__)
T = TypeVar("T", bound=KubeObject)

COLLECT_INTERVAL_SECONDS = 5.0
"""Seconds between two checks for orphaned pods."""


@dataclass
class OrphanCollector:
    """Periodically finds pods without a unit or pool. Deletes their ReplicaSets if the Deployment does not exist."""

    client: KubeClient
    informers: ControllerInformers
    clock: Callable[[], float]
    grace_seconds: float = 20.0
    """Seconds that the collector waits before it acts on an orphaned pod. The garbage collector is normally faster."""
    _orphaned_since: dict[str, float] = field(default_factory=dict)
    """The clock time at which the collector first saw each orphaned pod, by pod UID."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        for informer in (self.informers.units, self.informers.pools, self.informers.pods):
            await informer.wait_for_sync()
        while not self._stopping.is_set():
            await self.collect()
            await is_set_within(self._stopping, COLLECT_INTERVAL_SECONDS)

    def stop(self) -> None:
        self._stopping.set()

    async def collect(self) -> None:
        """Check every orphaned pod whose grace period has elapsed. If a check fails, the next call repeats it."""
        now, orphans = self.clock(), self._orphaned_pods()
        self._orphaned_since = {uid: self._orphaned_since.get(uid, now) for uid in orphans}
        for uid, pod in orphans.items():
            if now - self._orphaned_since[uid] >= self.grace_seconds:
                try:
                    await self._delete_orphaned_replica_set(pod)
                except KubeError as error:
                    logger.warning(
                        "orphan collection failed; the controller manager will retry",
                        extra={"namespace": pod.metadata.namespace, "pod": pod.metadata.name, "error": str(error)},
                    )

    def _orphaned_pods(self) -> dict[str, Pod]:
        """Return the pods whose unit or pool does not exist, by pod UID. Terminating pods are not included."""
        owner_uids = {
            owner.metadata.uid
            for informer in (self.informers.units, self.informers.pools)
            for owner in informer.store.all()
        }
        return {
            pod.metadata.uid: pod
            for pod in self.informers.pods.store.all()
            if pod.metadata.deletion_timestamp is None
            and (owners := (*unit_uids(pod), *pool_uids(pod)))
            and owner_uids.isdisjoint(owners)
        }

    async def _delete_orphaned_replica_set(self, pod: Pod) -> None:
        """Delete the pod's ReplicaSet if the Deployment that owned it is deleted.

        Do not delete the ReplicaSet if the Deployment exists: a user kept the Deployment on purpose, for example with
        `kubectl delete --cascade=orphan`. Do not delete a ReplicaSet without an owner either.
        """
        namespace = pod.metadata.namespace
        replica_set = await self._get_referenced(REPLICA_SETS, namespace, pod.metadata.controller_ref)
        if replica_set is None or (owner := replica_set.metadata.controller_ref) is None:
            return
        if (
            owner.kind != RAW_DEPLOYMENTS.kind
            or await self._get_referenced(RAW_DEPLOYMENTS, namespace, owner) is not None
        ):
            return
        logger.warning(
            "orphaned ReplicaSet found; the controller manager will delete it",
            extra={"namespace": namespace, "pod": pod.metadata.name, "replica_set": replica_set.metadata.name},
        )
        with contextlib.suppress(KubeNotFound, KubeConflict):
            await self.client.delete(REPLICA_SETS, replica_set.metadata.key, uid=replica_set.metadata.uid)

    async def _get_referenced(
        self, resource: ApiResource[T], namespace: str, reference: OwnerReference | None
    ) -> T | None:
        """Read the referenced object. Return None if it is deleted or if the object with its name has another UID."""
        if reference is None or reference.kind != resource.kind:
            return None
        live = await find_live(self.client, resource, ObjectKey(namespace, reference.name))
        return live if live is not None and live.metadata.uid == reference.uid else None
