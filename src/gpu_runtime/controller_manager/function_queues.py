"""Creates the FunctionQueue of each function, and deletes it when the function is deleted or disabled.

The API server accepts only one FunctionQueue with the name that belongs to a requestID. So the creation decides which
of several functions with the same requestID gets the queue.
"""

import logging
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from gpu_runtime.contract.crd.function_queue import FUNCTION_QUEUES, FunctionQueue, queue_manifest
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.well_known import UnitRole, function_queue_name, role_of
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult
from gpu_runtime.kube.errors import KubeAlreadyExists
from gpu_runtime.kube.live_objects import delete_this, find_live
from gpu_runtime.kube.meta import ObjectKey

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FunctionQueues:
    client: KubeClient
    informers: ControllerInformers
    system_namespace: str
    stock_namespace: str

    async def ensure(self, unit: GPUUnit) -> None:
        """Create the queue of a function, unless a queue for its requestID exists."""
        if not self._is_function(unit) or self.informers.queues.store.get(self._key(unit)) is not None:
            return
        manifest = queue_manifest(unit, self.system_namespace, secrets.token_hex(16))
        with suppress(KubeAlreadyExists):  # another function was first, and the watch will deliver its queue
            self.informers.queues.record_write(await self.client.create(FUNCTION_QUEUES, manifest))

    async def reconcile(self, queue: FunctionQueue) -> ReconcileResult:
        """Delete the queue if its function is deleted or disabled. Otherwise, remove deleted workers from the queue."""
        function = queue.spec.function
        cached = self.informers.units.store.get(function.key)
        if not self._owns(cached, queue) and not self._owns(await self._find_live(function.key), queue):
            await delete_this(self.client, self.informers.queues, queue.metadata.key, queue.metadata.uid)
            logger.info(
                "FunctionQueue deleted because its function was deleted or disabled",
                extra={"function_id": queue.spec.function_id},
            )
            return Done()
        gone = [uid for uid, name in queue.spec.workers.items() if await self._is_gone(function.namespace, name, uid)]
        if gone:
            patch = {"metadata": {"uid": queue.metadata.uid}, "spec": {"workers": dict.fromkeys(gone)}}
            self.informers.queues.record_write(
                await self.client.merge_patch(FUNCTION_QUEUES, queue.metadata.key, patch)
            )
        return Done()

    def map_unit(self, unit: GPUUnit) -> Iterable[ObjectKey]:
        """Return the queue for the requestID of the unit."""
        return (self._key(unit),) if unit.spec.serverless and unit.spec.serverless.request_id else ()

    async def _is_gone(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether the worker does not exist. The cache may not contain a new worker, so ask the API server."""
        key = ObjectKey(namespace, name)
        cached = self.informers.units.store.get(key)
        if cached is not None and cached.metadata.uid == uid:
            return False
        live = await self._find_live(key)
        return live is None or live.metadata.uid != uid

    async def _find_live(self, key: ObjectKey) -> GPUUnit | None:
        return await find_live(self.client, GPU_UNITS, key)

    def _owns(self, unit: GPUUnit | None, queue: FunctionQueue) -> bool:
        return unit is not None and unit.metadata.uid == queue.spec.function.uid and self._is_function(unit)

    def _is_function(self, unit: GPUUnit) -> bool:
        active = role_of(unit.metadata.namespace, self.stock_namespace) is UnitRole.ACTIVE
        return active and unit.spec.is_function and unit.metadata.deletion_timestamp is None

    def _key(self, unit: GPUUnit) -> ObjectKey:
        request_id = unit.spec.serverless.request_id if unit.spec.serverless else ""
        return ObjectKey(self.system_namespace, function_queue_name(request_id))
