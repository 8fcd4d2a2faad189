"""The routes of pools."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import Conflict, Gone, Invalid, NotFound, OperationReused
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
    async def create_pool(call: APIRequest[CreateStockPool, NoQuery]) -> APIResponse:
        recorded = await pools.create(call.body)
        return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))

    async def list_pools(call: APIRequest[None, ListPools]) -> APIResponse:
        found, continuation = pools.list(call.query)
        return APIResponse(200, found, continuation)

    return (
        Route(
            "POST",
            POOLS_PATH,
            "createStockPool",
            "Make a pool",
            create_pool,
            responses={202: JobView, 200: JobView},
            faults=(Invalid, Conflict, OperationReused, Gone),
            scope=Scope.OPERATOR,
            body=CreateStockPool,
            description="202: accepted, the job tells how it goes on. 200: the same request was accepted before, and"
            " this is its job. Whether the pool is ready is told by the pool.",
            examples={"a pool that serves": POOL_EXAMPLE},
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
    async def get_pool(call: APIRequest[None, PoolQuery]) -> APIResponse:
        return APIResponse(200, await pools.get(call.query.namespace, call.path["name"]))

    async def delete_pool(call: APIRequest[None, PoolQuery]) -> APIResponse:
        await pools.delete(call.query.namespace, call.path["name"])
        return APIResponse(204)

    return (
        Route(
            "GET",
            f"{POOLS_PATH}/{{name}}",
            "getStockPool",
            "Show a pool",
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
            "Delete a pool and what it runs",
            delete_pool,
            responses={204: None},
            faults=(Invalid, NotFound),
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
