"""The handoff: turns one stock unit into one active unit, safely on any number of replicas.

The only lock is the optimistic concurrency of the API server. A handoff has six steps:

    record   create the Operation with the chosen stock     (the name is unique: duplicates use the same stock)
    attach   write the unit's name into its storages        (conditional write: only one unit gets a storage)
    claim    write the operationID onto the stock unit      (conditional write: only one operation gets the stock)
    create   create the active unit                         (the name is unique: one of the duplicates creates it)
    commit   write the unit's UID into the Operation        (conditional write: after it, the operation cannot fail)
    release  delete the stock unit after the response       (by UID: only the consumed stock unit)

The handoff chooses the first stock unit before it records the Operation, and stores the choice in the Operation's spec.
It writes every later choice into the status with a conditional write, even if it finds no stock.

Invariant: the stock in the spec belongs to attempt 1, and it is valid while the status has no attempt. Every write of
the status contains the current stock and attempt. After the first such write, only the status is valid.
`Operation.effective_status` implements this rule, and no other code reads stock, attempt or state of an unfinished
operation. If the Operation exists already, the handoff releases its own choice and continues with the recorded one.

The handoff deletes the stock unit last. Before the commit it can still undo everything: one write releases the claim.
The pod of the active unit waits until the pod of the stock unit is deleted. Every replica may repeat every step, and a
process may crash between two steps. A replay of the request, or the recovery of any replica, continues from the
Operation.
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
from gpu_runtime.contract.errors import (
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    NoStock,
    RuntimeFault,
    Unavailable,
    conflict_from,
)
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers, read_live
from gpu_runtime.runtime_api.kube_error_mapping import is_permanent_rejection, policy_rejection
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
"""Maximum number of create requests that this replica processes at the same time. Further requests wait in the order
of their arrival. Without the limit all of them would compete for the API server in every step, and none would finish
before its timeout."""


@dataclass
class _HandoffRun:
    """The state of one run that executes an operation. Other runs may execute the same operation at the same time, also
    in other processes."""

    operation: Operation
    held_uid: str = ""
    """UID of the stock unit that this run holds in the stock selector, or empty."""
    unit: GPUUnit | None = None
    """The unit that this run created, or the existing unit that another run created."""
    committed: bool = False
    """Whether this run committed the operation."""

    @property
    def operation_id(self) -> str:
        return self.operation.spec.operation_id


class Handoff:
    def __init__(  # noqa: PLR0913 - every dependency is a separate object
        self,
        client: KubeClient,
        informers: APIInformers,
        operation_store: OperationStore,
        stock_selector: StockSelector,
        attacher: StorageAttacher,
        *,
        consumed_deleter: ConsumedStockDeleter,
    ) -> None:
        self._client = client
        self._informers = informers
        self._operation_store = operation_store
        self._stock_selector = stock_selector
        self._attacher = attacher
        self._consumed_deleter = consumed_deleter
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_HANDOFFS)

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        """Return the unit, and whether this call created it. An earlier or a concurrent call may have created it."""
        async with self._semaphore:
            return await self._create(request)

    async def _create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        missing = await self._attacher.find_missing(request.namespace, request.storage_mounts)
        if missing and await self._operation_store.find(request.operation_id) is None:
            raise Invalid(missing)
        run = await self._record_operation(request)
        await self._drive(run)
        if run.operation.status.error is not None:
            raise conflict_from(run.operation.status.error.code, run.operation.status.error.message)
        if run.committed and run.unit:
            return run.unit, True
        return await self._get_created_unit(run.operation), False

    async def resume(self, operation: Operation) -> Operation:
        """Continue an operation from its recorded state until it is finished."""
        run = _HandoffRun(operation)
        await self._drive(run)
        return run.operation

    async def finish_operation(self, operation_id: str) -> None:
        """Finish an operation in progress, so that no replica creates its unit afterwards."""
        operation = await self._operation_store.find(operation_id)
        if operation is not None and is_in_progress(operation.effective_status):
            with contextlib.suppress(Conflict):  # the operation is reset: only a new request can resume it
                await self.resume(operation)

    async def _record_operation(self, request: CreateUnit) -> _HandoffRun:
        """Record the operation with its chosen stock, or find the operation that a duplicate request recorded."""
        target = OperationTarget(kind=GPU_UNITS.kind, namespace=request.namespace, name=request.name)
        stock = await self._choose_initial_stock(request)
        held_uid = stock.uid if stock is not None else ""
        try:
            kind, id_ = OperationType.CREATE_UNIT, request.operation_id
            recorded = await self._operation_store.record(kind, id_, request, target, stock)
        except BaseException:
            self._stock_selector.release_hold(held_uid)
            raise
        run = _HandoffRun(recorded.operation, held_uid)
        if recorded.operation.effective_status.stock != stock:
            self._release_hold(run)
        return run

    async def _choose_initial_stock(self, request: CreateUnit) -> SourceStock | None:
        """Choose the stock to record with the operation. Return None if there is none or the cache shows a conflict.

        If the result is None, the operation is recorded without stock, and `_choose_stock` checks again.
        """
        holder = Attachment(unit=request.name, operation_id=request.operation_id)
        if self._informers.units.store.get(ObjectKey(request.namespace, request.name)) is not None:
            return None
        try:
            await self._attacher.check_available(request.namespace, _storage_names(request), holder)
        except Conflict:
            return None
        unit = await self._stock_selector.hold(request.stock_namespace, request.spec_name)
        return self._source_stock(unit) if unit is not None else None

    async def _drive(self, run: _HandoffRun) -> None:
        try:
            while not is_finished(run.operation.status):
                try:
                    await self._step(run)
                except (kube.KubeConflict, StaleAttempt):  # another replica wrote the Operation: reload it
                    self._release_hold(run)
                    run.operation = await self._reload_operation(run)
                    await self._delete_orphan(run)
        finally:
            self._release_hold(run)
        self._enqueue_stock_deletion(run)

    async def _step(self, run: _HandoffRun) -> None:
        """Move the operation from its recorded state to the next one."""
        status = run.operation.effective_status
        if status.state == OperationState.ROLLING_BACK.value:
            await self._undo(run)
            run.operation = await self._operation_store.mark_failed(run.operation)
        elif status.stock is None or not await self._attach_and_claim(run, status.stock):
            await self._choose_stock(run)
        else:
            await self._create_and_commit(run)

    async def _choose_stock(self, run: _HandoffRun) -> None:
        request = decode_request(run.operation, _REQUEST_DECODER)
        if fault := await self._find_conflict(run, request):
            await self._reject(run, fault)
            return
        unit = await self._stock_selector.hold(request.stock_namespace, request.spec_name)
        if unit is None:
            await self._reject(
                run, NoStock(f"no Ready stock of {request.spec_name} is available; seed stock, or try again later")
            )
            return
        run.held_uid = unit.metadata.uid
        run.operation = await self._operation_store.select_stock(run.operation, self._source_stock(unit))

    async def _reject(self, run: _HandoffRun, fault: RuntimeFault) -> None:
        """Reset the operation and raise the fault. Nothing is claimed, so the same request may succeed later.

        Return without an error if a duplicate request has recorded stock in the meantime.
        """
        if run.operation.effective_status.stock is not None:
            run.operation = await self._operation_store.reset_to_accepted(run.operation)
            await self._detach_storages(run.operation)
            raise fault
        latest = await self._reload_operation(run)
        if latest.metadata.resource_version == run.operation.metadata.resource_version:
            raise fault
        run.operation = latest  # a duplicate request has recorded stock in the meantime

    async def _find_conflict(self, run: _HandoffRun, request: CreateUnit) -> RuntimeFault | None:
        """Return the conflict that can be detected without a write, or None."""
        if self._is_name_in_use(run):
            return _name_conflict(run)
        try:
            await self._attacher.check_available(request.namespace, _storage_names(request), _attachment(run.operation))
        except Conflict as fault:
            return fault
        return None

    async def _attach_and_claim(self, run: _HandoffRun, stock: SourceStock) -> bool:
        """Attach the storages, then claim the stock. Return False if other stock must be chosen."""
        request = decode_request(run.operation, _REQUEST_DECODER)
        try:
            await self._attacher.attach(request.namespace, _storage_names(request), _attachment(run.operation))
        except Conflict as fault:
            await self._reject(run, fault)
            return False
        claimed = await self._claim_stock(stock, run.operation_id)
        self._release_hold(run)
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
        """Read the stock unit from the API server. Return None if it was deleted."""
        unit = await self._get_live_unit(ObjectKey(stock.namespace, stock.name))
        if unit is None or unit.metadata.uid != stock.uid:
            self._informers.units.record_delete(ObjectKey(stock.namespace, stock.name), stock.uid)
            return None
        return unit

    async def _create_and_commit(self, run: _HandoffRun) -> None:
        try:
            run.unit = await self._create_unit(run)
        except Conflict as fault:
            run.operation = await self._operation_store.mark_rolling_back(run.operation, fault)
            return
        run.operation = await self._operation_store.mark_succeeded(run.operation, target_uid=run.unit.metadata.uid)
        run.committed = True

    async def _create_unit(self, run: _HandoffRun) -> GPUUnit:
        """Create the unit, or return the unit that another run of the same attempt created."""
        manifest = _unit_manifest(run.operation)
        while True:
            try:
                created = await self._client.create(GPU_UNITS, manifest)
            except kube.KubeAlreadyExists:
                existing = await self._get_live_unit(_target_key(run.operation))
            except kube.KubeError as error:
                if is_permanent_rejection(error):
                    raise policy_rejection(error, f"the cluster rejected the unit: {error}") from error
                raise
            else:
                self._informers.units.record_write(created)
                return created
            if existing is not None and not created_by(run.operation, existing):
                raise _name_conflict(run)
            if existing is None:
                continue
            if attempt_of(existing) > run.operation.effective_status.attempt:
                raise StaleAttempt
            if not is_orphan(run.operation, existing):
                return existing
            await self._delete_unit(existing.metadata.key, existing.metadata.uid)

    async def _delete_orphan(self, run: _HandoffRun) -> None:
        if run.unit is not None and is_orphan(run.operation, run.unit):
            await self._delete_unit(run.unit.metadata.key, run.unit.metadata.uid)
            run.unit = None

    def _enqueue_stock_deletion(self, run: _HandoffRun) -> None:
        """Delete the consumed stock in the background after the commit.

        Until the deletion, its claim prevents other operations from using it.
        """
        status = run.operation.status
        if run.unit is not None and status.stock is not None and status.state == OperationState.SUCCEEDED.value:
            self._consumed_deleter.enqueue(status.stock)

    async def _undo(self, run: _HandoffRun) -> None:
        """Delete the unit, release the claim and detach the storages of an operation that is rolling back."""
        existing = await self._get_live_unit(_target_key(run.operation))
        if existing is not None and created_by(run.operation, existing):
            await self._delete_unit(existing.metadata.key, existing.metadata.uid)
        stock = run.operation.effective_status.stock
        while stock is not None and not await release_claim(
            self._client, await self._get_live_stock(stock), run.operation_id
        ):
            pass  # try again: another writer was first, usually the controller with a status update
        await self._detach_storages(run.operation)

    async def _detach_storages(self, operation: Operation) -> None:
        request = decode_request(operation, _REQUEST_DECODER)
        id_, attempt = operation.spec.operation_id, operation.effective_status.attempt
        await self._attacher.detach(request.namespace, _storage_names(request), id_, attempt)

    async def _delete_unit(self, key: ObjectKey, uid: str) -> None:
        # NotFound: the unit is already deleted. Conflict: another unit has its name now.
        with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):
            await self._client.delete(GPU_UNITS, key, uid=uid)
        self._informers.units.record_delete(key, uid)

    async def _get_created_unit(self, operation: Operation) -> GPUUnit:
        """Return the unit that a succeeded operation created. Raises Gone if it was deleted."""
        key, uid = _target_key(operation), operation.status.target_uid
        unit = self._informers.units.store.get(key)
        if unit is None or unit.metadata.uid != uid:
            unit = await self._get_live_unit(key)
        if unit is None or unit.metadata.uid != uid:
            raise Gone(
                f"operation {operation.spec.operation_id} created unit {key.name}, which was deleted afterwards; choose"
                " a new operationID to create it again"
            )
        return unit

    async def _get_live_unit(self, key: ObjectKey) -> GPUUnit | None:
        return await read_live(self._client, self._informers.units, key)

    async def _reload_operation(self, run: _HandoffRun) -> Operation:
        latest = await self._operation_store.find(run.operation_id)
        if latest is None:
            raise Unavailable(f"operation {run.operation_id} was deleted; send the request again")
        return latest

    def _release_hold(self, run: _HandoffRun) -> None:
        """End the hold of this run on its stock unit, after the claim has succeeded or failed."""
        self._stock_selector.release_hold(run.held_uid)
        run.held_uid = ""

    def _is_name_in_use(self, run: _HandoffRun) -> bool:
        cached = self._informers.units.store.get(_target_key(run.operation))
        return cached is not None and not created_by(run.operation, cached)

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


def _name_conflict(run: _HandoffRun) -> AlreadyExists:
    return AlreadyExists(f"name: unit {_target_key(run.operation).name} already exists; choose another name")


def _unit_manifest(operation: Operation) -> Manifest:
    """Build the active unit: the caller's image with the reservation of the stock."""
    request, stock = decode_request(operation, _REQUEST_DECODER), operation.effective_status.stock
    if stock is None:
        raise ValueError(f"operation {operation.spec.operation_id} has no stock")
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
