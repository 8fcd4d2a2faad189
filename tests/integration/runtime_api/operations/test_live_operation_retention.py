"""The eviction of operations with a real API server."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TypeAlias

import pytest
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.operation import Operation, OperationTarget, OperationType, SourceStock
from gpu_runtime.contract.errors import NoStock
from gpu_runtime.contract.operation_transitions import Committed, CreationStarted, RolledBack, StockSelected, rollback
from gpu_runtime.contract.recorded_requests import (
    RecordedPoolRequest,
    RecordedRequest,
    RecordedSeedRequest,
    RecordedUnitRequest,
)
from gpu_runtime.kube.cache_staleness import CacheStaleness
from gpu_runtime.runtime_api.operations.operation_retention import (
    MIN_AGE,
    OperationRetention,
    OperationRetentionMetrics,
)
from gpu_runtime.runtime_api.settings import OperationSettings
from localcluster.control_plane import ControlPlane
from tests.integration.runtime_api.service_replicas import ServiceReplica, service_replica

StartReplica: TypeAlias = Callable[[], AbstractAsyncContextManager[ServiceReplica]]
DAY = timedelta(days=1)
REQUESTS: dict[OperationType, Callable[[str], RecordedRequest]] = {
    OperationType.CREATE_UNIT: lambda id_: RecordedUnitRequest(
        operation_id=id_, name=id_, spec_name="g1.1", image="python"
    ),
    OperationType.SEED_STOCK: lambda id_: RecordedSeedRequest(operation_id=id_, spec_name="g1.1", replicas=1),
    OperationType.CREATE_STOCK_POOL: lambda id_: RecordedPoolRequest(operation_id=id_, spec_name="g1.1", replicas=1),
}
STOCK = SourceStock(namespace="stock", name="stock-1", uid="u1")


@pytest.fixture
def start_replica(control_plane: ControlPlane, platform_crds: tuple[str, ...], namespace: str) -> StartReplica:
    return lambda: service_replica(control_plane.kubeconfig, namespace)


def retention_of(
    replica: ServiceReplica, settings: OperationSettings, metrics: OperationRetentionMetrics
) -> OperationRetention:
    return OperationRetention(
        client=replica.client,
        informers=replica.caches,
        stale_reason=CacheStaleness(replica.caches.all).reason,
        namespace=replica.namespace,
        settings=settings,
        clock=replica.clock,
        metrics=metrics,
    )


class MeteredRetention:
    """A retention with its own metrics."""

    def __init__(
        self, replica: ServiceReplica, max_retained: int = 20_000, waiting_retention: timedelta = MIN_AGE
    ) -> None:
        self.registry = CollectorRegistry()
        metrics = OperationRetentionMetrics(self.registry)
        settings = OperationSettings(
            retention_seconds=DAY.total_seconds(),
            max_retained=max_retained,
            waiting_retention_seconds=waiting_retention.total_seconds(),
        )
        self.retention = retention_of(replica, settings, metrics)

    def evicted_count(self, reason: str) -> float:
        return self.registry.get_sample_value("gpu_runtime_operations_evicted_total", {"reason": reason}) or 0


async def create_operation(
    replica: ServiceReplica, name: str, kind: OperationType = OperationType.SEED_STOCK, caller: str = "tests"
) -> Operation:
    target = OperationTarget(kind="GPUUnit", namespace=replica.namespace, name=name)
    return (await replica.operation_store.record(REQUESTS[kind](name), target, caller=caller)).operation


async def finish(replica: ServiceReplica, operation: Operation, *, fails: bool = False) -> None:
    """Move a seed operation to Succeeded or Failed."""
    operation = await replica.operation_store.write(operation, CreationStarted())
    if fails:
        operation = await replica.operation_store.write(operation, rollback(NoStock("none")))
    await replica.operation_store.write(operation, RolledBack() if fails else Committed(("u1",)))


async def test_finished_operation_is_evicted_after_the_retention(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        metered = MeteredRetention(one)
        early, late = await create_operation(one, "early"), await create_operation(one, "late")
        await finish(one, early)
        one.clock.offset = timedelta(hours=6)
        await finish(one, late, fails=True)
        one.clock.offset = DAY - timedelta(minutes=1)
        await metered.retention.run_once()
        assert sorted(await one.operations()) == ["early", "late"]
        one.clock.offset = DAY + timedelta(minutes=1)
        await metered.retention.run_once()
        assert sorted(await one.operations()) == ["late"]
        one.clock.offset = DAY + timedelta(hours=7)
        await metered.retention.run_once()
        assert await one.operations() == {}
        assert metered.evicted_count("ttl") == 2


async def test_unfinished_operation_is_retained_at_any_age(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        metered = MeteredRetention(one)
        unit = OperationType.CREATE_UNIT
        await create_operation(one, "seeding")
        await create_operation(one, "pool", OperationType.CREATE_STOCK_POOL)
        await create_operation(one, "waiting", unit)
        await one.operation_store.write(await create_operation(one, "chosen", unit), StockSelected(STOCK))
        one.clock.offset = 30 * DAY
        await metered.retention.run_once()
        assert sorted(await one.operations()) == ["chosen", "pool", "seeding"]


async def test_two_replicas_evict_each_operation_once(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        for number in range(20):
            await create_finished_operation(one, f"done-{number}")
        one.clock.offset = other.clock.offset = 2 * DAY
        fresh = await create_operation(one, "fresh")
        await finish(one, fresh)
        metered = [MeteredRetention(one), MeteredRetention(other)]
        await asyncio.gather(*(each.retention.run_once() for each in metered))
        assert list(await one.operations()) == ["fresh"]
        assert sum(each.evicted_count("ttl") for each in metered) == 20


async def test_oldest_finished_operations_above_the_limit_are_evicted_and_logged(
    start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_replica() as one:
        metered = MeteredRetention(one, max_retained=100)
        await create_operation(one, "seeding")  # the oldest operation, not finished
        for number in range(60):
            one.clock.offset = timedelta(seconds=number)
            await create_finished_operation(one, f"old-{number}")
        one.clock.offset = timedelta(hours=3)
        async with asyncio.TaskGroup() as tasks:
            for number in range(49):
                tasks.create_task(create_finished_operation(one, f"new-{number}"))
        await metered.retention.run_once()
        retained = await one.operations()
        assert len(retained) == 100
        assert "seeding" in retained
        assert [number for number in range(60) if f"old-{number}" not in retained] == list(range(10))
        assert metered.evicted_count("count") == 10
        assert [record.levelno for record in caplog.records if "evicts the oldest operations" in record.message] == [
            logging.WARNING
        ]
        await metered.retention.run_once()
        assert len(await one.operations()) == 100


async def test_operations_waiting_for_stock_are_evicted_before_finished_ones(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        metered = MeteredRetention(one, max_retained=100, waiting_retention=DAY)
        async with asyncio.TaskGroup() as tasks:
            for number in range(101):
                tasks.create_task(create_operation(one, f"waiting-{number}", OperationType.CREATE_UNIT))
            tasks.create_task(create_finished_operation(one, "done"))
        await metered.retention.run_once()
        assert len(await one.operations()) == 102, "an operation may still run shortly after it was recorded"
        one.clock.offset = MIN_AGE + timedelta(seconds=2)
        await metered.retention.run_once()
        retained = await one.operations()
        assert len(retained) == 100
        assert "done" in retained
        assert metered.evicted_count("count") == 2


async def test_operation_waiting_for_stock_is_evicted_after_ten_minutes(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        metered = MeteredRetention(one)
        await create_operation(one, "waiting", OperationType.CREATE_UNIT)
        await create_finished_operation(one, "done")
        await until_cached(one, "waiting")
        one.clock.offset = timedelta(minutes=9)
        await metered.retention.run_once()
        assert sorted(await one.operations()) == ["done", "waiting"]
        one.clock.offset = timedelta(minutes=11)
        await metered.retention.run_once()
        assert sorted(await one.operations()) == ["done"]
        assert metered.evicted_count("waiting") == 1


async def test_caller_with_the_most_operations_loses_its_oldest(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        metered = MeteredRetention(one, max_retained=100)
        await create_finished_operation(one, "other-0", caller="other")
        one.clock.offset = timedelta(seconds=1)
        async with asyncio.TaskGroup() as tasks:
            for number in range(109):
                tasks.create_task(create_finished_operation(one, f"flood-{number}", caller="flood"))
        one.clock.offset = timedelta(hours=1)
        await metered.retention.run_once()
        retained = await one.operations()
        assert len(retained) == 100
        assert "other-0" in retained


async def until_cached(replica: ServiceReplica, operation_id: str) -> None:
    cache = replica.caches.unfinished_operations.store
    while not any(each.spec.operation_id == operation_id for each in cache.all()):  # noqa: ASYNC110 - a cache
        await asyncio.sleep(0.02)


async def test_selector_of_the_longest_retention_is_accepted(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        settings, metrics = (
            OperationSettings(retention_seconds=30 * DAY.total_seconds()),
            OperationRetentionMetrics(CollectorRegistry()),
        )
        retention = retention_of(one, settings, metrics)
        await create_finished_operation(one, "done")
        one.clock.offset = 30 * DAY - timedelta(minutes=1)
        await retention.run_once()
        assert list(await one.operations()) == ["done"]
        one.clock.offset = 30 * DAY + timedelta(minutes=1)
        await retention.run_once()
        assert await one.operations() == {}


async def create_finished_operation(replica: ServiceReplica, name: str, caller: str = "tests") -> None:
    await finish(replica, await create_operation(replica, name, caller=caller))
