"""The HTTP routes of stock pools: create, list, get and delete."""

from typing import Any

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    Gone,
    NotFound,
    OperationReused,
    QuotaExceeded,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, Scope
from gpu_runtime.runtime_api.jobs.view import JobView, job_view
from gpu_runtime.runtime_api.stock.pools import PoolService
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools, PoolQuery
from gpu_runtime.runtime_api.stock.view import PoolView

POOLS = RouteGroup[PoolService]("Pools", Scope.OPERATOR)

POOLS_PATH = "/api/v1/operator/stockpools"
POOL_PATH = POOLS_PATH + "/{name}"

POOL_EXAMPLE: dict[str, Any] = {
    "operationID": "pool-g1-demo-001",
    "name": "pool-g1-demo",
    "namespace": "default",
    "specName": "g1.1",
    "image": "python:3.12-slim",
    "memory": "16Gi",
    "gpu": 1,
    "replicas": 1,
    "template": {
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "envs": [{"name": "MODEL_ID", "value": "demo-model"}],
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
    },
}


@POOLS.route(
    "POST",
    POOLS_PATH,
    {202: JobView, 200: JobView},
    faults=(AlreadyExists, QuotaExceeded, AdmissionDenied, WriteConflict, OperationReused, Gone),
    examples={"a pool of web servers": POOL_EXAMPLE},
)
async def create_stock_pool(pools: PoolService, request: APIRequest[CreateStockPool, NoQuery]) -> APIResponse:
    """Create a pool.

    202: the request was accepted, and the response contains its job. 200: the same request was accepted before, and
    the response contains its job. The job shows the progress. The pool shows when it is ready.
    """
    recorded = await pools.create(request.body, request.caller)
    return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))


@POOLS.route("GET", POOLS_PATH, {200: list[PoolView]})
async def list_stock_pools(pools: PoolService, request: APIRequest[None, ListPools]) -> APIResponse:
    """List pools."""
    views, continuation = pools.list(request.query)
    return APIResponse(200, views, continuation)


@POOLS.route("GET", POOL_PATH, {200: PoolView}, faults=(NotFound,))
async def get_stock_pool(pools: PoolService, request: APIRequest[None, PoolQuery]) -> APIResponse:
    """Get a pool."""
    return APIResponse(200, await pools.get(request.query.namespace, request.path["name"]))


@POOLS.route("DELETE", POOL_PATH, {204: None}, faults=(NotFound, AdmissionDenied))
async def delete_stock_pool(pools: PoolService, request: APIRequest[None, PoolQuery]) -> APIResponse:
    """Delete a pool and its pods."""
    await pools.delete(request.query.namespace, request.path["name"])
    return APIResponse(204)
