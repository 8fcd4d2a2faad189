"""The end of a worker, cut short after each of its writes."""

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
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
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

WRITES = ("merge_patch", "create", "delete", "give_back")


class SimulatedKill(Exception):
    """The process did not live to see the answer."""


@dataclass
class WriteBudget:
    """Dies after so many writes, which are carried out."""

    lives: int

    def is_exhausted(self, inner: Any) -> Any:
        return _CountedClient(inner, self)


class _CountedClient:
    def __init__(self, inner: Any, mortal: WriteBudget) -> None:
        self._inner, self._mortal = inner, mortal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in WRITES:
            return found

        async def written(*arguments: Any, **options: Any) -> Any:
            answer = await found(*arguments, **options)
            self._mortal.lives -= 1
            if self._mortal.lives == 0:
                raise SimulatedKill
            return answer

        return written


@asynccontextmanager
async def running_lifecycle(plane: ActivatorHarness, mortal: WriteBudget) -> AsyncIterator[WorkerLifecycle]:
    config = load_cluster_config(plane.control_plane.kubeconfig_for("activator", ACTIVATOR_USER))
    async with open_kube_client(config, field_manager="activator") as client, aiohttp.ClientSession() as http:
        functions = FunctionLister(client, STOCK_NAMESPACE)
        watching = asyncio.create_task(functions.units.run())
        await functions.units.wait_for_sync()
        api = RuntimeAPIClient(http, RuntimeAPIClientSettings(url=plane.api_url))
        watched: KubeClient = mortal.is_exhausted(client)
        yield WorkerLifecycle(
            client=watched,
            functions=functions,
            stock=mortal.is_exhausted(api),
            nats=plane.nats,
            subjects=plane.topology.subjects,
            is_leader=lambda: True,
            system_namespace="runtime-system",
            drain_request_timeout_seconds=1,
        )
        watching.cancel()


async def worker_from_stock(plane: ActivatorHarness, name: str) -> GPUUnit:
    await plane.create_stock(name, 1)
    await plane.create_function(name, maxWorkers=1)
    async with running_lifecycle(plane, WriteBudget(lives=-1)) as living:
        function = living.functions.by_request_id(name)
        assert function
        await until(lambda: _sees_stock(living, name), "the stock is known")
        await living.create(function, f"{name}-w0")
        await until(lambda: _knows(living, f"{name}-w0"), "the worker is known")
        made = living.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, f"{name}-w0"))
        assert made
        return made


@pytest.mark.parametrize("lives", [1, 2, 3])
@pytest.mark.parametrize("taken_meanwhile", [False, True], ids=["stock stays", "stock is taken"])
async def test_stock_is_returned_once_wherever_the_leader_is_killed(
    harness: ActivatorHarness, lives: int, taken_meanwhile: bool
) -> None:
    name = f"end-{lives}-{'taken' if taken_meanwhile else 'left'}"
    await worker_from_stock(harness, name)
    async with running_lifecycle(harness, WriteBudget(lives)) as dying:
        with pytest.raises(SimulatedKill):
            await dying.retire(_cached_worker(dying, name))
    returned = lives >= 2
    if returned:
        await until(lambda: _has_stock(harness, name, 1), "the stock is back")
    if returned and taken_meanwhile:
        (stock,) = await harness.list_units(STOCK_NAMESPACE, name)
        await harness.delete_unit(stock["metadata"]["name"], STOCK_NAMESPACE)
    async with running_lifecycle(harness, WriteBudget(lives=-1)) as next_one:
        if lives < 3:
            await next_one.retire(_cached_worker(next_one, name))
        await until(
            lambda: _has_stock(harness, name, 0 if returned and taken_meanwhile else 1), "the stock is as it was"
        )
        assert next_one.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, f"{name}-w0")) is None
    assert await harness.list_workers(name) == []


async def test_reused_worker_name_has_another_operation_id(harness: ActivatorHarness) -> None:
    first = await worker_from_stock(harness, "again")
    async with running_lifecycle(harness, WriteBudget(lives=-1)) as living:
        await living.retire(_cached_worker(living, "again"))
        await until(lambda: _has_stock(harness, "again", 1), "the stock is back")
        (stock,) = await harness.list_units(STOCK_NAMESPACE, "again")
        await harness.mark_stock_ready(stock["metadata"]["name"])
        await until(lambda: _sees_stock(living, "again"), "the stock is known")
        function = living.functions.by_request_id("again")
        assert function
        await living.create(function, "again-w0")
        await until(lambda: _knows(living, "again-w0"), "the worker is known")
        assert _cached_worker(living, "again").metadata.uid != first.metadata.uid
        assert await harness.list_units(STOCK_NAMESPACE, "again") == []


async def test_no_stock_is_returned_for_a_unit_that_its_operation_did_not_create(harness: ActivatorHarness) -> None:
    """A process that slept made the unit once more, after the first one was retired."""
    first = await worker_from_stock(harness, "twice")
    async with running_lifecycle(harness, WriteBudget(lives=-1)) as living:
        await living.retire(_cached_worker(living, "twice"))
        await until(lambda: _has_stock(harness, "twice", 1), "the stock is back")
        again = {"name": "twice-w0", "namespace": UNIT_NAMESPACE, "annotations": first.metadata.annotations}
        late = await living.client.create(GPU_UNITS, {"metadata": again, "spec": msgspec.to_builtins(first.spec)})
        await living.retire(late)
        assert await _has_stock(harness, "twice", 1)
    assert await harness.list_workers("twice") == []


def _cached_worker(living: WorkerLifecycle, name: str) -> GPUUnit:
    found = living.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, f"{name}-w0"))
    assert found
    return found


async def _sees_stock(living: WorkerLifecycle, flavor: str) -> bool:
    return living.functions.available_stock(flavor) > 0


async def _knows(living: WorkerLifecycle, name: str) -> bool:
    return living.functions.units.store.get(ObjectKey(UNIT_NAMESPACE, name)) is not None


async def _has_stock(plane: ActivatorHarness, flavor: str, count: int) -> bool:
    return len(await plane.list_units(STOCK_NAMESPACE, flavor)) == count
