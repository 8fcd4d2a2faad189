"""The operator routes, called without HTTP."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Route, Scope
from gpu_runtime.runtime_api.jobs.routes import JOBS
from gpu_runtime.runtime_api.stock.inventory import INVENTORY, InventoryService
from gpu_runtime.runtime_api.stock.pool_routes import POOL_EXAMPLE, POOLS
from gpu_runtime.runtime_api.stock.stock_units import SEED_EXAMPLE, STOCK_UNITS
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.service_replicas import ServiceReplica
from tests.integration.runtime_api.stock.conftest import StartReplica

OPERATOR = "/api/v1/operator"


def routes_of(replica: ServiceReplica) -> Mapping[tuple[str, str], Route]:
    routes = (
        *POOLS.bind(replica.pools),
        *STOCK_UNITS.bind(replica.stock),
        *INVENTORY.bind(InventoryService(replica.caches, replica.namespace)),
        *JOBS.bind(replica.jobs),
    )
    return {(route.method, route.path): route for route in routes}


async def call(replica: ServiceReplica, line: str, body: Any = None, query: Any = None, **path: str) -> APIResponse:
    method, _, rest = line.partition(" ")
    route = routes_of(replica)[method, OPERATOR + rest]
    request = APIRequest(
        body=msgspec.convert(body, route.body) if route.body else None,
        query=msgspec.convert(query or {}, route.query, strict=False),
        path=path,
    )
    response = await route.handler(request)
    # Raises if the data does not have the documented type.
    msgspec.convert(msgspec.to_builtins(response.data), route.responses[response.status])
    return response


async def test_seed_request_creates_stock_that_the_inventory_counts(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        first = await call(replica, "POST /stock-units", SEED_EXAMPLE)
        replay = await call(replica, "POST /stock-units", SEED_EXAMPLE)
        assert (first.status, first.data.status, replay.status) == (202, "accepted", 200)
        await replica.runner.resume(replica.runner.enqueued[0])
        job = await call(replica, "GET /jobs/{operationID}", operationID=SEED_EXAMPLE["operationID"])
        assert (job.status, job.data.status, job.data.seeded) == (200, "succeeded", 2)
        finished = await call(replica, "POST /stock-units", SEED_EXAMPLE)
        assert (finished.status, finished.data.status) == (200, "succeeded")
        listed = await call(replica, "GET /stock-units", query={"specName": "g1.1", "claimed": "false", "limit": "1"})
        assert len(listed.data) == 1
        assert listed.continuation
        ready = await call(replica, "GET /stock-units", query={"phase": "Ready"})
        assert (ready.status, ready.data, ready.continuation) == (200, [], None)
        inventory_of_flavor = await call(replica, "GET /inventory", query={"specName": "g1.1"})
        counts = inventory_of_flavor.data.flavors[0].stock
        assert (counts.progressing, counts.reserved.gpus, counts.reserved.memory) == (2, 2, "32Gi")
        unknown = await call(replica, "GET /inventory", query={"specName": "no-such"})
        assert unknown.data.flavors == ()


async def test_pool_is_created_shown_counted_and_deleted(start_replica: StartReplica, namespace: str) -> None:
    async with start_replica() as replica:
        example: dict[str, Any] = POOL_EXAMPLE | {"namespace": namespace}
        first = await call(replica, "POST /stockpools", example)
        assert (first.status, first.data.target.name) == (202, "pool-g1-demo")
        await replica.runner.resume(replica.runner.enqueued[0])
        assert (await call(replica, "POST /stockpools", example)).status == 200
        pool = await call(replica, "GET /stockpools/{name}", name="pool-g1-demo")
        assert (pool.data.phase, pool.data.operation_id) == ("Progressing", example["operationID"])
        listed = await call(replica, "GET /stockpools", query={"namespace": namespace})
        assert [each.name for each in listed.data] == ["pool-g1-demo"]
        await eventually(lambda: replica.caches.pools.store.all() != [], "the pool is counted")
        assert (await call(replica, "GET /inventory")).data.total.pools.desired >= 1
        assert (await call(replica, "DELETE /stockpools/{name}", name="pool-g1-demo")).status == 204
        assert (await call(replica, "GET /stockpools", query={"namespace": namespace})).data == []


async def test_template_that_is_too_large_is_rejected(start_replica: StartReplica, namespace: str) -> None:
    async with start_replica() as replica:
        template = {"args": ["x" * 20_000, "x" * 20_000]}
        with pytest.raises(Invalid, match=r"template: has \d+ bytes as JSON; use at most 32768"):
            await call(replica, "POST /stockpools", POOL_EXAMPLE | {"namespace": namespace, "template": template})


async def test_every_stock_route_is_documented_with_operator_scope(start_replica: StartReplica) -> None:
    async with start_replica() as replica:
        routes = routes_of(replica)
        assert len({route.name for route in routes.values()}) == len(routes) == 9
        for route in routes.values():
            assert route.scope is Scope.OPERATOR
            assert route.summary
            assert route.tag
            assert (route.body is None) == (not route.examples)
