"""The job route: shows an operation to its caller.

A job shows whether the API accepted and persisted the request. It does not show whether the created objects are ready.
The route reads the operation from the API server, so that every replica gives the same response.
"""

from dataclasses import dataclass

from gpu_runtime.contract.errors import NotFound
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, Scope
from gpu_runtime.runtime_api.jobs.view import JobView, job_view
from gpu_runtime.runtime_api.operations.operation_store import OperationStore


@dataclass(frozen=True)
class JobService:
    operation_store: OperationStore

    async def get(self, operation_id: str) -> JobView:
        operation = await self.operation_store.find(operation_id)
        if operation is None:
            raise NotFound(f"operation {operation_id} does not exist, or it was evicted after its retention period")
        return job_view(operation)


JOBS = RouteGroup[JobService]("Operations", Scope.OPERATOR)


@JOBS.route("GET", "/api/v1/operator/jobs/{operationID}", {200: JobView}, faults=(NotFound,))
async def get_job(jobs: JobService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Get the state of an operation.

    Shows whether the request was accepted and persisted. The pool or the unit shows whether it is ready.
    """
    return APIResponse(200, await jobs.get(request.path["operationID"]))
