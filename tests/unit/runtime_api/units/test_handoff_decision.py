"""The handoff's decision, with one case or more for each row of the state table in docs/architecture.md."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage, GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus, StorageMount
from gpu_runtime.contract.crd.operation import (
    Operation,
    OperationSpec,
    OperationState,
    OperationStatus,
    OperationTarget,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, BeingDeleted, NoStock, QuotaExceeded, RuntimeFault, StorageInUse
from gpu_runtime.contract.operation_transitions import Committed, RollbackStarted, RolledBack, StockSelected
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss
from gpu_runtime.kube.builtin_kinds import Pod, PodStatus
from gpu_runtime.kube.meta import Condition, ObjectMeta, OwnerReference
from gpu_runtime.runtime_api.units.handoff import may_choose_stock
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

ACCEPTED, RUNNING, ROLLING_BACK, _, _ = OperationState
SOURCE = SourceStock(namespace="runtime-stock", name="stock-1", uid="u1")
OFFER = SourceStock(namespace="runtime-stock", name="stock-2", uid="u2")
PLAIN = RecordedUnitRequest(operation_id="make", name="web", namespace="batch", spec_name="g1.1", image="python")
RECORDED = canonical_request(PLAIN)
MOUNTS = tuple(StorageMount(name=name, mount_path=f"/{name}") for name in ("b", "a"))
MOUNTING = msgspec.structs.replace(PLAIN, storage_mounts=MOUNTS)
NO_STOCK = {StockGrade.PREPARED: StockMiss.NO_POOL, StockGrade.RESERVED: StockMiss.NONE_READY}
HOLDER = Attachment(unit="web", operation_id="make", operation_uid="op-uid", attempt=1)


def operation(state: OperationState, **status: Any) -> Operation:
    target = OperationTarget(kind="GPUUnit", namespace="batch", name="web")
    spec = OperationSpec(operation_id="make", type=OperationType.CREATE_UNIT, request_hash="hash", target=target)
    metadata = ObjectMeta(name="op-1", namespace="runtime-system", uid="op-uid")
    return Operation(metadata=metadata, spec=spec, status=OperationStatus(state=state, **status))


def with_request(waiting: Operation) -> Operation:
    """The operation, if it was recorded with stock and has lost it: then its spec contains the request."""
    return msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, request=RECORDED))


WAITING = operation(ACCEPTED)
ATTEMPT = operation(RUNNING, attempt=1, stock=SOURCE)
UNDOING = operation(ROLLING_BACK, attempt=1, stock=SOURCE)


def unit(uid: str = "unit", owner: str = "op-uid", attempt: int = 1) -> GPUUnit:
    annotations = {Annotation.OPERATION_UID: owner, Annotation.OPERATION_ATTEMPT: str(attempt)}
    metadata = ObjectMeta(name="web", namespace="batch", uid=uid, annotations=annotations)
    return GPUUnit(metadata=metadata, spec=GPUUnitSpec(spec_name="g1.1"))


def stock(claimed_by: str = "", phase: str = "Ready") -> GPUUnit:
    annotations = {Annotation.CLAIMED_BY: claimed_by} if claimed_by else {}
    metadata = ObjectMeta(name="stock-1", namespace="runtime-stock", uid="u1", annotations=annotations)
    return GPUUnit(metadata=metadata, spec=GPUUnitSpec(spec_name="g1.1"), status=GPUUnitStatus(phase=phase))


def pod(claimed_by: str = "", *, ready: str = "True", deleting: bool = False) -> Pod:
    annotations = {Annotation.CLAIMED_BY: claimed_by} if claimed_by else {}
    owner = OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="r", uid="r", controller=True)
    metadata = ObjectMeta(
        name="warm-1",
        namespace="batch",
        uid="u1",
        annotations=annotations,
        owner_references=() if claimed_by else (owner,),
        deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None,
    )
    return Pod(metadata=metadata, status=PodStatus(conditions=(Condition(type="Ready", status=ready),)))


def storage(attached_to: Attachment | None = None, *, deleting: bool = False) -> GPUStorage:
    metadata = ObjectMeta(name="a", namespace="batch", deletion_timestamp="2026-01-01T00:00:00Z" if deleting else None)
    return GPUStorage(metadata=metadata, spec=GPUStorageSpec(size="1Gi", attached_to=attached_to))


def attachment(unit_: str = "web", operation_uid: str = "op-uid", attempt: int = 1) -> Attachment:
    return Attachment(unit=unit_, operation_id="make", operation_uid=operation_uid, attempt=attempt)


def seen(*live: str, a: GPUStorage | None = None, b: GPUStorage | None = None, **observed: Any) -> ObservedHandoff:
    return ObservedHandoff(storages={"a": a, "b": b}, live=frozenset(live), **observed)


FOREIGN, FREE, MINE, TAKEN = unit(owner="other"), storage(), storage(HOLDER), storage(attachment("other", "x"))
CLAIMED = stock("make")
ALL = (UNIT, STOCK, "a", "b")

Case = tuple[Operation, RecordedUnitRequest, ObservedHandoff, HandoffAction | tuple[type, type[RuntimeFault]]]
CASES: dict[str, Case] = {
    # Accepted
    "waiting, no obstacle: hold stock": (WAITING, PLAIN, seen(), HoldStock()),
    "waiting, stock held: next attempt": (WAITING, PLAIN, seen(offer=OFFER), StockSelected(OFFER, RECORDED)),
    "waiting with its request, stock held: next attempt": (
        with_request(WAITING),
        PLAIN,
        seen(offer=OFFER),
        StockSelected(OFFER),
    ),
    "waiting, no stock: refuse": (WAITING, PLAIN, seen(missed=NO_STOCK), (RefuseRequest, NoStock)),
    "waiting, cached unit of another owner: read it": (WAITING, PLAIN, seen(unit=FOREIGN), ReadLive(UNIT)),
    "waiting, live unit of another owner: refuse": (
        WAITING,
        PLAIN,
        seen(UNIT, unit=FOREIGN, offer=OFFER),
        (RefuseRequest, AlreadyExists),
    ),
    "waiting, unit of an earlier attempt is no obstacle": (WAITING, PLAIN, seen(unit=unit(attempt=0)), HoldStock()),
    "waiting, cached storage in use: read it": (WAITING, MOUNTING, seen(a=TAKEN, b=FREE), ReadLive("a")),
    "waiting, live storage in use: refuse": (
        WAITING,
        MOUNTING,
        seen("a", a=TAKEN, b=FREE),
        (RefuseRequest, StorageInUse),
    ),
    "waiting, storage being deleted: refuse": (
        WAITING,
        MOUNTING,
        seen(*ALL, a=FREE, b=storage(deleting=True)),
        (RefuseRequest, BeingDeleted),
    ),
    "waiting, storages are not attached before an attempt": (WAITING, MOUNTING, seen(a=FREE, b=FREE), HoldStock()),
    # Running: storages
    "attach in the order of the names": (
        ATTEMPT,
        MOUNTING,
        seen(a=FREE, b=FREE, stock=stock()),
        WriteAttachment("a", FREE, HOLDER),
    ),
    "attach the second storage": (ATTEMPT, MOUNTING, seen(a=MINE, b=FREE), WriteAttachment("b", FREE, HOLDER)),
    "attachment of an earlier attempt is written again": (
        ATTEMPT,
        MOUNTING,
        seen(a=storage(attachment(attempt=0)), b=MINE),
        WriteAttachment("a", storage(attachment(attempt=0)), HOLDER),
    ),
    "attachment of a later attempt: read the operation": (
        ATTEMPT,
        MOUNTING,
        seen(a=storage(attachment(attempt=2)), b=FREE),
        ReadOperation(),
    ),
    "cached storage of another unit: read it": (ATTEMPT, MOUNTING, seen(a=TAKEN, b=FREE), ReadLive("a")),
    "live storage of another unit: step back": (
        ATTEMPT,
        MOUNTING,
        seen("a", a=TAKEN, b=FREE),
        (StepBack, StorageInUse),
    ),
    "cached storage missing: read it": (ATTEMPT, MOUNTING, seen(b=FREE), ReadLive("a")),
    "live storage missing: step back": (ATTEMPT, MOUNTING, seen("a", b=FREE), (StepBack, BeingDeleted)),
    # Running: claim
    "storages attached, stock free: claim": (
        ATTEMPT,
        MOUNTING,
        seen(a=MINE, b=MINE, stock=stock()),
        WriteClaim(stock()),
    ),
    "cached stock missing: read it": (ATTEMPT, PLAIN, seen(), ReadLive(STOCK)),
    "cached stock claimed by another operation: read it": (ATTEMPT, PLAIN, seen(stock=stock("x")), ReadLive(STOCK)),
    "cached stock not ready: read it": (ATTEMPT, PLAIN, seen(stock=stock(phase="Failed")), ReadLive(STOCK)),
    "live stock deleted: hold other stock": (ATTEMPT, PLAIN, seen(STOCK), HoldStock()),
    "live stock claimed by another operation: hold other stock": (
        ATTEMPT,
        PLAIN,
        seen(STOCK, stock=stock("x")),
        HoldStock(),
    ),
    "prepared pod free: claim": (ATTEMPT, PLAIN, seen(stock=pod()), WriteClaim(pod())),
    "cached pod not ready: read it": (ATTEMPT, PLAIN, seen(stock=pod(ready="False")), ReadLive(STOCK)),
    "live pod not ready: hold other stock": (ATTEMPT, PLAIN, seen(STOCK, stock=pod(ready="False")), HoldStock()),
    "live pod claimed by another operation: hold other stock": (
        ATTEMPT,
        PLAIN,
        seen(STOCK, stock=pod("x")),
        HoldStock(),
    ),
    "pod claimed: create": (ATTEMPT, PLAIN, seen(stock=pod("make")), CreateActiveUnit(SOURCE)),
    "claimed pod is being deleted: hold other stock": (
        ATTEMPT,
        PLAIN,
        seen(STOCK, stock=pod("make", deleting=True)),
        HoldStock(),
    ),
    "other stock held: next attempt": (ATTEMPT, PLAIN, seen(STOCK, offer=OFFER), StockSelected(OFFER, RECORDED)),
    "stock lost, no other stock: step back": (
        ATTEMPT,
        PLAIN,
        seen(STOCK, missed=NO_STOCK),
        (StepBack, NoStock),
    ),
    "stock lost, name in use: step back": (
        ATTEMPT,
        PLAIN,
        seen(STOCK, UNIT, unit=FOREIGN, offer=OFFER),
        (StepBack, AlreadyExists),
    ),
    # Running: unit
    "claimed, no unit: create it": (ATTEMPT, PLAIN, seen(stock=CLAIMED), CreateActiveUnit(SOURCE)),
    "claimed, cached unit: create shows the live unit": (
        ATTEMPT,
        PLAIN,
        seen(stock=CLAIMED, unit=unit()),
        CreateActiveUnit(SOURCE),
    ),
    "unit of this attempt: commit": (ATTEMPT, PLAIN, seen(UNIT, stock=CLAIMED, unit=unit()), Committed(("unit",))),
    "unit of an earlier attempt: delete it": (
        ATTEMPT,
        PLAIN,
        seen(UNIT, stock=CLAIMED, unit=unit(attempt=0)),
        DeleteUnit(unit(attempt=0)),
    ),
    "unit of a later attempt: read the operation": (
        ATTEMPT,
        PLAIN,
        seen(UNIT, stock=CLAIMED, unit=unit(attempt=2)),
        ReadOperation(),
    ),
    "unit of another owner: roll back": (
        ATTEMPT,
        PLAIN,
        seen(UNIT, stock=CLAIMED, unit=FOREIGN),
        (RollbackStarted, AlreadyExists),
    ),
    "cluster rejects the unit: roll back": (
        ATTEMPT,
        PLAIN,
        seen(stock=CLAIMED, rejection=QuotaExceeded("full")),
        (RollbackStarted, QuotaExceeded),
    ),
    # RollingBack
    "rollback reads the unit first": (UNDOING, MOUNTING, seen(unit=unit(), stock=CLAIMED), ReadLive(UNIT)),
    "rollback reads the stock": (UNDOING, MOUNTING, seen(UNIT), ReadLive(STOCK)),
    "rollback reads the storages": (UNDOING, MOUNTING, seen(UNIT, STOCK, "a"), ReadLive("b")),
    "rollback deletes the own unit": (UNDOING, MOUNTING, seen(*ALL, unit=unit(), stock=CLAIMED), DeleteUnit(unit())),
    "rollback keeps the unit of another owner": (UNDOING, PLAIN, seen(*ALL, unit=FOREIGN), RolledBack()),
    "rollback releases the own claim": (UNDOING, MOUNTING, seen(*ALL, stock=CLAIMED), ReleaseStock(CLAIMED)),
    "rollback deletes the claimed pod": (UNDOING, PLAIN, seen(*ALL, stock=pod("make")), ReleaseStock(pod("make"))),
    "rollback keeps a pod of the pool": (UNDOING, PLAIN, seen(*ALL, stock=pod()), RolledBack()),
    "rollback keeps the claim of another operation": (UNDOING, PLAIN, seen(*ALL, stock=stock("x")), RolledBack()),
    "rollback detaches the own storages": (UNDOING, MOUNTING, seen(*ALL, b=MINE), WriteAttachment("b", MINE, None)),
    "rollback keeps the storages of another unit": (UNDOING, MOUNTING, seen(*ALL, a=TAKEN), RolledBack()),
    "all undone: fail": (UNDOING, MOUNTING, seen(*ALL, a=FREE, b=FREE, stock=stock()), RolledBack()),
}


@pytest.mark.parametrize(("current", "request_", "observed", "expected"), CASES.values(), ids=CASES)
def test_decision_follows_the_state_table(
    current: Operation, request_: RecordedUnitRequest, observed: ObservedHandoff, expected: Any
) -> None:
    action = decide(current, request_, observed)
    match action, expected:
        case RollbackStarted(error), (_, fault):
            assert (RollbackStarted, error.code) == (expected[0], fault.code)
        case ((RefuseRequest(raised) | StepBack(raised)), (_, _)):
            assert (type(action), type(raised)) == expected
        case _:
            assert action == expected


def test_fast_path_reads_nothing() -> None:
    """With a right cache, a handoff makes its writes and asks for no live read."""
    observed = seen(a=FREE, b=FREE, stock=stock())
    actions = []
    while not isinstance(action := decide(ATTEMPT, MOUNTING, observed), Committed):
        actions.append(type(action))
        match action:
            case WriteAttachment(name, _, _):
                observed = replace(observed, storages={**observed.storages, name: MINE})
            case WriteClaim():
                observed = replace(observed, stock=CLAIMED)
            case CreateActiveUnit():
                observed = replace(observed, unit=unit(), live=frozenset({UNIT}))
    assert actions == [WriteAttachment, WriteAttachment, WriteClaim, CreateActiveUnit]


@pytest.mark.parametrize(
    ("observed", "may"),
    [
        (seen(a=FREE, b=FREE), True),
        (seen(a=FREE, b=storage(attachment(operation_uid="earlier"))), False),
        (seen(a=FREE, b=FREE, unit=FOREIGN), False),
        (seen(a=FREE, b=TAKEN), False),
        (seen(a=FREE, b=storage(deleting=True)), False),
    ],
)
def test_first_attempt_starts_with_the_operation_unless_the_cache_shows_an_obstacle(
    observed: ObservedHandoff, may: bool
) -> None:
    assert may_choose_stock(MOUNTING, observed) is may
