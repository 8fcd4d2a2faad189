"""Creates, drains and retires workers.

create   Create the worker through the runtime API from stock, under a name that only one worker can have. If there is
         no stock, create the unit directly: a cold start.
drain    Ask the worker to accept no more invocations. A busy worker refuses, unless the drain is forced: then it
         finishes its invocations.
mark     Annotate the unit as retiring, if its resourceVersion is unchanged. From now on the worker will be deleted.
return   If the worker came from stock, seed a stock unit again. The operationID contains the worker's UID, so the stock
         is seeded once, even if two leaders do it.
delete   Delete the unit with this UID.

The next leader can repeat every step. A crash between two steps loses nothing.
"""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, Serverless
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationState
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.contract.errors import Conflict, NoStock, Rejected, Unavailable
from gpu_runtime.contract.messages.drain_request import DrainRequest, DrainStatus
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.request_reply import send_request
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey, ObjectMeta

logger = logging.getLogger(__name__)


class StockProvider(Protocol):
    """Creates units from stock and returns stock."""

    async def create_unit(self, operation_id: str, worker: GPUUnit) -> None: ...
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
    system_namespace: str
    drain_request_timeout_seconds: float
    _pending_creates: dict[ObjectKey, tuple[GPUUnit, str]] = field(default_factory=dict)
    """The operationID of each create request that has not succeeded yet. A retry must use the same operationID, because
    the response of the first request may have been lost."""

    async def create(self, function: GPUUnit, name: str, *, without_stock: bool = False) -> None:
        """Create a worker from stock. Create it without stock if `without_stock` is set or no stock is available."""
        worker = build_worker(function, name)
        fields = _log_fields(worker.metadata.key) | {"function": _request_id(function)}
        if not without_stock and await self._create_from_stock(worker):
            logger.info("worker created from stock", extra=fields)
        else:
            await self._create_without_stock(worker)
            logger.info("worker created without stock", extra=fields)

    async def drain(self, unit: GPUUnit, pod_uid: str, *, force: bool) -> DrainStatus | None:
        """Send a drain request to the worker's pod. Return None if it sends no valid response in time."""
        request, subject = encode(DrainRequest(force=force)), self.subjects.control(pod_uid)
        try:
            response = await send_request(self.nats, subject, request, self.drain_request_timeout_seconds)
            return decode(response, DrainStatus)
        except (JetStreamError, MessageDecodeError) as error:
            fields = _log_fields(unit.metadata.key) | {"pod_uid": pod_uid, "error": str(error)}
            logger.info("drain request failed", extra=fields)
            return None

    async def retire(self, unit: GPUUnit) -> None:
        """Delete a worker that runs no invocation, and return its stock."""
        unit = await self._mark_retiring(unit)
        await self._return_to_stock(unit)
        key, uid = unit.metadata.key, unit.metadata.uid
        try:
            await self.client.delete(GPU_UNITS, key, uid=uid)
        except (kube.KubeNotFound, kube.KubeConflict):
            logger.debug("worker already deleted", extra=_log_fields(key))
        else:
            logger.info("worker deleted", extra=_log_fields(key))
        self.functions.units.record_delete(key, uid)

    async def set_running(self, function: GPUUnit, *, running: bool) -> None:
        """Start or stop the function's own unit. Raise KubeConflict if the unit changed since it was observed."""
        metadata = function.metadata
        updated = await self.client.merge_patch(
            GPU_UNITS, metadata.key, {"spec": {"running": running}}, resource_version=metadata.resource_version
        )
        self.functions.units.record_write(updated)

    async def _create_from_stock(self, worker: GPUUnit) -> bool:
        """Return False if no stock is available. Raise Conflict or Rejected if the API refuses for another reason."""
        self._require_leadership()
        try:
            await self.stock.create_unit(self._operation_id(worker), worker)
        except NoStock:
            return False
        except (Conflict, Rejected):  # the operation has ended, so the next attempt needs a new operationID
            self._pending_creates.pop(worker.metadata.key, None)
            raise
        self._pending_creates.pop(worker.metadata.key, None)
        return True

    def _operation_id(self, worker: GPUUnit) -> str:
        """Return the operationID for a create request. Every reuse of a worker name gets a new operationID.

        The name of the unit, not the operationID, prevents two leaders from creating two workers.
        """
        pending, id_ = self._pending_creates.get(worker.metadata.key, (None, ""))
        if pending != worker:
            id_ = f"worker-{worker.metadata.name}-{secrets.token_hex(8)}"
            self._pending_creates[worker.metadata.key] = (worker, id_)
        return id_

    async def _create_without_stock(self, worker: GPUUnit) -> None:
        metadata = worker.metadata
        manifest = {
            "metadata": {"namespace": metadata.namespace, "name": metadata.name},
            "spec": msgspec.to_builtins(worker.spec),
        }
        try:
            self.functions.units.record_write(await self.client.create(GPU_UNITS, manifest))
        except kube.KubeAlreadyExists:
            logger.debug("worker already exists", extra=_log_fields(metadata.key))

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
        if not unit.metadata.annotations.get(Annotation.SOURCE_STOCK_UID):
            return
        if not await self._handoff_committed(unit):
            return
        self._require_leadership()
        await self.stock.return_to_stock(f"return-{unit.metadata.uid}", unit)

    async def _handoff_committed(self, unit: GPUUnit) -> bool:
        """Return whether the operation converted stock to this unit, and not to another unit with the same operationID.

        An API replica that was suspended can create the unit a second time, after the first one was retired.
        Raise Unavailable while the handoff is in progress: the operation could create the unit again from the same
        stock.
        """
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if not operation_id:
            return True
        try:
            operation = await self.client.get(
                OPERATIONS, ObjectKey(self.system_namespace, operation_name(operation_id))
            )
        except kube.KubeNotFound:
            return True  # evicted: only finished operations are evicted
        if not OperationState(operation.status.state).finished:
            raise Unavailable(f"the handoff of unit {unit.metadata.key} is not finished")
        same_operation = unit.metadata.annotations.get(Annotation.OPERATION_UID) == operation.metadata.uid
        return not same_operation or operation.status.has_created(unit.metadata.uid)

    def _require_leadership(self) -> None:
        """Raise KubeNotLeader if this process is not the leader. The runtime API does not check this."""
        if not self.is_leader():
            raise kube.KubeNotLeader("this activator is no longer the leader")


def build_worker(function: GPUUnit, name: str) -> GPUUnit:
    """Build a worker with the spec of the function's own unit: same image, template, reservation and requestID."""
    spec = function.spec
    serverless = msgspec.structs.replace(
        spec.serverless or Serverless(), worker_of=function.metadata.name, min_available_count=0
    )
    return GPUUnit(
        metadata=ObjectMeta(namespace=function.metadata.namespace, name=name),
        spec=msgspec.structs.replace(spec, serverless=serverless, storage_mounts=(), running=True),
    )


def _request_id(function: GPUUnit) -> str:
    return function.spec.serverless.request_id if function.spec.serverless else ""


def _log_fields(key: ObjectKey) -> dict[str, str]:
    return {"namespace": key.namespace, "object_name": key.name}
