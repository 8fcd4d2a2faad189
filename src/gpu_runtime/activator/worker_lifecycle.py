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

from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, Serverless
from gpu_runtime.contract.crd.operation import OPERATIONS, OperationState
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.contract.errors import Conflict, NoStock, Rejected, Unavailable
from gpu_runtime.contract.messages.drain_request import Drain, Drained
from gpu_runtime.contract.messages.message_codec import Unreadable, decode, encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.request_reply import ask
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key, ObjectMeta

logger = logging.getLogger(__name__)


class Stock(Protocol):
    """Who makes units from stock and takes stock back."""

    async def create(self, operation_id: str, worker: GPUUnit) -> None: ...
    async def give_back(self, operation_id: str, worker: GPUUnit) -> None: ...


@dataclass(frozen=True)
class Lifecycle:
    client: Client
    """Whose writes end with the lead."""
    functions: Functions
    stock: Stock
    nats: Connection
    subjects: Subjects
    leading: Callable[[], bool]
    system_namespace: str
    drain_seconds: float
    _asked: dict[Key, tuple[GPUUnit, str]] = field(default_factory=dict)
    """Under which operationID a worker was asked for, until it was made: an answer may have been lost."""

    async def make(self, function: GPUUnit, name: str, *, cold: bool = False) -> None:
        """Make a worker, from stock unless it is known that there is none."""
        worker = worker_like(function, name)
        about = {"unit": str(worker.metadata.key), "function": function.metadata.name}
        if not cold and await self._from_stock(worker):
            logger.info("a worker is made from stock", extra=about)
        else:
            await self._cold(worker)
            logger.info("a worker is made without stock", extra=about)

    async def drain(self, unit: GPUUnit, instance: str, *, finishing: bool) -> Drained | None:
        """What the worker answers; None where nobody does."""
        question = encode(Drain(finishing=finishing))
        try:
            return decode(await ask(self.nats, self.subjects.control(instance), question, self.drain_seconds), Drained)
        except (StreamError, Unreadable) as error:
            extra = {"unit": str(unit.metadata.key), "error": str(error)}
            logger.info("a worker does not say whether it can go", extra=extra)
            return None

    async def retire(self, unit: GPUUnit) -> None:
        """Take a worker that has no work away, and give back what it was made from."""
        unit = await self._marked(unit)
        await self._give_back(unit)
        key, uid = unit.metadata.key, unit.metadata.uid
        try:
            await self.client.delete(GPU_UNITS, key, uid=uid)
        except (kube.NotFound, kube.Conflict):
            logger.debug("the worker is gone already", extra={"unit": str(key)})
        else:
            logger.info("a worker is let go", extra={"unit": str(key)})
        self.functions.units.forget(key, uid)

    async def switch(self, function: GPUUnit, *, running: bool) -> None:
        """Let the function's own unit run, or stop it, if it is still as it was seen."""
        about = function.metadata
        patch = {"spec": {"running": running}}
        written = await self.client.merge_patch(GPU_UNITS, about.key, patch, resource_version=about.resource_version)
        self.functions.units.learn(written)

    async def _from_stock(self, worker: GPUUnit) -> bool:
        """Whether there was stock. Conflict where something else stands in the way."""
        self._hold_back()
        try:
            await self.stock.create(self._operation_id(worker), worker)
        except NoStock:
            return False
        except (Conflict, Rejected):  # this operation ends here; the next try is another one
            self._asked.pop(worker.metadata.key, None)
            raise
        self._asked.pop(worker.metadata.key, None)
        return True

    def _operation_id(self, worker: GPUUnit) -> str:
        """One for every use of the name. The name alone is what keeps two of them from making two workers."""
        asked, id_ = self._asked.get(worker.metadata.key, (None, ""))
        if asked != worker:
            id_ = f"worker-{worker.metadata.name}-{secrets.token_hex(8)}"
            self._asked[worker.metadata.key] = (worker, id_)
        return id_

    async def _cold(self, worker: GPUUnit) -> None:
        about = worker.metadata
        manifest = {
            "metadata": {"namespace": about.namespace, "name": about.name},
            "spec": msgspec.to_builtins(worker.spec),
        }
        try:
            self.functions.units.learn(await self.client.create(GPU_UNITS, manifest))
        except kube.AlreadyExists:
            logger.debug("the worker is there already", extra={"unit": str(about.key)})

    async def _marked(self, unit: GPUUnit) -> GPUUnit:
        about = unit.metadata
        if Annotation.RETIRING in about.annotations:
            return unit
        patch = {"metadata": {"annotations": {Annotation.RETIRING: "true"}}}
        marked = await self.client.merge_patch(GPU_UNITS, about.key, patch, resource_version=about.resource_version)
        self.functions.units.learn(marked)
        return marked

    async def _give_back(self, unit: GPUUnit) -> None:
        if not unit.metadata.annotations.get(Annotation.SOURCE_STOCK_UID):
            return
        if not await self._handed_over(unit):
            return
        self._hold_back()
        await self.stock.give_back(f"return-{unit.metadata.uid}", unit)

    async def _handed_over(self, unit: GPUUnit) -> bool:
        """Whether stock has become this very unit, and not another one of its operation: a late process makes it again.

        Unavailable while the handoff is under way: it would make the unit again from the same stock.
        """
        operation_id = unit.metadata.annotations.get(Annotation.OPERATION_ID, "")
        if not operation_id:
            return True
        try:
            found = await self.client.get(OPERATIONS, Key(self.system_namespace, operation_name(operation_id)))
        except kube.NotFound:
            return True  # forgotten, which only finished ones are
        if not OperationState(found.status.state).finished:
            raise Unavailable(f"the handoff of {unit.metadata.key} is not finished")
        by_this_one = unit.metadata.annotations.get(Annotation.OPERATION_UID) == found.metadata.uid
        return not by_this_one or found.status.commits_to(unit.metadata.uid)

    def _hold_back(self) -> None:
        """The API does not know who leads."""
        if not self.leading():
            raise kube.NotLeading("this activator no longer leads")


def worker_like(function: GPUUnit, name: str) -> GPUUnit:
    """A worker of the function: what the function's own unit runs, in its envelope, and serving the same queue."""
    spec = function.spec
    serverless = msgspec.structs.replace(
        spec.serverless or Serverless(), worker_of=function.metadata.name, min_available_count=0
    )
    return GPUUnit(
        metadata=ObjectMeta(namespace=function.metadata.namespace, name=name),
        spec=msgspec.structs.replace(spec, serverless=serverless, storage_mounts=(), running=True),
    )
