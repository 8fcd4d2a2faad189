"""How far an operation is: the first choice is the spec's, and every later one the status'."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, SourceStock
from gpu_runtime.runtime_api.operations.jobs import job_view
from gpu_runtime.runtime_api.operations.operation_store import is_attempt_abandoned, is_in_progress
from gpu_runtime.runtime_api.stock.stock_claim import ClaimState, claim_state
from tests.unit.runtime_api.runtime_api_objects import STOCK, operation

OTHER = SourceStock(namespace="runtime-stock", name="stock-2", uid="u2")
ACCEPTED, RUNNING, GIVING_UP, SUCCEEDED, FAILED = OperationState


def create(state: OperationState = ACCEPTED, **said: Any) -> Operation:
    return operation(OperationType.CREATE_UNIT, state, "{}", **said)


BEGUN = create(recorded_with=STOCK)
STEPPED_BACK = create(recorded_with=STOCK, attempt=1)
CHOSE_AGAIN = create(RUNNING, recorded_with=STOCK, attempt=2, stock=OTHER)
WAITING = create()


@pytest.mark.parametrize(
    ("found", "stock", "attempt", "under_way"),
    [
        (WAITING, None, 0, False),
        (BEGUN, STOCK, 1, True),
        (STEPPED_BACK, None, 1, False),
        (CHOSE_AGAIN, OTHER, 2, True),
        (create(RUNNING, attempt=1, stock=OTHER), OTHER, 1, True),
        (create(GIVING_UP, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, True),
        (create(SUCCEEDED, recorded_with=STOCK, attempt=1, stock=STOCK), STOCK, 1, False),
    ],
)
def test_status_overrides_spec_after_the_first_attempt(
    found: Operation, stock: SourceStock | None, attempt: int, under_way: bool
) -> None:
    assert (found.effective_status.stock, found.effective_status.attempt) == (stock, attempt)
    assert is_in_progress(found.effective_status) is under_way


@pytest.mark.parametrize(
    ("found", "given_up"), [(WAITING, [0]), (BEGUN, [0]), (STEPPED_BACK, [0, 1]), (CHOSE_AGAIN, [0, 1])]
)
def test_attempt_is_abandoned_by_a_later_attempt_or_a_rollback(found: Operation, given_up: list[int]) -> None:
    assert [attempt for attempt in range(4) if is_attempt_abandoned(found, attempt)] == given_up


@pytest.mark.parametrize(
    ("found", "first", "other"),
    [
        (BEGUN, ClaimState.VALID, ClaimState.STALE),
        (STEPPED_BACK, ClaimState.STALE, ClaimState.STALE),
        (CHOSE_AGAIN, ClaimState.STALE, ClaimState.VALID),
        (create(SUCCEEDED, recorded_with=STOCK, attempt=2, stock=OTHER), ClaimState.STALE, ClaimState.CONSUMED),
        (create(FAILED, recorded_with=STOCK, attempt=1, stock=STOCK), ClaimState.STALE, ClaimState.STALE),
    ],
)
def test_only_the_claim_of_the_current_attempt_is_valid(found: Operation, first: ClaimState, other: ClaimState) -> None:
    assert (claim_state(found, STOCK.uid), claim_state(found, OTHER.uid)) == (first, other)


def test_operation_recorded_with_stock_is_running() -> None:
    job = job_view(BEGUN)
    assert (job.status, job.started_at) == ("running", "2026-01-02T03:04:05Z")
