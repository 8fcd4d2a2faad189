"""The decisions of seedings and pools, with one case for each state."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.crd.stock_pool import StockPool, StockPoolSpec
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, QuotaExceeded
from gpu_runtime.contract.operation_transitions import Committed, CreationStarted, RolledBack, StockSeeded, rollback
from gpu_runtime.contract.recorded_requests import RecordedSeedRequest
from gpu_runtime.kube.meta import ObjectMeta
from gpu_runtime.runtime_api.stock.pool_decision import (
    CreatePool,
    DeletePool,
    ObservedPoolCreation,
    PoolAction,
    ReadPool,
    decide_pool,
    pool_name_conflict,
)
from gpu_runtime.runtime_api.stock.seed_decision import (
    SEED_BATCH_SIZE,
    CreateStock,
    DeleteStock,
    ObservedSeeding,
    SeedAction,
    decide_seeding,
)
from tests.unit.runtime_api.runtime_api_objects import operation

ACCEPTED, RUNNING, ROLLING_BACK, _, _ = OperationState
FULL = QuotaExceeded("the quota is exceeded")
REPLICAS = SEED_BATCH_SIZE + 20
UIDS = tuple(f"u{number}" for number in range(REPLICAS))
SEED = RecordedSeedRequest(operation_id="one", spec_name="g1.1", replicas=REPLICAS)


def seeding(state: OperationState, **status: Any) -> Operation:
    return operation(OperationType.SEED_STOCK, state, **status)


SEED_CASES: dict[str, tuple[Operation, ObservedSeeding, SeedAction]] = {
    "accepted: start": (seeding(ACCEPTED), ObservedSeeding(), CreationStarted()),
    "running: create the first batch": (seeding(RUNNING), ObservedSeeding(), CreateStock(range(SEED_BATCH_SIZE))),
    "first batch created: record it": (
        seeding(RUNNING),
        ObservedSeeding(UIDS[:SEED_BATCH_SIZE]),
        StockSeeded(UIDS[:SEED_BATCH_SIZE]),
    ),
    "resumed: continue after the recorded batch": (
        seeding(RUNNING, stock_uids=UIDS[:SEED_BATCH_SIZE]),
        ObservedSeeding(),
        CreateStock(range(SEED_BATCH_SIZE, REPLICAS)),
    ),
    "last batch created: commit to all": (
        seeding(RUNNING, stock_uids=UIDS[:SEED_BATCH_SIZE]),
        ObservedSeeding(UIDS[SEED_BATCH_SIZE:]),
        Committed(UIDS),
    ),
    "rejected: roll back": (seeding(RUNNING), ObservedSeeding(rejection=FULL), rollback(FULL)),
    "rollback: delete all": (seeding(ROLLING_BACK), ObservedSeeding(), DeleteStock(range(REPLICAS))),
    "rollback, all deleted: fail": (seeding(ROLLING_BACK), ObservedSeeding(is_undone=True), RolledBack()),
}


@pytest.mark.parametrize(("current", "observed", "expected"), SEED_CASES.values(), ids=SEED_CASES)
def test_seeding_decision(current: Operation, observed: ObservedSeeding, expected: SeedAction) -> None:
    assert decide_seeding(current, SEED, observed) == expected


def creating(state: OperationState) -> Operation:
    return operation(OperationType.CREATE_STOCK_POOL, state)


def pool(owner: str = "op-uid", **annotations: str) -> StockPool:
    metadata = ObjectMeta(name="warm", uid="p", annotations={Annotation.OPERATION_UID: owner} | annotations)
    return StockPool(metadata=metadata, spec=StockPoolSpec(spec_name="g1.1", replicas=1))


SAME_REQUEST = {Annotation.OPERATION_ID: "one", Annotation.REQUEST_HASH: "0" * 64}
ADOPTABLE, FOREIGN = pool("evicted", **SAME_REQUEST), pool("other")
CONFLICT = pool_name_conflict(FOREIGN.metadata.key)

POOL_CASES: dict[str, tuple[Operation, ObservedPoolCreation, PoolAction]] = {
    "accepted: start": (creating(ACCEPTED), ObservedPoolCreation(), CreationStarted()),
    "running: create": (creating(RUNNING), ObservedPoolCreation(), CreatePool()),
    "created: commit": (creating(RUNNING), ObservedPoolCreation(pool(), is_live=True), Committed(("p",))),
    "same request under an evicted operation: adopt": (
        creating(RUNNING),
        ObservedPoolCreation(ADOPTABLE, is_live=True),
        Committed(("p",)),
    ),
    "name of another request: roll back": (
        creating(RUNNING),
        ObservedPoolCreation(FOREIGN, is_live=True),
        rollback(AlreadyExists(CONFLICT.message)),
    ),
    "rejected: roll back": (creating(RUNNING), ObservedPoolCreation(rejection=FULL), rollback(FULL)),
    "rollback: read": (creating(ROLLING_BACK), ObservedPoolCreation(), ReadPool()),
    "rollback: delete the own pool": (
        creating(ROLLING_BACK),
        ObservedPoolCreation(pool(), is_live=True),
        DeletePool(pool()),
    ),
    "rollback keeps an earlier pool": (
        creating(ROLLING_BACK),
        ObservedPoolCreation(ADOPTABLE, is_live=True),
        RolledBack(),
    ),
    "rollback keeps the pool of another owner": (
        creating(ROLLING_BACK),
        ObservedPoolCreation(FOREIGN, is_live=True),
        RolledBack(),
    ),
    "rollback, pool deleted: fail": (creating(ROLLING_BACK), ObservedPoolCreation(is_live=True), RolledBack()),
}


@pytest.mark.parametrize(("current", "observed", "expected"), POOL_CASES.values(), ids=POOL_CASES)
def test_pool_decision(current: Operation, observed: ObservedPoolCreation, expected: PoolAction) -> None:
    assert decide_pool(current, observed) == expected
