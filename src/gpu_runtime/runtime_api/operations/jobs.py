"""Jobs: an operation as its caller sees it. A job tells whether the request was accepted and persisted, never whether
what it made is ready. Read live, so every replica gives the same answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import msgspec
from msgspec import Struct, field

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.errors import NotFound, Unavailable
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope, View
from gpu_runtime.runtime_api.kube_error_mapping import translate_kube_errors
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.request_codec import decode_request

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
    """What the operation makes."""

    kind: str
    """GPUUnit or StockPool."""

    namespace: str
    """Where it is made."""

    name: str = ""
    """Its name. Absent for seeded stock, of which there are many."""


class JobError(View, frozen=True, kw_only=True):
    """Why the operation failed."""

    code: str
    """For programs."""

    message: str
    """For people."""


class JobView(View, frozen=True, kw_only=True):
    """An operation: whether it was accepted and persisted."""

    operation_id: str = field(name="operationID")
    """The caller's name for it."""

    type: str
    """CreateStockPool, SeedStock or CreateUnit."""

    status: JobStatus
    """accepted, running, succeeded or failed."""

    target: JobTarget
    """What it makes."""

    requested: int | None = None
    """How much stock was asked for."""

    seeded: int | None = None
    """How much of it has been made. Nothing is left of a seeding that failed."""

    error: JobError | None = None
    """Why it failed, or is about to."""

    created_at: str | None = None
    """When it was recorded."""

    started_at: str | None = None
    """When work on it began."""

    finished_at: str | None = None
    """When it succeeded or failed."""


@dataclass(frozen=True)
class JobService:
    operation_store: OperationStore

    async def get(self, operation_id: str) -> JobView:
        with translate_kube_errors():
            operation = await self.operation_store.find(operation_id)
        if operation is None:
            raise NotFound(f"there is no operation {operation_id}, or it was forgotten after its retention time")
        return job_view(operation)


def job_view(operation: Operation) -> JobView:
    spec, status = operation.spec, operation.effective_status
    seeds = spec.type == OperationType.SEED_STOCK.value
    return JobView(
        operation_id=spec.operation_id,
        type=spec.type,
        status=_JOB_STATUS[OperationState(status.state)],
        target=JobTarget(kind=spec.target.kind, namespace=spec.target.namespace, name=spec.target.name),
        requested=_requested_replicas(operation) if seeds else None,
        seeded=len(status.stock_uids) if seeds else None,
        error=JobError(code=status.error.code, message=status.error.message) if status.error else None,
        created_at=operation.metadata.creation_timestamp,
        started_at=status.started_at,
        finished_at=status.finished_at,
    )


def _requested_replicas(operation: Operation) -> int | None:
    """How much stock was asked for; None where the record does not say so in words that are known here."""
    try:
        return decode_request(operation, _REPLICAS_DECODER).replicas
    except Unavailable:
        return None


def routes(jobs: JobService) -> Sequence[Route]:
    async def get_job(call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, await jobs.get(call.path["operationID"]))

    return (
        Route(
            "GET",
            "/api/v1/operator/jobs/{operationID}",
            "getJob",
            "Tell whether an operation was accepted and persisted",
            get_job,
            responses={200: JobView},
            faults=(NotFound,),
            scope=Scope.OPERATOR,
            description="Whether what it made is ready is told by the thing itself: the pool, or the unit.",
            tag="Operations",
        ),
    )


class _RequestedReplicas(Struct, frozen=True):
    replicas: int = 0


_REPLICAS_DECODER = msgspec.json.Decoder(_RequestedReplicas)
