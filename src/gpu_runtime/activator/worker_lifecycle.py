"""Workers made and let go. Every step may be repeated by whoever leads next; a crash between any two loses nothing.

make     over the runtime API from stock, under a name that only one worker can have; cold where there is no stock
drain    the worker itself says that it takes no more work; one that has some in hand says no, or is to finish it
mark     an annotation, if the unit is still as it was seen: its end is decided
return   what came from stock is seeded again, under an operationID of the worker's UID: once, whoever asks
delete   that very unit
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
    """Who makes units from stock and takes stock back."""

    async def create_unit(self, operation_id: str, worker: GPUUnit) -> None: ...
    async def return_to_stock(self, operation_id: str, worker: GPUUnit) -> None: ...


@dataclass(frozen=True)
class WorkerLifecycle:
    client: KubeClient
    """Whose writes end with the lead."""
    functions: FunctionLister
    stock: StockProvider
    nats: NatsConnection
    subjects: Subjects
    is_leader: Callable[[], bool]
    system_namespace: str
    drain_request_timeout_seconds: float
    _pending_creates: dict[ObjectKey, tuple[GPUUnit, str]] = field(default_factory=dict)
    """Under which operationID a worker was asked for, until it was made: an answer may have been lost."""

    async def create(self, function: GPUUnit, name: str, *, without_stock: bool = False) -> None:
        """Make a worker, from stock unless it is known that there is none."""
        worker = build_worker(function, name)
        about = {"unit": str(worker.metadata.key), "function": function.metadata.name}
        if not without_stock and await self._create_from_stock(worker):
            logger.info("a worker is made from stock", extra=about)
        else:
            await self._create_without_stock(worker)
            logger.info("a worker is made without stock", extra=about)

    async def drain(self, unit: GPUUnit, instance: str, *, force: bool) -> DrainStatus | None:
        """What the worker answers; None where nobody does."""
        question = encode(DrainRequest(force=force))
        try:
            return decode(
                await send_request(
                    self.nats, self.subjects.control(instance), question, self.drain_request_timeout_seconds
                ),
                DrainStatus,
            )
        except (JetStreamError, MessageDecodeError) as error:
            extra = {"unit": str(unit.metadata.key), "error": str(error)}
            logger.info("a worker does not say whether it can go", extra=extra)
            return None

    async def retire(self, unit: GPUUnit) -> None:
        """Take a worker that has no work away, and give back what it was made from."""
        unit = await self._mark_retiring(unit)
        await self._return_to_stock(unit)
        key, uid = unit.metadata.key, unit.metadata.uid
        try:
            await self.client.delete(GPU_UNITS, key, uid=uid)
        except (kube.KubeNotFound, kube.KubeConflict):
            logger.debug("the worker is gone already", extra={"unit": str(key)})
        else:
            logger.info("a worker is let go", extra={"unit": str(key)})
        self.functions.units.record_delete(key, uid)

    async def set_running(self, function: GPUUnit, *, running: bool) -> None:
        """Let the function's own unit run, or stop it, if it is still as it was seen."""
        about = function.metadata
        patch = {"spec": {"running": running}}
        written = await self.client.merge_patch(GPU_UNITS, about.key, patch, resource_version=about.resource_version)
        self.functions.units.record_write(written)

    async def _create_from_stock(self, worker: GPUUnit) -> bool:
        """Whether there was stock. Conflict where something else stands in the way."""
        self._require_leadership()
        try:
            await self.stock.create_unit(self._operation_id(worker), worker)
        except NoStock:
            return False
        except (Conflict, Rejected):  # this operation ends here; the next try is another one
            self._pending_creates.pop(worker.metadata.key, None)
            raise
        self._pending_creates.pop(worker.metadata.key, None)
        return True

    def _operation_id(self, worker: GPUUnit) -> str:
        """One for every use of the name. The name alone is what keeps two of them from making two workers."""
        asked, id_ = self._pending_creates.get(worker.metadata.key, (None, ""))
        if asked != worker:
            id_ = f"worker-{worker.metadata.name}-{secrets.token_hex(8)}"
            self._pending_creates[worker.metadata.key] = (worker, id_)
        return id_

    async def _create_without_stock(self, worker: GPUUnit) -> None:
        about = worker.metadata
        manifest = {
            "metadata": {"namespace": about.namespace, "name": about.name},
            "spec": msgspec.to_builtins(worker.spec),
        }
        try:
            self.functions.units.record_write(await self.client.create(GPU_UNITS, manifest))
        except kube.KubeAlreadyExists:
            logger.debug("the worker is there already", extra={"unit": str(about.key)})

    async def _mark_retiring(self, unit: GPUUnit) -> GPUUnit:
        about = unit.metadata
        if Annotation.RETIRING in about.annotations:
            return unit
        patch = {"metadata": {"annotations": {Annotation.RETIRING: "true"}}}
        marked = await self.client.merge_patch(GPU_UNITS, about.key, patch, resource_version=about.resource_version)
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
        """Whether stock has become this very unit, and not another one of its operation: a late process makes it again.

        Unavailable while the handoff is under way: it would make the unit again from the same stock.
        """
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if not operation_id:
            return True
        try:
            found = await self.client.get(OPERATIONS, ObjectKey(self.system_namespace, operation_name(operation_id)))
        except kube.KubeNotFound:
            return True  # forgotten, which only finished ones are
        if not OperationState(found.status.state).finished:
            raise Unavailable(f"the handoff of {unit.metadata.key} is not finished")
        by_this_one = unit.metadata.annotations.get(Annotation.OPERATION_UID) == found.metadata.uid
        return not by_this_one or found.status.has_created(unit.metadata.uid)

    def _require_leadership(self) -> None:
        """The API does not know who leads."""
        if not self.is_leader():
            raise kube.KubeNotLeader("this activator no longer leads")


def build_worker(function: GPUUnit, name: str) -> GPUUnit:
    """A worker of the function: what the function's own unit runs, in its envelope, and serving the same queue."""
    spec = function.spec
    serverless = msgspec.structs.replace(
        spec.serverless or Serverless(), worker_of=function.metadata.name, min_available_count=0
    )
    return GPUUnit(
        metadata=ObjectMeta(namespace=function.metadata.namespace, name=name),
        spec=msgspec.structs.replace(spec, serverless=serverless, storage_mounts=(), running=True),
    )
