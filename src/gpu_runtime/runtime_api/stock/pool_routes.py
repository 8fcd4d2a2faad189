"""The routes of pools."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import Conflict, Gone, Invalid, NotFound, OperationReused
from gpu_runtime.runtime_api.http.route import Answer, Call, NoQuery, Route, Scope
from gpu_runtime.runtime_api.operations.jobs import JobView, job_view
from gpu_runtime.runtime_api.stock.pools import Pools
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools, WhichPool
from gpu_runtime.runtime_api.stock.view import PoolView

PATH = "/api/v1/operator/stockpools"
TAG = "Pools"


def routes(pools: Pools) -> Sequence[Route]:
    return (*_of_all(pools), *_of_one(pools))


def _of_all(pools: Pools) -> Sequence[Route]:
    async def create_pool(call: Call[CreateStockPool, NoQuery]) -> Answer:
        recorded = await pools.create(call.body)
        return Answer(202 if recorded.new else 200, job_view(recorded.operation))

    async def list_pools(call: Call[None, ListPools]) -> Answer:
        found, continuation = pools.list(call.query)
        return Answer(200, found, continuation)

    return (
        Route(
            "POST",
            PATH,
            "createStockPool",
            "Make a pool",
            create_pool,
            answers={202: JobView, 200: JobView},
            faults=(Invalid, Conflict, OperationReused, Gone),
            scope=Scope.OPERATOR,
            body=CreateStockPool,
            description="202: accepted, the job tells how it goes on. 200: the same request was accepted before, and"
            " this is its job. Whether the pool is ready is told by the pool.",
            examples={"a pool that serves": EXAMPLE},
            tag=TAG,
        ),
        Route(
            "GET",
            PATH,
            "listStockPools",
            "List pools",
            list_pools,
            answers={200: list[PoolView]},
            faults=(Invalid,),
            scope=Scope.OPERATOR,
            query=ListPools,
            tag=TAG,
        ),
    )


def _of_one(pools: Pools) -> Sequence[Route]:
    async def get_pool(call: Call[None, WhichPool]) -> Answer:
        return Answer(200, await pools.get(call.query.namespace, call.path["name"]))

    async def delete_pool(call: Call[None, WhichPool]) -> Answer:
        await pools.delete(call.query.namespace, call.path["name"])
        return Answer(204)

    return (
        Route(
            "GET",
            f"{PATH}/{{name}}",
            "getStockPool",
            "Show a pool",
            get_pool,
            answers={200: PoolView},
            faults=(Invalid, NotFound),
            scope=Scope.OPERATOR,
            query=WhichPool,
            tag=TAG,
        ),
        Route(
            "DELETE",
            f"{PATH}/{{name}}",
            "deleteStockPool",
            "Delete a pool and what it runs",
            delete_pool,
            answers={204: None},
            faults=(Invalid, NotFound),
            scope=Scope.OPERATOR,
            query=WhichPool,
            tag=TAG,
        ),
    )


EXAMPLE: dict[str, Any] = {
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
