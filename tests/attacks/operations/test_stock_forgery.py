"""A user with the right to write GPUUnits tries to get stock that was never seeded, or larger stock."""

import asyncio
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.kube.cache_staleness import CacheStaleness
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetention, OperationRetentionMetrics
from gpu_runtime.runtime_api.settings import APINamespaceSettings, OperationSettings
from tests.integration.activator.activator_harness import STOCK_NAMESPACE, UNIT_NAMESPACE, ActivatorHarness, until
from tests.integration.activator.test_worker_lifecycle import NO_KILL, running_lifecycle, worker_from_stock
from tests.integration.controller_manager.conftest import UNIT, Object
from tests.integration.runtime_api.service_replicas import AdjustableClock

SECONDS_UNTIL_RETURN = 3.0
"""A return of stock takes less time than this."""


async def retire(harness: ActivatorHarness, name: str) -> None:
    """Retire the worker, as the leading activator does, and wait until a return would be finished."""
    async with running_lifecycle(harness, NO_KILL) as lifecycle:
        key = ObjectKey(UNIT_NAMESPACE, name)
        await until(lambda: _is_cached(lifecycle, key), "the worker is cached")
        worker = lifecycle.functions.units.store.get(key)
        assert worker
        await lifecycle.retire(worker)


async def _is_cached(lifecycle: Any, key: ObjectKey) -> bool:
    return lifecycle.functions.units.store.get(key) is not None


async def stock_of(harness: ActivatorHarness, *flavors: str) -> list[Object]:
    return [each for flavor in flavors for each in await harness.list_units(STOCK_NAMESPACE, flavor)]


async def forge_worker(harness: ActivatorHarness, name: str, annotations: dict[str, str], **spec: Any) -> None:
    serverless = {"enabled": True, "requestID": name, "workerOf": name}
    worker = {"specName": name, "image": "python:3.12", "gpu": 8, "memory": "64Gi", "serverless": serverless, **spec}
    metadata = ObjectMeta(name=f"{name}-w7", namespace=UNIT_NAMESPACE, annotations=annotations)
    await harness.kube.create(UNIT(metadata=metadata, spec=worker))


@pytest.mark.parametrize(
    "operation_id", ["", "never-existed", "x" * 300], ids=["no operation", "evicted operation", "overlong operation"]
)
async def test_unit_with_made_up_annotations_returns_no_stock(harness: ActivatorHarness, operation_id: str) -> None:
    name = f"forged-{len(operation_id)}"
    annotations = {Annotation.SOURCE_STOCK_UID: "made-up", Annotation.SOURCE_STOCK_NAME: "made-up"}
    await forge_worker(harness, name, annotations | ({Annotation.OPERATION_ID: operation_id} if operation_id else {}))
    await retire(harness, f"{name}-w7")
    await asyncio.sleep(SECONDS_UNTIL_RETURN)
    assert await stock_of(harness, name) == []
    assert await harness.list_workers(name) == []


async def test_unit_with_the_operation_of_another_worker_returns_no_stock(harness: ActivatorHarness) -> None:
    """The attacker copies all annotations of a worker from stock, and reserves more."""
    worker = await worker_from_stock(harness, "copied")
    await forge_worker(harness, "copied", worker.metadata.annotations)
    await retire(harness, "copied-w7")
    await asyncio.sleep(SECONDS_UNTIL_RETURN)
    assert await stock_of(harness, "copied") == []
    await retire(harness, "copied-w0")
    await until(lambda: _has_stock(harness, "copied", 1), "the stock of the real worker is returned")


async def test_worker_with_a_larger_reservation_returns_the_stock_that_it_was_created_from(
    harness: ActivatorHarness,
) -> None:
    await worker_from_stock(harness, "larger")
    larger = {"spec": {"memory": "640Gi", "cpu": "64"}}
    await harness.kube.patch(UNIT, "larger-w0", larger, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)
    await retire(harness, "larger-w0")
    await until(lambda: _has_stock(harness, "larger", 1), "the stock is returned")
    (returned,) = await stock_of(harness, "larger")
    assert returned["spec"].get("memory") == "2Gi"
    assert "cpu" not in returned["spec"]


async def test_operation_of_a_living_worker_is_not_evicted(harness: ActivatorHarness) -> None:
    """Without its operation, a worker could not prove where its GPUs came from."""
    worker = await worker_from_stock(harness, "old")
    operation_id = worker.metadata.annotations[Annotation.OPERATION_ID]
    async with open_kube_client(load_cluster_config(harness.control_plane.kubeconfig), field_manager="test") as client:
        informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
        tasks = [asyncio.create_task(each.run()) for each in informers.all]
        await asyncio.gather(*(each.wait_for_sync() for each in informers.all))
        clock = AdjustableClock()
        clock.offset = timedelta(days=30)
        metrics = OperationRetentionMetrics(CollectorRegistry())
        stale_reason = CacheStaleness(informers.all).reason
        settings = OperationSettings(max_retained=0)
        await OperationRetention(client, informers, stale_reason, "runtime-system", settings, clock, metrics).run_once()
        for task in tasks:
            task.cancel()
        key = ObjectKey("runtime-system", operation_name(operation_id))
        assert await find_live(client, OPERATIONS, key) is not None
    await retire(harness, "old-w0")
    await until(lambda: _has_stock(harness, "old", 1), "the stock is returned")


async def test_unit_of_a_user_returns_no_stock_to_the_holder_of_the_activator_token(harness: ActivatorHarness) -> None:
    """The route returns only stock of workers. Otherwise the token could delete units of users."""
    await harness.create_stock("private", 1)
    unit = {"operationID": "make-private", "name": "private", "specName": "private", "image": "python:3.12"}
    created = await post(harness, "gpu-units", unit)
    assert created["data"]["name"] == "private"
    (found,) = await harness.list_units(UNIT_NAMESPACE, "private")
    body = {"operationID": "make-private", "unitUID": found["metadata"]["uid"]}
    assert (await post(harness, "operator/stock-returns", body))["error"]["code"] == "no_stock_to_return"
    assert len(await harness.list_units(UNIT_NAMESPACE, "private")) == 1


async def test_caller_cannot_take_the_operation_id_of_a_return(harness: ActivatorHarness) -> None:
    """Otherwise a caller could prevent that a worker is retired."""
    worker = await worker_from_stock(harness, "blocked")
    for operation_id in (f"return-{worker.metadata.uid}", f"gpu-runtime:return-{worker.metadata.uid}"):
        unit = {"operationID": operation_id, "name": "blocker", "specName": "blocked", "image": "python:3.12"}
        await post(harness, "gpu-units", unit)
    await retire(harness, "blocked-w0")
    await until(lambda: _has_stock(harness, "blocked", 1), "the stock is returned")


async def post(harness: ActivatorHarness, path: str, body: Object) -> Object:
    async with aiohttp.ClientSession() as http, http.post(f"{harness.api_url}/api/v1/{path}", json=body) as response:
        return dict(await response.json())


async def _has_stock(harness: ActivatorHarness, flavor: str, count: int) -> bool:
    return len(await harness.list_units(STOCK_NAMESPACE, flavor)) == count
