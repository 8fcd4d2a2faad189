"""The progress of an operation: the spec has the stock of the first attempt, the status that of later attempts."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, SourceStock
from gpu_runtime.runtime_api.operations.jobs import job_view
from gpu_runtime.runtime_api.operations.operation_store import is_attempt_abandoned, is_in_progress
from gpu_runtime.runtime_api.stock.stock_claim import ClaimState, claim_state
from tests.unit.runtime_api.runtime_api_objects import STOCK
from tests.unit.runtime_api.runtime_api_objects import operation as new_operation

OTHER = SourceStock(namespace="runtime-stock", name="stock-2", uid="u2")
ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState


def create(state: OperationState = ACCEPTED, **fields: Any) -> Operation:
    return new_operation(OperationType.CREATE_UNIT, state, "{}", **fields)


FIRST_ATTEMPT = create(recorded_with=STOCK)
RESET = create(recorded_with=STOCK, attempt=1)
SECOND_ATTEMPT = create(RUNNING, recorded_with=STOCK, attempt=2, stock=OTHER)
WAITING = create()


@pytest.mark.parametrize(
    ("operation", "stock", "attempt", "in_progress"),
    [
        (WAITING, None, 0, False),
        (FIRST_ATTEMPT, STOCK, 1, True),
        (RESET, None, 1, False),
        (SECOND_ATTEMPT, OTHER, 2, True),
        (create(RUNNING, attempt=1, stock=OTHER), OTHER, 1, True),
        (create(ROLLING_BACK, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, True),
        (create(SUCCEEDED, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, False),
    ],
)
def test_status_overrides_spec_after_the_first_attempt(
    operation: Operation, stock: SourceStock | None, attempt: int, in_progress: bool
) -> None:
    assert (operation.effective_status.stock, operation.effective_status.attempt) == (stock, attempt)
    assert is_in_progress(operation.effective_status) is in_progress


@pytest.mark.parametrize(
    ("operation", "abandoned"), [(WAITING, [0]), (FIRST_ATTEMPT, [0]), (RESET, [0, 1]), (SECOND_ATTEMPT, [0, 1])]
)
def test_attempt_is_abandoned_by_a_later_attempt_or_a_rollback(operation: Operation, abandoned: list[int]) -> None:
    assert [attempt for attempt in range(4) if is_attempt_abandoned(operation, attempt)] == abandoned


@pytest.mark.parametrize(
    ("operation", "first", "other"),
    [
        (FIRST_ATTEMPT, ClaimState.VALID, ClaimState.STALE),
        (RESET, ClaimState.STALE, ClaimState.STALE),
        (SECOND_ATTEMPT, ClaimState.STALE, ClaimState.VALID),
        (create(SUCCEEDED, recorded_with=STOCK, attempt=2, stock=OTHER), ClaimState.STALE, ClaimState.CONSUMED),
        (create(FAILED, recorded_with=STOCK, attempt=1, stock=STOCK), ClaimState.STALE, ClaimState.STALE),
    ],
)
def test_only_the_claim_of_the_current_attempt_is_valid(
    operation: Operation, first: ClaimState, other: ClaimState
) -> None:
    assert (claim_state(operation, STOCK.uid), claim_state(operation, OTHER.uid)) == (first, other)


def test_operation_recorded_with_stock_is_running() -> None:
    job = job_view(FIRST_ATTEMPT)
    assert (job.status, job.started_at) == ("running", "2026-01-02T03:04:05Z")
