"""The HTTP routes of stock pools: create, list, get and delete."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    Gone,
    Invalid,
    NotFound,
    OperationReused,
    QuotaExceeded,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope
from gpu_runtime.runtime_api.operations.jobs import JobView, job_view
from gpu_runtime.runtime_api.stock.pools import PoolService
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools, PoolQuery
from gpu_runtime.runtime_api.stock.view import PoolView

POOLS_PATH = "/api/v1/operator/stockpools"
TAG = "Pools"


def routes(pools: PoolService) -> Sequence[Route]:
    return (*_collection_routes(pools), *_item_routes(pools))


def _collection_routes(pools: PoolService) -> Sequence[Route]:
    async def create_pool(request: APIRequest[CreateStockPool, NoQuery]) -> APIResponse:
        recorded = await pools.create(request.body)
        return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))

    async def list_pools(request: APIRequest[None, ListPools]) -> APIResponse:
        views, continuation = pools.list(request.query)
        return APIResponse(200, views, continuation)

    return (
        Route(
            "POST",
            POOLS_PATH,
            "createStockPool",
            "Create a pool",
            create_pool,
            responses={202: JobView, 200: JobView},
            faults=(Invalid, AlreadyExists, QuotaExceeded, AdmissionDenied, WriteConflict, OperationReused, Gone),
            scope=Scope.OPERATOR,
            body=CreateStockPool,
            description="202: the request was accepted, and the response contains its job. 200: the same request was"
            " accepted before, and the response contains its job. The job shows the progress. The pool shows when it is"
            " ready.",
            examples={"a pool of web servers": POOL_EXAMPLE},
            tag=TAG,
        ),
        Route(
            "GET",
            POOLS_PATH,
            "listStockPools",
            "List pools",
            list_pools,
            responses={200: list[PoolView]},
            faults=(Invalid,),
            scope=Scope.OPERATOR,
            query=ListPools,
            tag=TAG,
        ),
    )


def _item_routes(pools: PoolService) -> Sequence[Route]:
    async def get_pool(request: APIRequest[None, PoolQuery]) -> APIResponse:
        return APIResponse(200, await pools.get(request.query.namespace, request.path["name"]))

    async def delete_pool(request: APIRequest[None, PoolQuery]) -> APIResponse:
        await pools.delete(request.query.namespace, request.path["name"])
        return APIResponse(204)

    return (
        Route(
            "GET",
            f"{POOLS_PATH}/{{name}}",
            "getStockPool",
            "Get a pool",
            get_pool,
            responses={200: PoolView},
            faults=(Invalid, NotFound),
            scope=Scope.OPERATOR,
            query=PoolQuery,
            tag=TAG,
        ),
        Route(
            "DELETE",
            f"{POOLS_PATH}/{{name}}",
            "deleteStockPool",
            "Delete a pool and its pods",
            delete_pool,
            responses={204: None},
            faults=(Invalid, NotFound, AdmissionDenied),
            scope=Scope.OPERATOR,
            query=PoolQuery,
            tag=TAG,
        ),
    )


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
