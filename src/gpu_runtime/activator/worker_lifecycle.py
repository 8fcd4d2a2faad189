"""Creates, drains and retires workers.

create   Create the worker from stock through the runtime API. Only one worker can have its name. If no stock is
         available, create the unit directly (cold start).
drain    Ask the worker to accept no more invocations. An idle worker accepts. A busy worker refuses, unless the drain
         is forced: then it accepts and finishes its running invocations.
mark     Set the retiring annotation on the unit, on condition that its resourceVersion is unchanged. After this step
         the worker will be deleted.
return   If an operation created the worker, ask the runtime API to return its stock. The runtime API decides from the
         Operation whether the worker came from stock. It returns the stock only once, even if two leaders ask.
delete   Delete the unit with this UID. If stock is returned, the runtime API deletes it, too.

If the leader crashes between two steps, the next leader repeats the last step and continues.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.contract.crd.function_queue import FUNCTION_QUEUES, FunctionQueue
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, Serverless
from gpu_runtime.contract.crd.operation import MAX_OPERATION_ID_LENGTH
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, NoStock, NoStockToReturn, Rejected
from gpu_runtime.contract.messages.drain_request import DrainRequest, DrainStatus
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey, ObjectMeta

logger = logging.getLogger(__name__)


class StockProvider(Protocol):
    """Creates workers from stock, and returns the stock of retired workers."""

    async def create_unit(self, operation_id: str, worker: GPUUnit) -> str: ...
    async def return_to_stock(self, operation_id: str, worker: GPUUnit) -> None: ...


@dataclass(frozen=True)
class WorkerLifecycle:
    client: KubeClient
    """Client that refuses writes when this process is no longer the leader."""
    functions: FunctionLister
    stock: StockProvider
    nats: NatsConnection
    subjects: Subjects
    is_leader: Callable[[], bool]
    drain_request_timeout_seconds: float
    _pending_creates: dict[ObjectKey, tuple[GPUUnit, str]] = field(default_factory=dict)
    """The worker and the operationID of each create request that has not succeeded yet, by key. A retry must use the
    same operationID, because the first request may have succeeded and its response may be lost."""

    async def create(self, function: GPUUnit, name: str, *, without_stock: bool = False) -> None:
        """Create a worker from stock. Create it without stock if `without_stock` is set or no stock is available.

        Then record the worker in the queue of the function. The worker gets no pod until it is recorded.
        """
        queue, worker = self.functions.queue_of(function), build_worker(function, name)
        if queue is None:  # the function was deleted in the meantime
            return
        uid = None if without_stock else await self._create_from_stock(worker)
        if uid is not None:
            logger.info("worker created from stock", extra=_log_fields(worker))
        else:
            uid = await self._create_without_stock(worker)
        if uid:
            await self._record(queue, uid, name)
        self._pending_creates.pop(worker.metadata.key, None)

    def is_pending(self, worker: ObjectKey) -> bool:
        """Return whether this process has sent a create request for the worker and has not recorded the worker."""
        return worker in self._pending_creates

    async def drain(self, unit: GPUUnit, pod_uid: str, *, force: bool) -> DrainStatus | None:
        """Send a drain request to the worker's pod. Return None if the pod sends no valid response in time."""
        request, subject = encode(DrainRequest(force=force)), self.subjects.control(pod_uid)
        try:
            reply = await self.nats.request(subject, request, timeout_seconds=self.drain_request_timeout_seconds)
            return decode(reply.data, DrainStatus)
        except (JetStreamError, MessageDecodeError) as error:
            fields = _log_fields(unit) | {"pod_uid": pod_uid, "error": str(error)}
            logger.info("drain request failed; the activator keeps the worker and will retry", extra=fields)
            return None

    async def retire(self, unit: GPUUnit) -> None:
        """Delete a worker that runs no invocation. If it came from stock, the stock is returned."""
        unit = await self._mark_retiring(unit)
        await self._return_to_stock(unit)
        key, uid = unit.metadata.key, unit.metadata.uid
        try:
            await self.client.delete(GPU_UNITS, key, uid=uid)
        except (kube.KubeNotFound, kube.KubeConflict):
            logger.debug("worker already deleted", extra=_log_fields(unit))
        else:
            logger.info("worker deleted", extra=_log_fields(unit))
        self.functions.units.record_delete(key, uid)

    async def set_running(self, function: GPUUnit, *, running: bool) -> None:
        """Start or stop the function's own unit. Raise KubeConflict if the unit changed since it was observed."""
        metadata = function.metadata
        updated = await self.client.merge_patch(
            GPU_UNITS, metadata.key, {"spec": {"running": running}}, resource_version=metadata.resource_version
        )
        self.functions.units.record_write(updated)

    async def _record(self, queue: FunctionQueue, uid: str, name: str) -> None:
        # With the UID, the API server rejects the write if a later function with the same requestID owns the queue.
        patch = {"metadata": {"uid": queue.metadata.uid}, "spec": {"workers": {uid: name}}}
        written = await self.client.merge_patch(FUNCTION_QUEUES, queue.metadata.key, patch)
        self.functions.queues.record_write(written)

    async def _create_from_stock(self, worker: GPUUnit) -> str | None:
        """Return the UID of the created worker. Return None if no stock is available.

        Raise Conflict or Rejected if the runtime API refuses the request for another reason.
        """
        self._require_leadership()
        try:
            return await self.stock.create_unit(self._operation_id(worker), worker)
        except NoStock:
            return None
        except (Conflict, Rejected):  # the operation has ended, so the next attempt needs a new operationID
            self._pending_creates.pop(worker.metadata.key, None)
            raise

    def _operation_id(self, worker: GPUUnit) -> str:
        """Return the operationID for a create request.

        A retry for the same worker uses the same operationID. A later worker with the same name gets a new operationID.
        Two leaders have different operationIDs. They cannot create two workers, because both use the same unit name.
        """
        pending, id_ = self._pending_creates.get(worker.metadata.key, (None, ""))
        if pending != worker:
            id_ = f"worker-{worker.metadata.name}-{secrets.token_hex(8)}"
            self._pending_creates[worker.metadata.key] = (worker, id_)
        return id_

    async def _create_without_stock(self, worker: GPUUnit) -> str:
        """Return the UID of the created worker. Return an empty string if another unit has its name."""
        metadata = worker.metadata
        manifest = {
            "metadata": {"namespace": metadata.namespace, "name": metadata.name},
            "spec": msgspec.to_builtins(worker.spec),
        }
        try:
            created = await self.client.create(GPU_UNITS, manifest)
        except kube.KubeAlreadyExists:
            logger.debug("worker already exists", extra=_log_fields(worker))
            return ""
        self.functions.units.record_write(created)
        logger.info("worker created without stock", extra=_log_fields(worker))
        return created.metadata.uid

    async def _mark_retiring(self, unit: GPUUnit) -> GPUUnit:
        metadata = unit.metadata
        if Annotation.RETIRING in metadata.annotations:
            return unit
        patch = {"metadata": {"annotations": {Annotation.RETIRING: "true"}}}
        marked = await self.client.merge_patch(
            GPU_UNITS, metadata.key, patch, resource_version=metadata.resource_version
        )
        self.functions.units.record_write(marked)
        return marked

    async def _return_to_stock(self, unit: GPUUnit) -> None:
        """Return the stock of the worker, if its operation proves that it came from stock.

        Users can write the annotation. If it names no operation of this worker, no stock is returned. Raise Unavailable
        while the operation is not finished, because until then it can still create the unit again from the same stock.
        """
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if not 0 < len(operation_id) <= MAX_OPERATION_ID_LENGTH:
            return
        self._require_leadership()
        try:
            await self.stock.return_to_stock(operation_id, unit)
        except NoStockToReturn as refusal:
            fields = _log_fields(unit) | {"operation_id": operation_id, "error": refusal.message}
            logger.info("stock not returned; the activator deletes the worker", extra=fields)

    def _require_leadership(self) -> None:
        """Raise KubeNotLeader if this process is not the leader. The runtime API does not check leadership itself."""
        if not self.is_leader():
            raise kube.KubeNotLeader("this activator is no longer the leader")


def build_worker(function: GPUUnit, name: str) -> GPUUnit:
    """Build a worker with the spec of the function's own unit, but without storages and with `workerOf` set."""
    spec = function.spec
    serverless = msgspec.structs.replace(
        spec.serverless or Serverless(), worker_of=function.metadata.name, min_available_count=0, max_workers=1
    )
    return GPUUnit(
        metadata=ObjectMeta(namespace=function.metadata.namespace, name=name),
        spec=msgspec.structs.replace(spec, serverless=serverless, storage_mounts=(), running=True),
    )


def _log_fields(worker: GPUUnit) -> dict[str, str]:
    metadata, serverless = worker.metadata, worker.spec.serverless
    function = serverless.request_id if serverless else ""
    return {"namespace": metadata.namespace, "object_name": metadata.name, "function": function}
