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
from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationTarget, OperationType, SourceStock
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Gone, Invalid, NoStock, RuntimeFault, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers, read_live
from gpu_runtime.runtime_api.kube_error_mapping import is_permanent_rejection
from gpu_runtime.runtime_api.operations.operation_store import (
    OperationStore,
    StaleAttempt,
    attempt_of,
    created_by,
    is_finished,
    is_in_progress,
    is_orphan,
)
from gpu_runtime.runtime_api.operations.request_codec import decode_request
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStockDeleter
from gpu_runtime.runtime_api.stock.stock_claim import release_claim
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.stock_selector import StockSelector, is_claimable

_REQUEST_DECODER = msgspec.json.Decoder(CreateUnit)

MAX_CONCURRENT_HANDOFFS = 8
"""How many creates this replica has under way at a time. The others wait, in the order of their coming: all at once
they would wait for the API server instead, each with every one of its steps, until none is answered in time."""


@dataclass
class _HandoffRun:
    """One process's way through an operation, beside others that may be on the same way."""

    operation: Operation
    held_uid: str = ""
    """UID of the stock that it has reserved on the shelf, if any."""
    unit: GPUUnit | None = None
    """What this course made, or found to be made by another one."""
    committed: bool = False
    """Whether it was this course that made the operation succeed."""

    @property
    def operation_id(self) -> str:
        return self.operation.spec.operation_id


class Handoff:
    def __init__(  # noqa: PLR0913 - what it takes from, and what it writes down where
        self,
        client: KubeClient,
        caches: APIInformers,
        ledger: OperationStore,
        shelf: StockSelector,
        attachments: StorageAttacher,
        *,
        consumed_deleter: ConsumedStockDeleter,
    ) -> None:
        self._client = client
        self._informers = caches
        self._operation_store = ledger
        self._stock_selector = shelf
        self._attacher = attachments
        self._consumed_deleter = consumed_deleter
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_HANDOFFS)

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """The unit, and whether it was this call that made it and not an earlier or simultaneous one."""
        async with self._semaphore:
            return await self._create(request)

    async def _create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        missing = await self._attacher.find_missing(request.namespace, request.storage_mounts)
        if missing and await self._operation_store.find(request.operation_id) is None:
            raise Invalid(missing)
        course = await self._record_operation(request)
        await self._drive(course)
        if course.operation.status.error is not None:
            raise Conflict(course.operation.status.error.message)
        if course.committed and course.unit:
            return course.unit, True
        return await self._get_created_unit(course.operation), False

    async def resume(self, operation: Operation) -> Operation:
        """Drive an operation to its end from wherever somebody left it."""
        course = _HandoffRun(operation)
        await self._drive(course)
        return course.operation

    async def finish_operation(self, operation_id: str) -> None:
        """End an operation that is under way, so that nobody makes its unit after this."""
        operation = await self._operation_store.find(operation_id)
        if operation is not None and is_in_progress(operation.effective_status):
            with contextlib.suppress(Conflict):  # it has come to its end without a unit, which will do
                await self.resume(operation)

    async def _record_operation(self, request: CreateUnit) -> _HandoffRun:
        """Record the operation, and with it the stock that it takes; or find it recorded."""
        target = OperationTarget(kind=GPU_UNITS.kind, namespace=request.namespace, name=request.name)
        stock = await self._choose_initial_stock(request)
        reserved = stock.uid if stock is not None else ""
        try:
            kind, id_ = OperationType.CREATE_UNIT, request.operation_id
            recorded = await self._operation_store.record(kind, id_, request, target, stock)
        except BaseException:
            self._stock_selector.release_hold(reserved)
            raise
        course = _HandoffRun(recorded.operation, reserved)
        if recorded.operation.effective_status.stock != stock:
            self._release_hold(course)
        return course

    async def _choose_initial_stock(self, request: CreateUnit) -> SourceStock | None:
        """Stock to be recorded with the operation. None where there is none, and where something seems to stand in the
        way: the record comes first then, and whoever drives it finds out."""
        holder = Attachment(unit=request.name, operation_id=request.operation_id)
        if self._informers.units.store.get(ObjectKey(request.namespace, request.name)) is not None:
            return None
        try:
            await self._attacher.check_available(request.namespace, _storage_names(request), holder)
        except Conflict:
            return None
        unit = await self._stock_selector.hold(request.stock_namespace, request.spec_name)
        return self._source_stock(unit) if unit is not None else None

    async def _drive(self, course: _HandoffRun) -> None:
        try:
            while not is_finished(course.operation.status):
                try:
                    await self._step(course)
                except (kube.KubeConflict, StaleAttempt):  # somebody else wrote the record: go on from what it says now
                    self._release_hold(course)
                    course.operation = await self._reload_operation(course)
                    await self._delete_orphan(course)
        finally:
            self._release_hold(course)
        self._enqueue_stock_deletion(course)

    async def _step(self, course: _HandoffRun) -> None:
        """From one state of the record to the next."""
        progress = course.operation.effective_status
        if progress.state == OperationState.ROLLING_BACK.value:
            await self._undo(course)
            course.operation = await self._operation_store.mark_failed(course.operation)
        elif progress.stock is None or not await self._attach_and_claim(course, progress.stock):
            await self._choose_stock(course)
        else:
            await self._create_and_commit(course)

    async def _choose_stock(self, course: _HandoffRun) -> None:
        request = decode_request(course.operation, _REQUEST_DECODER)
        if fault := await self._find_conflict(course, request):
            await self._reject(course, fault)
            return
        unit = await self._stock_selector.hold(request.stock_namespace, request.spec_name)
        if unit is None:
            await self._reject(
                course, NoStock(f"no Ready stock of {request.spec_name} is left; seed some, or try later")
            )
            return
        course.held_uid = unit.metadata.uid
        course.operation = await self._operation_store.select_stock(course.operation, self._source_stock(unit))

    async def _reject(self, course: _HandoffRun, fault: RuntimeFault) -> None:
        """Nothing is claimed yet, so the operation goes back to its beginning: the same request may succeed later."""
        if course.operation.effective_status.stock is not None:
            course.operation = await self._operation_store.reset_to_accepted(course.operation)
            await self._detach_storages(course.operation)
            raise fault
        latest = await self._reload_operation(course)
        if latest.metadata.resource_version == course.operation.metadata.resource_version:
            raise fault
        course.operation = latest  # a duplicate has found stock meanwhile

    async def _find_conflict(self, course: _HandoffRun, request: CreateUnit) -> RuntimeFault | None:
        """What stands in the way as far as can be told without writing anything."""
        if self._is_name_in_use(course):
            return _name_conflict(course)
        try:
            await self._attacher.check_available(
                request.namespace, _storage_names(request), _attachment(course.operation)
            )
        except Conflict as fault:
            return fault
        return None

    async def _attach_and_claim(self, course: _HandoffRun, stock: SourceStock) -> bool:
        """Attach the storages, then claim the stock. False: it cannot be claimed, choose another."""
        request = decode_request(course.operation, _REQUEST_DECODER)
        try:
            await self._attacher.attach(request.namespace, _storage_names(request), _attachment(course.operation))
        except Conflict as fault:
            await self._reject(course, fault)
            return False
        claimed = await self._claim_stock(stock, course.operation_id)
        self._release_hold(course)
        return claimed

    async def _claim_stock(self, stock: SourceStock, operation_id: str) -> bool:
        unit = self._informers.units.store.get(ObjectKey(stock.namespace, stock.name))
        if unit is None or unit.metadata.uid != stock.uid or not is_claimable(unit):
            unit = await self._get_live_stock(stock)
        while unit is not None:
            if unit.metadata.annotations.get(Annotation.CLAIMED_BY) == operation_id:
                return True
            if not is_claimable(unit):
                return False
            patch = {"metadata": {"annotations": {Annotation.CLAIMED_BY: operation_id}}}
            version = unit.metadata.resource_version
            try:
                unit = await self._client.merge_patch(GPU_UNITS, unit.metadata.key, patch, resource_version=version)
                self._informers.units.record_write(unit)
            except (kube.KubeConflict, kube.KubeNotFound):
                unit = await self._get_live_stock(stock)
        return False

    async def _get_live_stock(self, stock: SourceStock) -> GPUUnit | None:
        """The stock as it is now; None when it is gone."""
        unit = await self._get_live_unit(ObjectKey(stock.namespace, stock.name))
        if unit is None or unit.metadata.uid != stock.uid:
            self._informers.units.record_delete(ObjectKey(stock.namespace, stock.name), stock.uid)
            return None
        return unit

    async def _create_and_commit(self, course: _HandoffRun) -> None:
        try:
            course.unit = await self._create_unit(course)
        except Conflict as fault:
            course.operation = await self._operation_store.mark_rolling_back(course.operation, fault)
            return
        course.operation = await self._operation_store.mark_succeeded(
            course.operation, target_uid=course.unit.metadata.uid
        )
        course.committed = True

    async def _create_unit(self, course: _HandoffRun) -> GPUUnit:
        """The unit, made now or by another course of the same attempt."""
        manifest = _unit_manifest(course.operation)
        while True:
            try:
                made = await self._client.create(GPU_UNITS, manifest)
            except kube.KubeAlreadyExists:
                found = await self._get_live_unit(_target_key(course.operation))
            except kube.KubeError as error:
                if is_permanent_rejection(error):
                    raise Conflict(f"the cluster refuses the unit: {error}") from error
                raise
            else:
                self._informers.units.record_write(made)
                return made
            if found is not None and not created_by(course.operation, found):
                raise _name_conflict(course)
            if found is None:
                continue
            if attempt_of(found) > course.operation.effective_status.attempt:
                raise StaleAttempt
            if not is_orphan(course.operation, found):
                return found
            await self._delete_unit(found.metadata.key, found.metadata.uid)

    async def _delete_orphan(self, course: _HandoffRun) -> None:
        if course.unit is not None and is_orphan(course.operation, course.unit):
            await self._delete_unit(course.unit.metadata.key, course.unit.metadata.uid)
            course.unit = None

    def _enqueue_stock_deletion(self, course: _HandoffRun) -> None:
        """After the commit the stock has become the unit, and goes. Nobody waits for that: it is claimed."""
        status = course.operation.status
        if course.unit is not None and status.stock is not None and status.state == OperationState.SUCCEEDED.value:
            self._consumed_deleter.enqueue(status.stock)

    async def _undo(self, course: _HandoffRun) -> None:
        """Give back what was taken, once the record says that this operation can only fail."""
        found = await self._get_live_unit(_target_key(course.operation))
        if found is not None and created_by(course.operation, found):
            await self._delete_unit(found.metadata.key, found.metadata.uid)
        stock = course.operation.effective_status.stock
        while stock is not None and not await release_claim(
            self._client, await self._get_live_stock(stock), course.operation_id
        ):
            pass  # most likely the controller has reported on it
        await self._detach_storages(course.operation)

    async def _detach_storages(self, operation: Operation) -> None:
        request = decode_request(operation, _REQUEST_DECODER)
        id_, attempt = operation.spec.operation_id, operation.effective_status.attempt
        await self._attacher.detach(request.namespace, _storage_names(request), id_, attempt)

    async def _delete_unit(self, key: ObjectKey, uid: str) -> None:
        with contextlib.suppress(
            kube.KubeNotFound, kube.KubeConflict
        ):  # it is gone, and one of its name is another one
            await self._client.delete(GPU_UNITS, key, uid=uid)
        self._informers.units.record_delete(key, uid)

    async def _get_created_unit(self, operation: Operation) -> GPUUnit:
        """What a finished operation made, if it is still there."""
        key, uid = _target_key(operation), operation.status.target_uid
        unit = self._informers.units.store.get(key)
        if unit is None or unit.metadata.uid != uid:
            unit = await self._get_live_unit(key)
        if unit is None or unit.metadata.uid != uid:
            raise Gone(f"operation {operation.spec.operation_id} made unit {key.name}, which has been deleted since")
        return unit

    async def _get_live_unit(self, key: ObjectKey) -> GPUUnit | None:
        return await read_live(self._client, self._informers.units, key)

    async def _reload_operation(self, course: _HandoffRun) -> Operation:
        found = await self._operation_store.find(course.operation_id)
        if found is None:
            raise Unavailable(f"the record of operation {course.operation_id} is gone; send the request again")
        return found

    def _release_hold(self, course: _HandoffRun) -> None:
        """The stock that it has reserved is claimed now, or will not be."""
        self._stock_selector.release_hold(course.held_uid)
        course.held_uid = ""

    def _is_name_in_use(self, course: _HandoffRun) -> bool:
        known = self._informers.units.store.get(_target_key(course.operation))
        return known is not None and not created_by(course.operation, known)

    def _source_stock(self, unit: GPUUnit) -> SourceStock:
        return SourceStock(
            namespace=unit.metadata.namespace,
            name=unit.metadata.name,
            uid=unit.metadata.uid,
            memory=unit.spec.memory,
            gpu=unit.spec.gpu,
            node=self._informers.node_of(unit),
        )


def _target_key(operation: Operation) -> ObjectKey:
    return ObjectKey(operation.spec.target.namespace, operation.spec.target.name)


def _storage_names(request: CreateUnit) -> list[str]:
    return [mount.name for mount in request.storage_mounts]


def _attachment(operation: Operation) -> Attachment:
    unit, attempt = operation.spec.target.name, operation.effective_status.attempt
    return Attachment(unit=unit, operation_id=operation.spec.operation_id, attempt=attempt)


def _name_conflict(course: _HandoffRun) -> Conflict:
    return Conflict(f"name: there is already a unit {_target_key(course.operation).name}; choose another name")


def _unit_manifest(operation: Operation) -> Manifest:
    """The active unit: the user's image in the envelope of the stock."""
    request, stock = decode_request(operation, _REQUEST_DECODER), operation.effective_status.stock
    if stock is None:
        raise ValueError(f"operation {operation.spec.operation_id} has chosen no stock")
    annotations = {
        Annotation.OPERATION_ID: operation.spec.operation_id,
        Annotation.OPERATION_UID: operation.metadata.uid,
        Annotation.OPERATION_ATTEMPT: str(operation.effective_status.attempt),
        Annotation.REQUEST_HASH: operation.spec.request_hash,
        Annotation.SOURCE_STOCK_NAME: stock.name,
        Annotation.SOURCE_STOCK_NAMESPACE: stock.namespace,
        Annotation.SOURCE_STOCK_UID: stock.uid,
    }
    if stock.node:
        annotations[Annotation.SOURCE_STOCK_NODE] = stock.node
    metadata: dict[str, Any] = {"name": request.name, "namespace": request.namespace, "annotations": annotations}
    return {"metadata": metadata, "spec": msgspec.to_builtins(request.spec(stock.memory, stock.gpu))}
