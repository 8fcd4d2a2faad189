"""Lists all routes of the runtime API for the OpenAPI document. This needs no cluster and no service."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.runtime_api.dead_letters.routes import DEAD_LETTERS
from gpu_runtime.runtime_api.http.health_route import HEALTH
from gpu_runtime.runtime_api.http.route import Route, RouteGroup
from gpu_runtime.runtime_api.invocations.routes import INVOCATIONS
from gpu_runtime.runtime_api.jobs.routes import JOBS
from gpu_runtime.runtime_api.stock.inventory import INVENTORY
from gpu_runtime.runtime_api.stock.pool_routes import POOLS
from gpu_runtime.runtime_api.stock.stock_returns import STOCK_RETURNS
from gpu_runtime.runtime_api.stock.stock_units import STOCK_UNITS
from gpu_runtime.runtime_api.storages.routes import STORAGES
from gpu_runtime.runtime_api.units.routes import UNITS
from gpu_runtime.runtime_api.units.worker_routes import WORKERS

ROUTE_GROUPS: Sequence[RouteGroup[Any]] = (
    *(HEALTH, UNITS, STORAGES, POOLS, STOCK_UNITS),
    *(WORKERS, STOCK_RETURNS, INVENTORY, JOBS, INVOCATIONS, DEAD_LETTERS),
)


def documented_routes() -> Sequence[Route]:
    return [route for group in ROUTE_GROUPS for route in group.routes]
