"""Retiring a worker is safe if the leader is killed after any of its writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.runtime_api_client import RuntimeAPIClient
from gpu_runtime.activator.settings import RuntimeAPIClientSettings
from gpu_runtime.activator.worker_lifecycle import WorkerLifecycle
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.meta import ObjectKey
from tests.integration.activator.activator_harness import (
    ACTIVATOR_USER,
    STOCK_NAMESPACE,
    UNIT_NAMESPACE,
    ActivatorHarness,
    until,
)

WRITES = ("merge_patch", "create", "delete", "return_to_stock")


class SimulatedKill(Exception):
    """The process was killed before it received the response."""


@dataclass
class WriteBudget:
    """Simulates a kill after a number of writes. The last write is executed, but its response is lost."""

    remaining: int
    """Number of writes until the kill. Negative: no kill."""

    def wrap(self, client: Any) -> Any:
        return _CountedClient(client, self)


NO_KILL = WriteBudget(-1)


class _CountedClient:
    def __init__(self, client: Any, budget: WriteBudget) -> None:
        self._client, self._budget = client, budget

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name not in WRITES:
            return method

        async def write(*arguments: Any, **options: Any) -> Any:
            response = await method(*arguments, **options)
            self._budget.remaining -= 1
            if self._budget.remaining == 0:
                raise SimulatedKill
            return response

        return write


@asynccontextmanager
async def running_lifecycle(harness: ActivatorHarness, budget: WriteBudget) -> AsyncIterator[WorkerLifecycle]:
    config = load_cluster_config(harness.control_plane.kubeconfig_for("activator", ACTIVATOR_USER))
    async with open_kube_client(config, field_manager="activator") as client, aiohttp.ClientSession() as http:
        functions = FunctionLister(client, STOCK_NAMESPACE)
        watching = [asyncio.create_task(each.run()) for each in (functions.units, functions.queues)]
        await functions.wait_for_sync()
        api = RuntimeAPIClient(http, RuntimeAPIClientSettings(url=harness.api_url))
        counted_client: KubeClient = budget.wrap(client)
        yield WorkerLifecycle(
            client=counted_client,
            functions=functions,
            stock=budget.wrap(api),
            nats=harness.nats,
            subjects=harness.topology.subjects,
            is_leader=lambda: True,
            drain_request_timeout_seconds=1,
        )
        for each in watching:
            each.cancel()


async def worker_from_stock(harness: ActivatorHarness, name: str) -> GPUUnit:
    await harness.create_stock(name, 1)
    await harness.create_function(name, maxWorkers=1)
    async with running_lifecycle(harness, NO_KILL) as lifecycle:
        function = lifecycle.functions.by_id(harness.function_id(name))
        assert function
        await until(lambda: _sees_stock(lifecycle, name), "the stock unit is cached")
        await lifecycle.create(function, f"{name}-w0")
        await until(lambda: _is_cached(lifecycle, f"{name}-w0"), "the worker is cached")
        await until(lambda: _has_stock(harness, name, 0), "the consumed stock unit is deleted")
        worker = lifecycle.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, f"{name}-w0"))
        assert worker
        return worker


@pytest.mark.parametrize("writes", [1, 2, 3])
@pytest.mark.parametrize("stock_claimed", [False, True], ids=["stock stays", "stock is claimed"])
async def test_stock_is_returned_once_wherever_the_leader_is_killed(
    harness: ActivatorHarness, writes: int, stock_claimed: bool
) -> None:
    name = f"retire-{writes}-{'claimed' if stock_claimed else 'free'}"
    worker = await worker_from_stock(harness, name)
    async with running_lifecycle(harness, WriteBudget(writes)) as killed:
        with pytest.raises(SimulatedKill):
            await killed.retire(_cached_worker(killed, name))
    returned = writes >= 2
    if returned:
        await until(lambda: _has_stock(harness, name, 1), "the stock is returned")
    if returned and stock_claimed:
        (stock,) = await harness.list_units(STOCK_NAMESPACE, name)
        await harness.delete_unit(stock["metadata"]["name"], STOCK_NAMESPACE)
    async with running_lifecycle(harness, NO_KILL) as next_leader:
        if returned:  # the runtime API deletes the worker, but a leader with an old cache still returns the stock
            await next_leader.stock.return_to_stock(worker.metadata.annotations[Annotation.OPERATION_ID], worker)
        else:
            await next_leader.retire(_cached_worker(next_leader, name))
        await until(
            lambda: _has_stock(harness, name, 0 if returned and stock_claimed else 1), "the stock is returned once"
        )
        assert next_leader.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, f"{name}-w0")) is None
    assert await harness.list_workers(name) == []


async def test_reused_worker_name_has_another_operation_id(harness: ActivatorHarness) -> None:
    first = await worker_from_stock(harness, "again")
    async with running_lifecycle(harness, NO_KILL) as lifecycle:
        await lifecycle.retire(_cached_worker(lifecycle, "again"))
        await until(lambda: _has_stock(harness, "again", 1), "the stock is returned")
        (stock,) = await harness.list_units(STOCK_NAMESPACE, "again")
        await harness.mark_stock_ready(stock["metadata"]["name"])
        await until(lambda: _sees_stock(lifecycle, "again"), "the stock unit is cached")
        function = lifecycle.functions.by_id(harness.function_id("again"))
        assert function
        await lifecycle.create(function, "again-w0")
        await until(lambda: _is_replaced(lifecycle, first), "the new worker with the same name is cached")
        await until(lambda: _has_stock(harness, "again", 0), "the consumed stock unit is deleted")


async def test_no_stock_is_returned_for_a_unit_that_its_operation_did_not_create(harness: ActivatorHarness) -> None:
    """A suspended API replica creates the unit a second time, after the first unit was retired."""
    first = await worker_from_stock(harness, "twice")
    async with running_lifecycle(harness, NO_KILL) as lifecycle:
        await lifecycle.retire(_cached_worker(lifecycle, "twice"))
        await until(lambda: _has_stock(harness, "twice", 1), "the stock is returned")
        again = {"name": "twice-w0", "namespace": UNIT_NAMESPACE, "annotations": first.metadata.annotations}
        late = await lifecycle.client.create(GPU_UNITS, {"metadata": again, "spec": msgspec.to_builtins(first.spec)})
        await lifecycle.retire(late)
        assert await _has_stock(harness, "twice", 1)
    assert await harness.list_workers("twice") == []


def _cached_worker(lifecycle: WorkerLifecycle, name: str) -> GPUUnit:
    worker = lifecycle.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, f"{name}-w0"))
    assert worker
    return worker


async def _sees_stock(lifecycle: WorkerLifecycle, flavor: str) -> bool:
    return await lifecycle.functions.available_stock(GPUUnitSpec(spec_name=flavor), 1) > 0


async def _is_replaced(lifecycle: WorkerLifecycle, worker: GPUUnit) -> bool:
    cached = lifecycle.functions.units.store.get(worker.metadata.key)
    return cached is not None and cached.metadata.uid != worker.metadata.uid


async def _is_cached(lifecycle: WorkerLifecycle, name: str) -> bool:
    return lifecycle.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, name)) is not None


async def _has_stock(harness: ActivatorHarness, flavor: str, count: int) -> bool:
    return len(await harness.list_units(STOCK_NAMESPACE, flavor)) == count
