"""How far an operation is: the first choice is the spec's, and every later one the status'."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, SourceStock
from gpu_runtime.runtime_api.operations.jobs import job_view
from gpu_runtime.runtime_api.operations.operation_store import is_given_up, is_under_way
from gpu_runtime.runtime_api.stock.stock_claim import Claim, claim_of
from tests.unit.runtime_api.objects import STOCK, operation

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
def test_the_status_counts_from_its_first_attempt_on(
    found: Operation, stock: SourceStock | None, attempt: int, under_way: bool
) -> None:
    assert (found.progress.stock, found.progress.attempt) == (stock, attempt)
    assert is_under_way(found.progress) is under_way


@pytest.mark.parametrize(
    ("found", "given_up"), [(WAITING, [0]), (BEGUN, [0]), (STEPPED_BACK, [0, 1]), (CHOSE_AGAIN, [0, 1])]
)
def test_an_attempt_is_given_up_when_a_later_one_is_made_or_none_is(found: Operation, given_up: list[int]) -> None:
    assert [attempt for attempt in range(4) if is_given_up(found, attempt)] == given_up


@pytest.mark.parametrize(
    ("found", "first", "other"),
    [
        (BEGUN, Claim.STANDS, Claim.UNWANTED),
        (STEPPED_BACK, Claim.UNWANTED, Claim.UNWANTED),
        (CHOSE_AGAIN, Claim.UNWANTED, Claim.STANDS),
        (create(SUCCEEDED, recorded_with=STOCK, attempt=2, stock=OTHER), Claim.UNWANTED, Claim.CONSUMED),
        (create(FAILED, recorded_with=STOCK, attempt=1, stock=STOCK), Claim.UNWANTED, Claim.UNWANTED),
    ],
)
def test_only_a_claim_on_the_stock_that_counts_stands(found: Operation, first: Claim, other: Claim) -> None:
    assert (claim_of(found, STOCK.uid), claim_of(found, OTHER.uid)) == (first, other)


def test_what_is_recorded_with_its_stock_runs_from_then_on() -> None:
    job = job_view(BEGUN)
    assert (job.status, job.started_at) == ("running", "2026-01-02T03:04:05Z")
