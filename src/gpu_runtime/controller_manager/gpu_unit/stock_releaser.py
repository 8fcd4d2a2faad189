"""Ends the pod of a consumed stock unit if the pod of the new unit needs its GPUs.

If other GPUs are free, the pod of the unit starts on them, and the end of the stock pod on the same node would only
slow down this start. Whether other GPUs are free is known when the scheduler has tried to place the pod. If the pod of
the last unit of the same flavor had to wait, the next one probably has to wait, too. Then the stock pod is ended while
the children of the unit are created.

The garbage collector would delete the Deployment, the ReplicaSet and the pod of the stock unit, too, but only after the
runtime API has deleted the stock unit, and one after the other.

A user who can write GPUUnits can forge the annotations of a unit, but not an Operation. So the controller manager ends
only stock that the Operation of the unit has consumed.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpu_runtime.contract.operation_rules import ClaimState, claim_state
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.gpu_unit.stock_release import waits_for_pools, waits_for_stock
from gpu_runtime.controller_manager.gpu_unit.unit_operation import belongs_to, find_operation
from gpu_runtime.controller_manager.unstructured import RAW_DEPLOYMENTS, RawDeployment
from gpu_runtime.kube.builtin_kinds import PODS, REPLICA_SETS, Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeConflict, KubeNotFound
from gpu_runtime.kube.meta import ApiResource, ObjectKey

POOL_POLL_SECONDS = 0.05
COMMIT_POLL_SECONDS = 0.005
COMMIT_POLLS = 20
"""How often to read an operation that has not committed yet, before the unit is reconciled again. The operation usually
commits while the children of the unit are created."""


@dataclass(frozen=True)
class StockReleaser:
    client: KubeClient
    system_namespace: str
    _scarce: set[str] = field(default_factory=set)
    """Flavors of which the last unit from stock had to wait for the GPUs of its stock."""

    async def release(self, observed: ObservedUnit) -> float | None:
        """End the pods of the stock unit if necessary. Return the delay until the next attempt, or None."""
        self._remember_scarcity(observed)
        stock, pods = observed.source_stock, self._pods_to_end(observed)
        if stock is None or not pods:
            return None
        if waits_for_pools(observed):
            return POOL_POLL_SECONDS
        match await self._claim_state(observed, stock.uid):
            case ClaimState.STALE:
                return None
            case ClaimState.VALID:
                return COMMIT_POLL_SECONDS  # the operation can still fail, and then the stock is free again
        for pod in pods:
            await self._end(observed, pod)
        return None

    async def _claim_state(self, observed: ObservedUnit, stock_uid: str) -> ClaimState:
        """Return whether the operation of the unit has consumed the stock. Wait for a short time until it has."""
        for poll in range(COMMIT_POLLS):
            if poll:
                await asyncio.sleep(COMMIT_POLL_SECONDS)
            operation = await find_operation(self.client, self.system_namespace, observed.unit)
            if operation is None or not belongs_to(operation, observed.unit):
                return ClaimState.STALE
            state = claim_state(operation, stock_uid)
            if state is not ClaimState.VALID:
                return state
        return ClaimState.VALID

    def _remember_scarcity(self, observed: ObservedUnit) -> None:
        if not _pods_with_gpus(observed):
            return
        if waits_for_stock(observed):
            self._scarce.add(observed.unit.spec.spec_name)
        elif _has_gpus(observed):
            self._scarce.discard(observed.unit.spec.spec_name)

    def _pods_to_end(self, observed: ObservedUnit) -> list[Pod]:
        unit = observed.unit.spec
        if not unit.running or unit.spec_name not in self._scarce or _has_gpus(observed):
            return []
        return [pod for pod in _pods_with_gpus(observed) if pod.metadata.deletion_timestamp is None]

    async def _end(self, observed: ObservedUnit, pod: Pod) -> None:
        """Delete the owners of the pod first. Otherwise they create another pod, which may get the GPUs."""
        owner, namespace = pod.metadata.controller_ref, pod.metadata.namespace
        for each in observed.stock_objects:
            if isinstance(each, RawDeployment):
                await self._delete(RAW_DEPLOYMENTS, each.metadata.key, each.metadata.uid)
        if owner is not None and owner.kind == REPLICA_SETS.kind:
            await self._delete(REPLICA_SETS, ObjectKey(namespace, owner.name), owner.uid)
        await self._delete(PODS, pod.metadata.key, pod.metadata.uid)

    async def _delete(self, resource: ApiResource[Any], key: ObjectKey, uid: str) -> None:
        with suppress(KubeNotFound, KubeConflict):  # the object is deleted, or another object has its name
            await self.client.delete(resource, key, uid=uid)


def _pods_with_gpus(observed: ObservedUnit) -> list[Pod]:
    """The pods of the source stock unit that use GPUs. A prepared pod belongs to the unit."""
    stock = observed.source_stock
    if stock is None or stock.pool:
        return []
    return [each for each in observed.stock_objects if isinstance(each, Pod) and not each.has_ended]


def _has_gpus(observed: ObservedUnit) -> bool:
    """Whether the unit got other GPUs than those of its stock unit, which still uses them."""
    return not waits_for_stock(observed) and any(pod.is_running for pod in observed.pods)
