"""Which operations prove that a worker has stock to return, and what is returned."""

from typing import Any

import pytest
from msgspec.structs import replace

from gpu_runtime.contract.crd.gpu_unit import Serverless
from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, SourceStock
from gpu_runtime.contract.errors import NoStockToReturn, Unavailable
from gpu_runtime.contract.recorded_requests import RecordedSeedRequest, RecordedUnitRequest, ReturnedUnit
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.runtime_api.stock.stock_returns import seeding_in_return
from tests.unit.runtime_api.runtime_api_objects import operation

UNIT, SEED = OperationType.CREATE_UNIT, OperationType.SEED_STOCK
ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState
STOCK = SourceStock(namespace="runtime-stock", name="stock-1", uid="u1", memory="16Gi", gpu=2, cpu="4", node="node-1")
REQUEST = RecordedUnitRequest(
    operation_id="one",
    name="w0",
    namespace="runtime-stock",
    spec_name="g1.1",
    image="python",
    serverless=Serverless(enabled=True, request_id="embed", worker_of="embed"),
)


def creation(state: OperationState = SUCCEEDED, request: RecordedUnitRequest = REQUEST, **status: Any) -> Operation:
    fields: dict[str, Any] = {"stock": STOCK, "attempt": 1, "target_uid": "worker"} | status
    return operation(UNIT, state, canonical_request(request), **fields)


def test_committed_operation_returns_the_stock_that_it_consumed() -> None:
    assert seeding_in_return(creation(), "worker") == RecordedSeedRequest(
        operation_id="gpu-runtime:return-worker",
        spec_name="g1.1",
        replicas=1,
        memory="16Gi",
        gpu=2,
        cpu="4",
        returned_from=ReturnedUnit(namespace="runtime-stock", name="", uid="worker"),
    )


@pytest.mark.parametrize(
    "no_proof",
    [
        None,
        operation(SEED, SUCCEEDED, stock_uids=("worker",)),
        creation(target_uid="another unit"),
        creation(FAILED, target_uid=None),
        creation(FAILED),
        creation(stock=None),
        creation(stock=replace(STOCK, pool="warm")),
        creation(request=replace(REQUEST, serverless=None)),
        creation(request=replace(REQUEST, serverless=Serverless(enabled=True, request_id="embed"))),
        operation(UNIT, ACCEPTED),
    ],
    ids=["none", "seeding", "other unit", "failed", "undone", "no stock", "pool", "user", "function", "waiting"],
)
def test_other_operations_return_nothing(no_proof: Operation | None) -> None:
    with pytest.raises(NoStockToReturn):
        seeding_in_return(no_proof, "worker")


@pytest.mark.parametrize("state", [RUNNING, ROLLING_BACK])
def test_operation_in_progress_is_no_decision_yet(state: OperationState) -> None:
    with pytest.raises(Unavailable):
        seeding_in_return(creation(state, target_uid=None), "worker")
