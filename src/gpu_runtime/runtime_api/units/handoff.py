"""Stock in, active unit out, for any number of replicas, with no lock but the API server's optimistic concurrency.

    record   create the operation, with the stock to take    (its name: duplicates work on the same stock)
    attach   write the unit's name onto its storages         (conditional: other units lose)
    claim    write the operation's name onto the stock       (conditional: other operations lose)
    make     create the active unit                          (its name: one of the duplicates makes it)
    commit   write the unit's UID into the operation         (conditional: from here it can only have succeeded)
    release  delete the stock, after the answer              (its UID: only ever the one that was consumed)

The first choice is made before the record and written with it, into the spec. Whatever is chosen later, or that nothing
is, is written into the status, conditionally. Invariant: the spec's stock is attempt 1 and counts while the status
knows of no attempt; every write of the status says the stock and the attempt that count from then on, so from the first
one the status alone counts. `Operation.progress` is the one place that tells, and nobody reads stock, attempt or state
of an operation that is not finished anywhere else. Whoever finds the operation recorded already lets go of the stock
that it had in mind, and goes on with what the record says.

The stock goes last: until the commit nothing is lost that could not be given back, and giving it back is one write. The
unit's own pod waits until the stock's is gone. Every step may be repeated by anyone, and a process may die between any
two of them: the replay of the request or the sweep of any replica goes on from the operation's record.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import msgspec

from gpu_runtime.contract.crd.gpu_storage import Attachment
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, SourceStock, Target
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Gone, Invalid, NoStock, RuntimeFault, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key, Manifest
from gpu_runtime.runtime_api.api_informers import Caches, read_live
from gpu_runtime.runtime_api.kube_error_mapping import refuses_for_good
from gpu_runtime.runtime_api.operations.operation_store import (
    Ledger,
    Outdated,
    attempt_of,
    disowns,
    is_finished,
    is_under_way,
    made_by,
)
from gpu_runtime.runtime_api.operations.request_codec import recorded
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStock
from gpu_runtime.runtime_api.stock.stock_claim import give_back
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.stock_selector import Shelf, is_free

_REQUEST = msgspec.json.Decoder(CreateUnit)

AT_ONCE = 8
"""How many creates this replica has under way at a time. The others wait, in the order of their coming: all at once
they would wait for the API server instead, each with every one of its steps, until none is answered in time."""


@dataclass
class _Course:
    """One process's way through an operation, beside others that may be on the same way."""

    operation: Operation
    reserved: str = ""
    """UID of the stock that it has reserved on the shelf, if any."""
    unit: GPUUnit | None = None
    """What this course made, or found to be made by another one."""
    committed: bool = False
    """Whether it was this course that made the operation succeed."""

    @property
    def id(self) -> str:
        return self.operation.spec.operation_id


class Handoff:
    def __init__(  # noqa: PLR0913 - what it takes from, and what it writes down where
        self,
        client: Client,
        caches: Caches,
        ledger: Ledger,
        shelf: Shelf,
        attachments: Attachments,
        *,
        consumed: ConsumedStock,
    ) -> None:
        self._client = client
        self._caches = caches
        self._ledger = ledger
        self._shelf = shelf
        self._attachments = attachments
        self._consumed = consumed
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """The unit, and whether it was this call that made it and not an earlier or simultaneous one."""
        async with self._turns:
            return await self._create(request)

    async def _create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        missing = await self._attachments.missing(request.namespace, request.storage_mounts)
        if missing and await self._ledger.find(request.operation_id) is None:
            raise Invalid(missing)
        course = await self._begin(request)
        await self._drive(course)
        if course.operation.status.error is not None:
            raise Conflict(course.operation.status.error.message)
        if course.committed and course.unit:
            return course.unit, True
        return await self._unit_of(course.operation), False

    async def carry(self, operation: Operation) -> Operation:
        """Drive an operation to its end from wherever somebody left it."""
        course = _Course(operation)
        await self._drive(course)
        return course.operation

    async def settle(self, operation_id: str) -> None:
        """End an operation that is under way, so that nobody makes its unit after this."""
        operation = await self._ledger.find(operation_id)
        if operation is not None and is_under_way(operation.progress):
            with contextlib.suppress(Conflict):  # it has come to its end without a unit, which will do
                await self.carry(operation)

    async def _begin(self, request: CreateUnit) -> _Course:
        """Record the operation, and with it the stock that it takes; or find it recorded."""
        target = Target(kind=GPU_UNITS.kind, namespace=request.namespace, name=request.name)
        stock = await self._first_choice(request)
        reserved = stock.uid if stock is not None else ""
        try:
            kind, id_ = OperationType.CREATE_UNIT, request.operation_id
            recorded = await self._ledger.record(kind, id_, request, target, stock)
        except BaseException:
            self._shelf.release(reserved)
            raise
        course = _Course(recorded.operation, reserved)
        if recorded.operation.progress.stock != stock:
            self._let_go(course)
        return course

    async def _first_choice(self, request: CreateUnit) -> SourceStock | None:
        """Stock to be recorded with the operation. None where there is none, and where something seems to stand in the
        way: the record comes first then, and whoever drives it finds out."""
        holder = Attachment(unit=request.name, operation_id=request.operation_id)
        if self._caches.units.store.get(Key(request.namespace, request.name)) is not None:
            return None
        try:
            await self._attachments.check(request.namespace, _names(request), holder)
        except Conflict:
            return None
        unit = await self._shelf.reserve(request.stock_namespace, request.spec_name)
        return self._source(unit) if unit is not None else None

    async def _drive(self, course: _Course) -> None:
        try:
            while not is_finished(course.operation.status):
                try:
                    await self._step(course)
                except (kube.Conflict, Outdated):  # somebody else wrote the record: go on from what it says now
                    self._let_go(course)
                    course.operation = await self._latest(course)
                    await self._drop_disowned(course)
        finally:
            self._let_go(course)
        self._clear_up(course)

    async def _step(self, course: _Course) -> None:
        """From one state of the record to the next."""
        progress = course.operation.progress
        if progress.state == OperationState.GIVING_UP.value:
            await self._undo(course)
            course.operation = await self._ledger.fail(course.operation)
        elif progress.stock is None or not await self._take(course, progress.stock):
            await self._choose(course)
        else:
            await self._make_and_commit(course)

    async def _choose(self, course: _Course) -> None:
        request = recorded(course.operation, _REQUEST)
        if fault := await self._obstacle(course, request):
            await self._refuse(course, fault)
            return
        unit = await self._shelf.reserve(request.stock_namespace, request.spec_name)
        if unit is None:
            await self._refuse(
                course, NoStock(f"no Ready stock of {request.spec_name} is left; seed some, or try later")
            )
            return
        course.reserved = unit.metadata.uid
        course.operation = await self._ledger.choose(course.operation, self._source(unit))

    async def _refuse(self, course: _Course, fault: RuntimeFault) -> None:
        """Nothing is claimed yet, so the operation goes back to its beginning: the same request may succeed later."""
        if course.operation.progress.stock is not None:
            course.operation = await self._ledger.step_back(course.operation)
            await self._release_storages(course.operation)
            raise fault
        latest = await self._latest(course)
        if latest.metadata.resource_version == course.operation.metadata.resource_version:
            raise fault
        course.operation = latest  # a duplicate has found stock meanwhile

    async def _obstacle(self, course: _Course, request: CreateUnit) -> RuntimeFault | None:
        """What stands in the way as far as can be told without writing anything."""
        if self._name_is_taken(course):
            return _name_taken(course)
        try:
            await self._attachments.check(request.namespace, _names(request), _holder(course.operation))
        except Conflict as fault:
            return fault
        return None

    async def _take(self, course: _Course, stock: SourceStock) -> bool:
        """Attach the storages, then claim the stock. False: it cannot be claimed, choose another."""
        request = recorded(course.operation, _REQUEST)
        try:
            await self._attachments.attach(request.namespace, _names(request), _holder(course.operation))
        except Conflict as fault:
            await self._refuse(course, fault)
            return False
        claimed = await self._claimed(stock, course.id)
        self._let_go(course)
        return claimed

    async def _claimed(self, stock: SourceStock, operation_id: str) -> bool:
        unit = self._caches.units.store.get(Key(stock.namespace, stock.name))
        if unit is None or unit.metadata.uid != stock.uid or not is_free(unit):
            unit = await self._live_stock(stock)
        while unit is not None:
            if unit.metadata.annotations.get(Annotation.CLAIMED_BY) == operation_id:
                return True
            if not is_free(unit):
                return False
            patch = {"metadata": {"annotations": {Annotation.CLAIMED_BY: operation_id}}}
            version = unit.metadata.resource_version
            try:
                unit = await self._client.merge_patch(GPU_UNITS, unit.metadata.key, patch, resource_version=version)
                self._caches.units.learn(unit)
            except (kube.Conflict, kube.NotFound):
                unit = await self._live_stock(stock)
        return False

    async def _live_stock(self, stock: SourceStock) -> GPUUnit | None:
        """The stock as it is now; None when it is gone."""
        unit = await self._live(Key(stock.namespace, stock.name))
        if unit is None or unit.metadata.uid != stock.uid:
            self._caches.units.forget(Key(stock.namespace, stock.name), stock.uid)
            return None
        return unit

    async def _make_and_commit(self, course: _Course) -> None:
        try:
            course.unit = await self._make(course)
        except Conflict as fault:
            course.operation = await self._ledger.give_up(course.operation, fault)
            return
        course.operation = await self._ledger.succeed(course.operation, target_uid=course.unit.metadata.uid)
        course.committed = True

    async def _make(self, course: _Course) -> GPUUnit:
        """The unit, made now or by another course of the same attempt."""
        manifest = _manifest(course.operation)
        while True:
            try:
                made = await self._client.create(GPU_UNITS, manifest)
            except kube.AlreadyExists:
                found = await self._live(_target(course.operation))
            except kube.KubeError as error:
                if refuses_for_good(error):
                    raise Conflict(f"the cluster refuses the unit: {error}") from error
                raise
            else:
                self._caches.units.learn(made)
                return made
            if found is not None and not made_by(course.operation, found):
                raise _name_taken(course)
            if found is None:
                continue
            if attempt_of(found) > course.operation.progress.attempt:
                raise Outdated
            if not disowns(course.operation, found):
                return found
            await self._delete(found.metadata.key, found.metadata.uid)

    async def _drop_disowned(self, course: _Course) -> None:
        if course.unit is not None and disowns(course.operation, course.unit):
            await self._delete(course.unit.metadata.key, course.unit.metadata.uid)
            course.unit = None

    def _clear_up(self, course: _Course) -> None:
        """After the commit the stock has become the unit, and goes. Nobody waits for that: it is claimed."""
        status = course.operation.status
        if course.unit is not None and status.stock is not None and status.state == OperationState.SUCCEEDED.value:
            self._consumed.clear(status.stock)

    async def _undo(self, course: _Course) -> None:
        """Give back what was taken, once the record says that this operation can only fail."""
        found = await self._live(_target(course.operation))
        if found is not None and made_by(course.operation, found):
            await self._delete(found.metadata.key, found.metadata.uid)
        stock = course.operation.progress.stock
        while stock is not None and not await give_back(self._client, await self._live_stock(stock), course.id):
            pass  # most likely the controller has reported on it
        await self._release_storages(course.operation)

    async def _release_storages(self, operation: Operation) -> None:
        request = recorded(operation, _REQUEST)
        id_, attempt = operation.spec.operation_id, operation.progress.attempt
        await self._attachments.release(request.namespace, _names(request), id_, attempt)

    async def _delete(self, key: Key, uid: str) -> None:
        with contextlib.suppress(kube.NotFound, kube.Conflict):  # it is gone, and one of its name is another one
            await self._client.delete(GPU_UNITS, key, uid=uid)
        self._caches.units.forget(key, uid)

    async def _unit_of(self, operation: Operation) -> GPUUnit:
        """What a finished operation made, if it is still there."""
        key, uid = _target(operation), operation.status.target_uid
        unit = self._caches.units.store.get(key)
        if unit is None or unit.metadata.uid != uid:
            unit = await self._live(key)
        if unit is None or unit.metadata.uid != uid:
            raise Gone(f"operation {operation.spec.operation_id} made unit {key.name}, which has been deleted since")
        return unit

    async def _live(self, key: Key) -> GPUUnit | None:
        return await read_live(self._client, self._caches.units, key)

    async def _latest(self, course: _Course) -> Operation:
        found = await self._ledger.find(course.id)
        if found is None:
            raise Unavailable(f"the record of operation {course.id} is gone; send the request again")
        return found

    def _let_go(self, course: _Course) -> None:
        """The stock that it has reserved is claimed now, or will not be."""
        self._shelf.release(course.reserved)
        course.reserved = ""

    def _name_is_taken(self, course: _Course) -> bool:
        known = self._caches.units.store.get(_target(course.operation))
        return known is not None and not made_by(course.operation, known)

    def _source(self, unit: GPUUnit) -> SourceStock:
        return SourceStock(
            namespace=unit.metadata.namespace,
            name=unit.metadata.name,
            uid=unit.metadata.uid,
            memory=unit.spec.memory,
            gpu=unit.spec.gpu,
            node=self._caches.node_of(unit),
        )


def _target(operation: Operation) -> Key:
    return Key(operation.spec.target.namespace, operation.spec.target.name)


def _names(request: CreateUnit) -> list[str]:
    return [mount.name for mount in request.storage_mounts]


def _holder(operation: Operation) -> Attachment:
    unit, attempt = operation.spec.target.name, operation.progress.attempt
    return Attachment(unit=unit, operation_id=operation.spec.operation_id, attempt=attempt)


def _name_taken(course: _Course) -> Conflict:
    return Conflict(f"name: there is already a unit {_target(course.operation).name}; choose another name")


def _manifest(operation: Operation) -> Manifest:
    """The active unit: the user's image in the envelope of the stock."""
    request, stock = recorded(operation, _REQUEST), operation.progress.stock
    if stock is None:
        raise ValueError(f"operation {operation.spec.operation_id} has chosen no stock")
    annotations = {
        Annotation.OPERATION_ID: operation.spec.operation_id,
        Annotation.OPERATION_UID: operation.metadata.uid,
        Annotation.OPERATION_ATTEMPT: str(operation.progress.attempt),
        Annotation.REQUEST_HASH: operation.spec.request_hash,
        Annotation.SOURCE_STOCK_NAME: stock.name,
        Annotation.SOURCE_STOCK_NAMESPACE: stock.namespace,
        Annotation.SOURCE_STOCK_UID: stock.uid,
    }
    if stock.node:
        annotations[Annotation.SOURCE_STOCK_NODE] = stock.node
    metadata: dict[str, Any] = {"name": request.name, "namespace": request.namespace, "annotations": annotations}
    return {"metadata": metadata, "spec": msgspec.to_builtins(request.spec(stock.memory, stock.gpu))}
