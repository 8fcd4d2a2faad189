"""The rules of the operation protocol: who owns an object, and what an operation still needs."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.gpu_storage import Attachment
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus
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
from gpu_runtime.contract.operation_rules import (
    AttachmentState,
    ClaimState,
    Ownership,
    Seeding,
    StockState,
    attachment_state,
    claim_state,
    ownership,
    seeding_of,
    stock_state,
)
from gpu_runtime.kube.meta import KubeObject, ObjectMeta

ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState
UNIT, SEED, POOL = OperationType.CREATE_UNIT, OperationType.SEED_STOCK, OperationType.CREATE_STOCK_POOL
STOCK = SourceStock(namespace="runtime-stock", name="stock-1", uid="u1")
OTHER = SourceStock(namespace="runtime-stock", name="stock-2", uid="u2")


def operation(kind: OperationType, state: OperationState, first: SourceStock | None = None, **status: Any) -> Operation:
    target = OperationTarget(kind="GPUUnit", namespace="runtime-instance", name="web")
    spec = OperationSpec(operation_id="make", type=kind, request_hash="hash", target=target, stock=first)
    metadata = ObjectMeta(name="op-1", namespace="runtime-system", uid="op-uid")
    return Operation(metadata=metadata, spec=spec, status=OperationStatus(state=state, **status))


def created(uid: str = "created", operation_uid: str = "op-uid", attempt: str = "1", **other: str) -> KubeObject:
    annotations = {
        Annotation.OPERATION_ID: "make",
        Annotation.OPERATION_UID: operation_uid,
        Annotation.OPERATION_ATTEMPT: attempt,
    }
    return KubeObject(metadata=ObjectMeta(uid=uid, annotations=annotations | other))


def attachment(attempt: int, operation_uid: str = "op-uid") -> Attachment:
    return Attachment(unit="web", operation_id="make", operation_uid=operation_uid, attempt=attempt)


FIRST_ATTEMPT = operation(UNIT, ACCEPTED, STOCK)
SECOND_ATTEMPT = operation(UNIT, RUNNING, STOCK, attempt=2, stock=OTHER)
WAITING_AGAIN = operation(UNIT, ACCEPTED, STOCK, attempt=1)
UNDOING = operation(UNIT, ROLLING_BACK, attempt=1, stock=STOCK)
FAILED_UNIT = operation(UNIT, FAILED, attempt=1, stock=STOCK)
DONE = operation(UNIT, SUCCEEDED, attempt=1, stock=STOCK, target_uid="created")
SAME_HASH = {Annotation.REQUEST_HASH: "hash"}

OWNERSHIP: dict[str, tuple[Operation, KubeObject, Ownership]] = {
    "user created it": (FIRST_ATTEMPT, KubeObject(metadata=ObjectMeta(uid="x")), Ownership.FOREIGN),
    "evicted operation with the same operationID": (FIRST_ATTEMPT, created(operation_uid="old"), Ownership.FOREIGN),
    "evicted operation with the same request": (
        FIRST_ATTEMPT,
        created(operation_uid="old", **SAME_HASH),
        Ownership.FOREIGN,
    ),
    "current attempt": (FIRST_ATTEMPT, created(), Ownership.PENDING),
    "earlier attempt": (SECOND_ATTEMPT, created(), Ownership.ORPHANED),
    "current second attempt": (SECOND_ATTEMPT, created(attempt="2"), Ownership.PENDING),
    "later attempt": (SECOND_ATTEMPT, created(attempt="3"), Ownership.NEWER),
    "malformed attempt": (FIRST_ATTEMPT, created(attempt="-1"), Ownership.ORPHANED),
    "attempt that lost its stock": (WAITING_AGAIN, created(), Ownership.ORPHANED),
    "attempt after the reset": (WAITING_AGAIN, created(attempt="2"), Ownership.NEWER),
    "rollback": (UNDOING, created(), Ownership.ORPHANED),
    "rollback, of another owner": (UNDOING, created(operation_uid="old"), Ownership.FOREIGN),
    "failed": (FAILED_UNIT, created(), Ownership.ORPHANED),
    "succeeded with it": (DONE, created(), Ownership.COMMITTED),
    "succeeded with another unit": (DONE, created("second"), Ownership.ORPHANED),
    "succeeded, and another owner has the name": (DONE, created("third", "other"), Ownership.FOREIGN),
    "running seeding": (operation(SEED, RUNNING), created(), Ownership.PENDING),
    "recorded by a running seeding": (
        operation(SEED, RUNNING, stock_uids=("created",)),
        created(),
        Ownership.COMMITTED,
    ),
    "recorded by a seeding that is rolled back": (
        operation(SEED, ROLLING_BACK, stock_uids=("created",)),
        created(),
        Ownership.ORPHANED,
    ),
    "created again after a seeding succeeded": (
        operation(SEED, SUCCEEDED, stock_uids=("created",)),
        created("again"),
        Ownership.ORPHANED,
    ),
    "pool of the same request under an evicted operation": (
        operation(POOL, RUNNING),
        created(operation_uid="old", **SAME_HASH),
        Ownership.ADOPTABLE,
    ),
    "pool of another request under an evicted operation": (
        operation(POOL, RUNNING),
        created(operation_uid="old", **{Annotation.REQUEST_HASH: "other"}),
        Ownership.FOREIGN,
    ),
    "adopted pool": (
        operation(POOL, SUCCEEDED, target_uid="created"),
        created(operation_uid="old", **SAME_HASH),
        Ownership.COMMITTED,
    ),
    "rollback does not delete a pool that it could adopt": (
        operation(POOL, ROLLING_BACK),
        created(operation_uid="old", **SAME_HASH),
        Ownership.ADOPTABLE,
    ),
}


@pytest.mark.parametrize(("owner", "found", "expected"), OWNERSHIP.values(), ids=OWNERSHIP)
def test_annotations_and_status_decide_who_owns_an_object(
    owner: Operation, found: KubeObject, expected: Ownership
) -> None:
    assert ownership(owner, found) is expected


@pytest.mark.parametrize(
    ("claiming", "first", "other"),
    [
        (None, ClaimState.STALE, ClaimState.STALE),
        (FIRST_ATTEMPT, ClaimState.VALID, ClaimState.STALE),
        (WAITING_AGAIN, ClaimState.STALE, ClaimState.STALE),
        (SECOND_ATTEMPT, ClaimState.STALE, ClaimState.VALID),
        (UNDOING, ClaimState.VALID, ClaimState.STALE),
        (operation(UNIT, SUCCEEDED, STOCK, attempt=2, stock=OTHER), ClaimState.STALE, ClaimState.CONSUMED),
        (FAILED_UNIT, ClaimState.STALE, ClaimState.STALE),
    ],
)
def test_only_the_claim_of_the_current_attempt_is_valid(
    claiming: Operation | None, first: ClaimState, other: ClaimState
) -> None:
    assert (claim_state(claiming, STOCK.uid), claim_state(claiming, OTHER.uid)) == (first, other)


@pytest.mark.parametrize(
    ("attaching", "unwanted"),
    [
        (operation(UNIT, ACCEPTED), [0]),
        (FIRST_ATTEMPT, [0]),
        (WAITING_AGAIN, [0, 1]),
        (SECOND_ATTEMPT, [0, 1]),
        (UNDOING, [0]),
        (FAILED_UNIT, [0, 1, 2, 3]),
    ],
)
def test_attachment_of_an_earlier_attempt_is_unwanted(attaching: Operation, unwanted: list[int]) -> None:
    states = {attempt: attachment_state(attaching, attachment(attempt)) for attempt in range(4)}
    assert [attempt for attempt, state in states.items() if state is AttachmentState.UNNEEDED] == unwanted
    assert all(state is AttachmentState.NEEDED for attempt, state in states.items() if attempt not in unwanted)


@pytest.mark.parametrize("finished", [None, DONE], ids=["evicted", "succeeded"])
def test_unit_decides_about_the_attachment_after_the_operation(finished: Operation | None) -> None:
    states = {attachment_state(finished, attachment(attempt)) for attempt in range(3)}
    assert states == {AttachmentState.UNIT_DECIDES}


@pytest.mark.parametrize("current", [FIRST_ATTEMPT, WAITING_AGAIN, UNDOING, FAILED_UNIT, DONE])
def test_operation_does_not_decide_about_the_attachment_of_an_evicted_one(current: Operation) -> None:
    """Both have the same operationID. The unit of the evicted operation may still mount the storage."""
    states = {attachment_state(current, attachment(attempt, operation_uid="evicted")) for attempt in range(3)}
    assert states == {AttachmentState.UNIT_DECIDES}


def stock(phase: str = "Ready", *, claimed: bool = False, deleting: bool = False) -> GPUUnit:
    annotations = {Annotation.CLAIMED_BY: "other"} if claimed else {}
    deleted_at = "2026-01-01T00:00:00Z" if deleting else None
    metadata = ObjectMeta(uid="u1", annotations=annotations, deletion_timestamp=deleted_at)
    return GPUUnit(metadata=metadata, spec=GPUUnitSpec(spec_name="g1.1"), status=GPUUnitStatus(phase=phase))


UNSEEDED = Seeding()
STOCK_STATES: dict[str, tuple[GPUUnit, Seeding, StockState]] = {
    "created by an administrator": (stock(), UNSEEDED, StockState.FREE),
    "seeded": (stock(), seeding_of(operation(SEED, SUCCEEDED, stock_uids=("u1",)), "op-uid"), StockState.FREE),
    "seeding evicted": (stock(), seeding_of(None, "op-uid"), StockState.FREE),
    "operationID of the seeding used again": (stock(), seeding_of(operation(SEED, RUNNING), "old"), StockState.FREE),
    "seeding runs": (stock(), seeding_of(operation(SEED, RUNNING), "op-uid"), StockState.RESERVED),
    "seeding runs and has recorded it": (
        stock(),
        seeding_of(operation(SEED, RUNNING, stock_uids=("u1",)), "op-uid"),
        StockState.RESERVED,
    ),
    "created again after its seeding": (
        stock(),
        seeding_of(operation(SEED, SUCCEEDED, stock_uids=("u0",)), "op-uid"),
        StockState.RESERVED,
    ),
    "seeding is rolled back": (stock(), seeding_of(operation(SEED, ROLLING_BACK), "op-uid"), StockState.RESERVED),
    "seeding failed": (stock(), seeding_of(operation(SEED, FAILED), "op-uid"), StockState.RESERVED),
    "claimed": (stock(claimed=True), UNSEEDED, StockState.CLAIMED),
    "claimed and not ready": (stock("Progressing", claimed=True), UNSEEDED, StockState.CLAIMED),
    "not ready": (stock("Progressing"), UNSEEDED, StockState.NOT_READY),
    "being deleted": (stock(deleting=True), UNSEEDED, StockState.NOT_READY),
}


@pytest.mark.parametrize(("unit", "seeding", "expected"), STOCK_STATES.values(), ids=STOCK_STATES)
def test_only_ready_unclaimed_stock_of_a_finished_seeding_is_free(
    unit: GPUUnit, seeding: Seeding, expected: StockState
) -> None:
    assert stock_state(unit, seeding) is expected
