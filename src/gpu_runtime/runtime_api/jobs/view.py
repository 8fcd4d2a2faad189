"""The view of an operation as a job. Pure functions."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct, field

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.runtime_api.http.route import View

JobStatus = Literal["accepted", "running", "succeeded", "failed"]
_JOB_STATUS: Mapping[OperationState, JobStatus] = MappingProxyType(
    {
        OperationState.ACCEPTED: "accepted",
        OperationState.RUNNING: "running",
        OperationState.ROLLING_BACK: "running",
        OperationState.SUCCEEDED: "succeeded",
        OperationState.FAILED: "failed",
    }
)


class JobTarget(View, frozen=True, kw_only=True):
    """The object that the operation creates."""

    kind: str
    """The kind of the object: GPUUnit or StockPool."""

    namespace: str
    """The namespace of the object."""

    name: str = ""
    """The name of the object. Absent for SeedStock, which creates several objects."""


class JobError(View, frozen=True, kw_only=True):
    """The reason why the operation failed."""

    code: str
    """The error code, for programs."""

    message: str
    """The error message, for people."""


class JobView(View, frozen=True, kw_only=True):
    """The state of an operation."""

    operation_id: str = field(name="operationID")
    """The ID of the operation, chosen by the caller."""

    type: str
    """The type of the operation: CreateStockPool, SeedStock or CreateUnit."""

    status: JobStatus
    """The state of the operation: accepted, running, succeeded or failed."""

    target: JobTarget
    """The object that the operation creates."""

    requested: int | None = None
    """The requested number of stock units. Only for SeedStock."""

    seeded: int | None = None
    """The number of stock units created so far. Only for SeedStock. A failed operation deletes the units that it
    created."""

    error: JobError | None = None
    """The reason why the operation failed, or why it is being rolled back."""

    created_at: str | None = None
    """When the operation was recorded."""

    started_at: str | None = None
    """When the execution started."""

    finished_at: str | None = None
    """When the operation succeeded or failed."""


def job_view(operation: Operation) -> JobView:
    spec, status = operation.spec, operation.effective_status
    is_seeding = spec.type == OperationType.SEED_STOCK.value
    return JobView(
        operation_id=spec.operation_id,
        type=spec.type,
        status=_JOB_STATUS[OperationState(status.state)],
        target=JobTarget(kind=spec.target.kind, namespace=spec.target.namespace, name=spec.target.name),
        requested=_requested_replicas(operation) if is_seeding else None,
        seeded=len(status.stock_uids) if is_seeding else None,
        error=JobError(code=status.error.code, message=status.error.message) if status.error else None,
        created_at=operation.metadata.creation_timestamp,
        started_at=status.started_at,
        finished_at=status.finished_at,
    )


class _RequestedReplicas(Struct, frozen=True):
    replicas: int = 0


def _requested_replicas(operation: Operation) -> int | None:
    """Return the requested number of stock units, or None if this version cannot decode the recorded request."""
    try:
        return msgspec.json.decode(operation.request, type=_RequestedReplicas).replicas
    except (msgspec.DecodeError, RecursionError):
        return None
