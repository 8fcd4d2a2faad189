"""Whether an operation waits, is in progress or has finished, and which first attempt it has."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, SourceStock
from gpu_runtime.contract.operation_rules import OperationProgress, progress_of
from gpu_runtime.runtime_api.jobs.view import job_view
from tests.unit.runtime_api.runtime_api_objects import STOCK
from tests.unit.runtime_api.runtime_api_objects import operation as new_operation

OTHER = SourceStock(namespace="runtime-stock", name="stock-2", uid="u2")
ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState


def create(state: OperationState = ACCEPTED, **fields: Any) -> Operation:
    return new_operation(OperationType.CREATE_UNIT, state, "{}", **fields)


FIRST_ATTEMPT = create(recorded_with=STOCK)


@pytest.mark.parametrize(
    ("operation", "stock", "attempt", "expected"),
    [
        (create(), None, 0, OperationProgress.WAITING),
        (FIRST_ATTEMPT, STOCK, 1, OperationProgress.IN_PROGRESS),
        (create(recorded_with=STOCK, attempt=1), None, 1, OperationProgress.WAITING),
        (create(RUNNING, recorded_with=STOCK, attempt=2, stock=OTHER), OTHER, 2, OperationProgress.IN_PROGRESS),
        (create(RUNNING, attempt=1, stock=OTHER), OTHER, 1, OperationProgress.IN_PROGRESS),
        (create(ROLLING_BACK, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, OperationProgress.IN_PROGRESS),
        (create(SUCCEEDED, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, OperationProgress.FINISHED),
        (create(FAILED, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, OperationProgress.FINISHED),
        (new_operation(OperationType.SEED_STOCK, ACCEPTED), None, 0, OperationProgress.IN_PROGRESS),
        (new_operation(OperationType.CREATE_STOCK_POOL, RUNNING), None, 0, OperationProgress.IN_PROGRESS),
    ],
)
def test_status_overrides_spec_after_the_first_attempt(
    operation: Operation, stock: SourceStock | None, attempt: int, expected: OperationProgress
) -> None:
    assert (operation.effective_status.stock, operation.effective_status.attempt) == (stock, attempt)
    assert progress_of(operation) is expected


def test_operation_recorded_with_stock_is_running() -> None:
    job = job_view(FIRST_ATTEMPT)
    assert (job.status, job.started_at) == ("running", "2026-01-02T03:04:05Z")
