"""The job view of operations."""

import msgspec
import pytest

from gpu_runtime.contract.crd.operation import OperationState, OperationType
from gpu_runtime.runtime_api.jobs.view import job_view
from tests.unit.runtime_api.runtime_api_objects import FAILURE, STOCK, operation


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (OperationState.ACCEPTED, "accepted"),
        (OperationState.RUNNING, "running"),
        (OperationState.ROLLING_BACK, "running"),
        (OperationState.SUCCEEDED, "succeeded"),
        (OperationState.FAILED, "failed"),
    ],
)
def test_every_state_has_a_status(state: OperationState, status: str) -> None:
    assert job_view(operation(state=state)).status == status


def test_seeding_view_shows_requested_and_seeded_count() -> None:
    job = job_view(operation(state=OperationState.RUNNING, stock_uids=("a", "b")))
    assert (job.requested, job.seeded) == (3, 2)


@pytest.mark.parametrize("request_", ["", "not JSON", '{"replicas":"many"}', "[" * 5000])
def test_seeding_with_undecodable_request_is_shown(request_: str) -> None:
    job = job_view(operation(request=request_, stock_uids=("a",)))
    assert (job.requested, job.seeded) == (None, 1)


def test_other_operations_have_no_seeding_counts() -> None:
    job = job_view(operation(OperationType.CREATE_UNIT, OperationState.RUNNING, "{}", stock=STOCK))
    assert (job.requested, job.seeded) == (None, None)


def test_failed_operation_view_has_the_fault_code_and_message() -> None:
    view = msgspec.to_builtins(job_view(operation(state=OperationState.FAILED, error=FAILURE)))
    assert view == {
        "operationID": "one",
        "type": "SeedStock",
        "status": "failed",
        "target": {"kind": "GPUUnit", "namespace": "runtime-stock"},
        "requested": 3,
        "seeded": 0,
        "error": {"code": "conflict", "message": "the cluster rejects it"},
        "createdAt": "2026-01-02T03:04:05Z",
    }
