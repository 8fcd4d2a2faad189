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

An Operation without stock contains only the hash of its request, because it may wait for a long time and only its
caller can resume it. The write that selects stock for it also writes the request, so that recovery can resume it.

Invariant: the stock in the spec belongs to attempt 1, and it is valid while the status has no attempt. Every write of
the status contains the current stock and attempt. After the first such write, only the status is valid.
`Operation.effective_status` implements this rule, and no other code reads stock, attempt or state of an unfinished
operation. If the Operation exists already, the handoff releases its own choice and continues with the recorded one.

The stock is a stock unit, or a prepared pod of a pool. The handoff deletes a stock unit last. Before the commit it can
still undo everything: one write releases the claim of a stock unit, or deletes a claimed pod. The pod of the active
unit starts as soon as the scheduler finds free GPUs: those of the stock unit, or others.

Every replica may repeat every step, and a process may crash between two steps. A replay of the request, or the recovery
of any replica, continues from the Operation. `handoff_decision` decides every step, and this module executes it.
"""

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationTarget, SourceStock
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import DuplicateRequestID, Gone, Invalid, RuntimeFault, stored_fault
from gpu_runtime.contract.operation_rules import (
    AttachState,
    Ownership,
    attach_state,
    has_succeeded,
    owned_manifest,
    ownership,
)
from gpu_runtime.contract.operation_transitions import Committed, StockLost, Transition
from gpu_runtime.contract.prepared_pods import claim_patch
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest, recorded_request
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.live_objects import create_or_read, delete_this, patch_unchanged, read_live
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.route import ANONYMOUS
from gpu_runtime.runtime_api.kube_error_mapping import permanent_fault
from gpu_runtime.runtime_api.operations.drive import OperationDriver, StaleAttempt
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.units.caller_semaphore import CallerSemaphore
from gpu_runtime.runtime_api.units.handoff_decision import (
    STOCK,
    UNIT,
    CreateActiveUnit,
    DeleteUnit,
    HandoffAction,
    HoldStock,
    ObservedHandoff,
    ReadLive,
    ReadOperation,
    RefuseRequest,
    ReleaseStock,
    StepBack,
    WriteAttachment,
    WriteClaim,
    decide,
)
from gpu_runtime.runtime_api.units.metrics import StockMetrics
from gpu_runtime.runtime_api.units.request_id_owner import require_free_request_id
from gpu_runtime.runtime_api.units.stock_selector import StockOffer, StockSelector
from gpu_runtime.runtime_api.units.waiting_limit import WaitingLimit

S = TypeVar("S", GPUUnit, Pod)

DELETION_DELAY_SECONDS = 3.0
"""How long consumed stock stays after the response at most. It is deleted when the unit is Ready. To end the stock pod,
the node needs CPU time, and the pod of the unit would start later. If the pod of the unit needs the GPUs of the stock,
the controller manager ends the stock pod before."""

READY_POLL_SECONDS = 0.1


@dataclass
class HandoffRun:
    """One run that executes an operation. Other runs may execute the same operation at the same time, also in other
    processes."""

    request: RecordedUnitRequest
    held_uid: str = ""
    """UID of the stock unit that this run holds in the stock selector, or empty."""
    unit: GPUUnit | None = None
    """The unit that this run created, or to which it committed the operation."""
    committed: bool = False
    """Whether this run committed the operation."""


@dataclass(frozen=True)
class Handoff:
    client: KubeClient
    informers: APIInformers
    driver: OperationDriver
    stock_selector: StockSelector
    attacher: StorageAttacher
    deletions: BackgroundQueue
    """Deletes consumed stock after the response. Until then, its claim prevents other operations from using it."""
    metrics: StockMetrics = field(default_factory=StockMetrics)
    deletion_delay: float = DELETION_DELAY_SECONDS
    semaphore: CallerSemaphore = field(default_factory=CallerSemaphore)
    waiting_limit: WaitingLimit = field(default_factory=WaitingLimit)

    async def create(self, request: RecordedUnitRequest, caller: str = ANONYMOUS.name) -> tuple[GPUUnit, bool]:
        """Return the unit, and whether this call created it. An earlier or a concurrent call may have created it."""
        is_worker = request.serverless is not None and bool(request.serverless.worker_of)
        async with self.semaphore.turn(caller, is_worker=is_worker):
            return await self._create(request, caller)

    async def _create(self, request: RecordedUnitRequest, caller: str) -> tuple[GPUUnit, bool]:
        if request.storage_mounts or request.template.shared_memory:
            await self._check_references(request)
        await self._check_request_id(request)
        run = HandoffRun(request)
        operation = await self._drive(run, await self._record_operation(run, caller))
        if error := operation.status.error:
            raise stored_fault(error.code, error.message)
        if run.committed and run.unit:
            return run.unit, True
        return await self._get_created_unit(operation), False

    async def _check_references(self, request: RecordedUnitRequest) -> None:
        """Raise Invalid if a storage does not exist or no stock is large enough, before the operation is recorded."""
        errors = self.stock_selector.too_small(request)
        errors = (*errors, *await self.attacher.find_missing(request.namespace, request.storage_mounts))
        if errors and await self.driver.store.find(request.operation_id) is None:
            raise Invalid(errors)

    async def _check_request_id(self, request: RecordedUnitRequest) -> None:
        """Raise DuplicateRequestID if another function has the requestID, before the operation is recorded."""
        try:
            require_free_request_id(self.informers, ObjectKey(request.namespace, request.name), request.unit_spec())
        except DuplicateRequestID:
            if await self.driver.store.find(request.operation_id) is None:
                raise

    async def resume(self, operation: Operation) -> Operation:
        """Continue an operation from its recorded state until it is finished."""
        return await self._drive(HandoffRun(recorded_request(operation, RecordedUnitRequest)), operation)

    async def _record_operation(self, run: HandoffRun, caller: str) -> Operation:
        """Record the operation with its chosen stock, or find the operation that a duplicate request recorded.

        Raises TooManyWaiting if there is no stock, and too many operations of the caller wait for stock.
        """
        request, stock = run.request, None
        target = OperationTarget(kind=GPU_UNITS.kind, namespace=request.namespace, name=request.name)
        if may_choose_stock(request, self._observe(run, ObjectKey(request.namespace, request.name), None)):
            stock = (await self._hold_stock(run)).stock
        try:
            if stock is None:
                await self._check_waiting_limit(request.operation_id, caller)
            return (await self.driver.store.record(request, target, stock, caller=caller)).operation
        except BaseException:
            self._release_hold(run)
            raise

    async def _check_waiting_limit(self, operation_id: str, caller: str) -> None:
        """Raise TooManyWaiting if the request would add an operation that waits for stock above the limit."""
        excess = self.waiting_limit.excess(self.informers, caller)
        if excess is not None and await self.driver.store.find(operation_id) is None:
            raise excess

    async def _drive(self, run: HandoffRun, operation: Operation) -> Operation:
        try:
            operation = await self.driver.drive(operation, partial(self._step, run))
            await self._delete_orphan(run, operation)
        finally:
            self._release_hold(run)
        stock = operation.status.stock
        if run.unit is not None and stock is not None and not stock.is_prepared and has_succeeded(operation):
            self._enqueue_deletion(stock, run.unit)
        return operation

    async def _step(self, run: HandoffRun, operation: Operation) -> Operation:
        """Move the operation from its recorded state to the next one."""
        stock = operation.effective_status.stock
        if stock is None or stock.uid != run.held_uid:
            self._release_hold(run)
        await self._delete_orphan(run, operation)
        observed = self._observe(run, operation.target_key, stock)
        while True:
            action = decide(operation, run.request, observed)
            match action:
                case RefuseRequest(fault):
                    return await self._refuse(operation, fault)
                case StepBack(fault):
                    await self._step_back(run, operation)
                    raise fault
                case ReadOperation():
                    raise StaleAttempt
            if isinstance(action, Transition):
                return await self._write(run, operation, action, observed)
            observed = await self._execute(run, operation, action, observed)

    def _observe(self, run: HandoffRun, unit: ObjectKey, stock: SourceStock | None) -> ObservedHandoff:
        """Observe the cached objects. This makes no request."""
        namespace, units = run.request.namespace, self.informers.units.store
        informer = self._stock_informer(stock)
        cached = informer.store.get(ObjectKey(stock.namespace, stock.name)) if stock and informer else None
        return ObservedHandoff(
            unit=units.get(unit),
            stock=_same_stock(cached, stock),
            storages={name: self.attacher.cached(namespace, name) for name in run.request.storage_names},
        )

    async def _execute(
        self, run: HandoffRun, operation: Operation, action: HandoffAction, observed: ObservedHandoff
    ) -> ObservedHandoff:
        """Execute an action that does not change the Operation, and return what is observed after it."""
        match action:
            case ReadLive(subject):
                return await self._read_live(operation, run.request, observed, subject)
            case HoldStock():
                self._release_hold(run)
                offer = await self._hold_stock(run)
                if offer.stock is None:
                    self.metrics.count_refused(run.request.spec_name, offer.missed)
                return replace(observed, offer=offer.stock, missed=None if offer.stock else offer.missed)
            case WriteAttachment(name, storage, holder):
                return _with_storage(observed, name, await self.attacher.write(storage, holder))
            case WriteClaim(stock) | ReleaseStock(stock):
                claims = isinstance(action, WriteClaim)
                current = await (self._claim_stock(operation, stock) if claims else self._release_stock(stock))
                self._release_hold(run)
                return replace(observed, stock=current, live=observed.live | {STOCK})
            case CreateActiveUnit(source):
                return await self._create_unit(run, operation, source, observed)
            case DeleteUnit(unit):
                await self._delete_unit(unit)
                return replace(observed, unit=None)
            case _:
                raise AssertionError(f"{action} is not an action on objects")

    async def _read_live(
        self, operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff, subject: str
    ) -> ObservedHandoff:
        live, stock = observed.live | {subject}, operation.effective_status.stock
        if subject == UNIT:
            return replace(observed, live=live, unit=await self._read_live_unit(operation.target_key))
        if subject == STOCK:
            informer, key = self._stock_informer(stock), ObjectKey(stock.namespace, stock.name) if stock else None
            found = await read_live(self.client, informer, key) if informer is not None and key is not None else None
            return replace(observed, live=live, stock=_same_stock(found, stock))
        return _with_storage(observed, subject, await self.attacher.read_live(request.namespace, subject))

    async def _claim_stock(self, operation: Operation, stock: GPUUnit | Pod) -> GPUUnit | Pod | None:
        if isinstance(stock, Pod):
            informer = self.informers.prepared_pods[stock.metadata.namespace]
            return await patch_unchanged(self.client, informer, stock, claim_patch(operation))
        patch = {"metadata": {"annotations": {Annotation.CLAIMED_BY: operation.spec.operation_id}}}
        return await patch_unchanged(self.client, self.informers.units, stock, patch)

    async def _release_stock(self, stock: GPUUnit | Pod) -> GPUUnit | None:
        if isinstance(stock, Pod):
            informer = self.informers.prepared_pods[stock.metadata.namespace]
            await delete_this(self.client, informer, stock.metadata.key, stock.metadata.uid)
            return None
        patch = {"metadata": {"annotations": {Annotation.CLAIMED_BY: None}}}
        return await patch_unchanged(self.client, self.informers.units, stock, patch)

    def _stock_informer(self, stock: SourceStock | None) -> Informer[Any] | None:
        """The informer of the stock. None if the settings do not contain the namespace of a prepared pod any more."""
        if stock is not None and stock.is_prepared:
            return self.informers.prepared_pods.get(stock.namespace)
        return self.informers.units

    async def _create_unit(
        self, run: HandoffRun, operation: Operation, stock: SourceStock, observed: ObservedHandoff
    ) -> ObservedHandoff:
        manifest = unit_manifest(operation, run.request, stock)
        try:
            unit, created = await create_or_read(self.client, self.informers.units, manifest)
        except KubeError as error:
            return replace(observed, rejection=permanent_fault(error))
        if created:
            run.unit = unit
        return replace(observed, unit=unit, live=observed.live | {UNIT})

    async def _write(
        self, run: HandoffRun, operation: Operation, transition: Transition, observed: ObservedHandoff
    ) -> Operation:
        written = await self.driver.store.write(operation, transition)
        if isinstance(transition, Committed):
            run.unit, run.committed = observed.unit, True
            if stock := written.status.stock:
                self.metrics.count_created(run.request.spec_name, stock)
        return written

    async def _refuse(self, operation: Operation, fault: RuntimeFault) -> Operation:
        """Raise the fault, unless a duplicate request has selected stock in the meantime."""
        latest = await self.driver.store.reload(operation)
        if latest.metadata.resource_version == operation.metadata.resource_version:
            raise fault
        return latest

    async def _step_back(self, run: HandoffRun, operation: Operation) -> None:
        reset = await self.driver.store.write(operation, StockLost())
        await self.attacher.detach(run.request.namespace, run.request.storage_names, reset)

    async def _delete_orphan(self, run: HandoffRun, operation: Operation) -> None:
        """Delete the unit that this run created, if the attempt has ended without it in the meantime."""
        if run.unit is not None and ownership(operation, run.unit) is Ownership.ORPHANED:
            await self._delete_unit(run.unit)
            run.unit = None

    async def _delete_unit(self, unit: GPUUnit) -> None:
        await delete_this(self.client, self.informers.units, unit.metadata.key, unit.metadata.uid)

    def _enqueue_deletion(self, stock: SourceStock, unit: GPUUnit) -> None:
        delete_at = asyncio.get_running_loop().time() + self.deletion_delay

        async def delete() -> None:
            while asyncio.get_running_loop().time() < delete_at and self._is_starting(unit):  # noqa: ASYNC110 - a cache
                await asyncio.sleep(READY_POLL_SECONDS)
            await delete_this(self.client, self.informers.units, ObjectKey(stock.namespace, stock.name), stock.uid)

        fields = {"namespace": stock.namespace, "object_name": stock.name, "uid": stock.uid}
        self.deletions.enqueue(stock.uid, delete, fields)

    def _is_starting(self, unit: GPUUnit) -> bool:
        cached = self.informers.units.store.get(unit.metadata.key)
        return (
            cached is not None and cached.metadata.uid == unit.metadata.uid and cached.status.phase != UnitPhase.READY
        )

    async def _get_created_unit(self, operation: Operation) -> GPUUnit:
        """Return the unit that a succeeded operation created. Raises Gone if it was deleted."""
        key, uid = operation.target_key, operation.status.target_uid
        unit = self.informers.units.store.get(key)
        if unit is None or unit.metadata.uid != uid:
            unit = await self._read_live_unit(key)
        if unit is None or unit.metadata.uid != uid:
            raise Gone(
                f"operation {operation.spec.operation_id} created unit {key.name}, which was deleted afterwards; choose"
                " a new operationID to create it again"
            )
        return unit

    async def _read_live_unit(self, key: ObjectKey) -> GPUUnit | None:
        return await read_live(self.client, self.informers.units, key)

    async def _hold_stock(self, run: HandoffRun) -> StockOffer:
        offer = await self.stock_selector.hold(run.request)
        run.held_uid = offer.stock.uid if offer.stock is not None else ""
        return offer

    def _release_hold(self, run: HandoffRun) -> None:
        self.stock_selector.release_hold(run.held_uid)
        run.held_uid = ""


def may_choose_stock(request: RecordedUnitRequest, observed: ObservedHandoff) -> bool:
    """Whether the first attempt can start with the operation itself: the cache shows no obstacle."""
    anonymous = Attachment(unit="")  # no attachment is its own, so any attachment is an obstacle
    states = {attach_state(observed.storages.get(name), anonymous) for name in request.storage_names}
    return observed.unit is None and states <= {AttachState.FREE}


def unit_manifest(operation: Operation, request: RecordedUnitRequest, stock: SourceStock) -> Manifest:
    """Build the active unit: the caller's image with the reservation of the stock."""
    annotations = {
        Annotation.OPERATION_ATTEMPT: str(operation.effective_status.attempt),
        Annotation.SOURCE_STOCK_NAME: stock.name,
        Annotation.SOURCE_STOCK_NAMESPACE: stock.namespace,
        Annotation.SOURCE_STOCK_UID: stock.uid,
    }
    optional = {
        Annotation.SOURCE_STOCK_NODE: stock.node,
        Annotation.SOURCE_STOCK_POOL: stock.pool,
        Annotation.SOURCE_STOCK_MISSED: stock.missed,
    }
    annotations |= {name: value for name, value in optional.items() if value}
    return owned_manifest(operation, operation.target_key, request.unit_spec(stock), **annotations)


def _same_stock(found: S | None, stock: SourceStock | None) -> S | None:
    """Return the stock unit or pod, or None if the found object is a later object with its name."""
    return found if found is not None and stock is not None and found.metadata.uid == stock.uid else None


def _with_storage(observed: ObservedHandoff, name: str, storage: GPUStorage | None) -> ObservedHandoff:
    return replace(observed, storages={**observed.storages, name: storage}, live=observed.live | {name})
