"""The end of a worker, cut short after each of its writes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
import pytest

from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.activator.runtime_api_client import StockAPI
from gpu_runtime.activator.settings import API
from gpu_runtime.activator.worker_lifecycle import Lifecycle
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.meta import Key
from tests.integration.activator.plane import IDENTITY, STOCK, UNITS, Plane, until

WRITES = ("merge_patch", "create", "delete", "give_back")


class Died(Exception):
    """The process did not live to see the answer."""


@dataclass
class Mortal:
    """Dies after so many writes, which are carried out."""

    lives: int

    def over(self, inner: Any) -> Any:
        return _Watched(inner, self)


class _Watched:
    def __init__(self, inner: Any, mortal: Mortal) -> None:
        self._inner, self._mortal = inner, mortal

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in WRITES:
            return found

        async def written(*arguments: Any, **options: Any) -> Any:
            answer = await found(*arguments, **options)
            self._mortal.lives -= 1
            if self._mortal.lives == 0:
                raise Died
            return answer

        return written


@asynccontextmanager
async def lifecycle(plane: Plane, mortal: Mortal) -> AsyncIterator[Lifecycle]:
    config = load_config(plane.control.kubeconfig_for("activator", IDENTITY))
    async with connect(config, field_manager="activator") as client, aiohttp.ClientSession() as http:
        functions = Functions(client, STOCK)
        watching = asyncio.create_task(functions.units.run())
        await functions.units.synced()
        api = StockAPI(http, API(url=plane.api_url))
        watched: Client = mortal.over(client)
        yield Lifecycle(
            client=watched,
            functions=functions,
            stock=mortal.over(api),
            nats=plane.nats,
            subjects=plane.topology.subjects,
            leading=lambda: True,
            system_namespace="runtime-system",
            drain_seconds=1,
        )
        watching.cancel()


async def worker_from_stock(plane: Plane, name: str) -> GPUUnit:
    await plane.stock(name, 1)
    await plane.function(name, maxWorkers=1)
    async with lifecycle(plane, Mortal(lives=-1)) as living:
        function = living.functions.serving(name)
        assert function
        await until(lambda: _sees_stock(living, name), "the stock is known")
        await living.make(function, f"{name}-w0")
        await until(lambda: _knows(living, f"{name}-w0"), "the worker is known")
        made = living.functions.units.store.get(Key(UNITS, f"{name}-w0"))
        assert made
        return made


@pytest.mark.parametrize("lives", [1, 2, 3])
@pytest.mark.parametrize("taken_meanwhile", [False, True], ids=["stock stays", "stock is taken"])
async def test_the_stock_comes_back_once_wherever_a_leader_dies(
    plane: Plane, lives: int, taken_meanwhile: bool
) -> None:
    name = f"end-{lives}-{'taken' if taken_meanwhile else 'left'}"
    await worker_from_stock(plane, name)
    async with lifecycle(plane, Mortal(lives)) as dying:
        with pytest.raises(Died):
            await dying.retire(_worker(dying, name))
    returned = lives >= 2
    if returned:
        await until(lambda: _stock_is(plane, name, 1), "the stock is back")
    if returned and taken_meanwhile:
        (stock,) = await plane.units(STOCK, name)
        await plane.delete(stock["metadata"]["name"], STOCK)
    async with lifecycle(plane, Mortal(lives=-1)) as next_one:
        if lives < 3:
            await next_one.retire(_worker(next_one, name))
        await until(lambda: _stock_is(plane, name, 0 if returned and taken_meanwhile else 1), "the stock is as it was")
        assert next_one.functions.units.store.get(Key(UNITS, f"{name}-w0")) is None
    assert await plane.workers(name) == []


async def test_a_name_that_is_used_again_is_another_operation(plane: Plane) -> None:
    first = await worker_from_stock(plane, "again")
    async with lifecycle(plane, Mortal(lives=-1)) as living:
        await living.retire(_worker(living, "again"))
        await until(lambda: _stock_is(plane, "again", 1), "the stock is back")
        (stock,) = await plane.units(STOCK, "again")
        await plane.ready(stock["metadata"]["name"])
        await until(lambda: _sees_stock(living, "again"), "the stock is known")
        function = living.functions.serving("again")
        assert function
        await living.make(function, "again-w0")
        await until(lambda: _knows(living, "again-w0"), "the worker is known")
        assert _worker(living, "again").metadata.uid != first.metadata.uid
        assert await plane.units(STOCK, "again") == []


async def test_of_a_unit_that_its_operation_did_not_make_no_stock_comes_back(plane: Plane) -> None:
    """A process that slept made the unit once more, after the first one was retired."""
    first = await worker_from_stock(plane, "twice")
    async with lifecycle(plane, Mortal(lives=-1)) as living:
        await living.retire(_worker(living, "twice"))
        await until(lambda: _stock_is(plane, "twice", 1), "the stock is back")
        again = {"name": "twice-w0", "namespace": UNITS, "annotations": first.metadata.annotations}
        late = await living.client.create(GPU_UNITS, {"metadata": again, "spec": msgspec.to_builtins(first.spec)})
        await living.retire(late)
        assert await _stock_is(plane, "twice", 1)
    assert await plane.workers("twice") == []


def _worker(living: Lifecycle, name: str) -> GPUUnit:
    found = living.functions.units.store.get(Key(UNITS, f"{name}-w0"))
    assert found
    return found


async def _sees_stock(living: Lifecycle, flavour: str) -> bool:
    return living.functions.stock(flavour) > 0


async def _knows(living: Lifecycle, name: str) -> bool:
    return living.functions.units.store.get(Key(UNITS, name)) is not None


async def _stock_is(plane: Plane, flavour: str, count: int) -> bool:
    return len(await plane.units(STOCK, flavour)) == count
