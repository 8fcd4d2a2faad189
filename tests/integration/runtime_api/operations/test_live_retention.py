"""Forgetting operations on a real API server."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TypeAlias

import pytest
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.operation import Operation, OperationType, SourceStock, Target
from gpu_runtime.runtime_api.operations.operation_retention import Retention, RetentionMetrics
from gpu_runtime.runtime_api.settings import Operations
from gpu_runtime.runtime_api.stock.requests import SeedStock
from localcluster.control_plane import ControlPlane
from tests.integration.runtime_api.replicas import Replica, replica

StartReplica: TypeAlias = Callable[[], AbstractAsyncContextManager[Replica]]
DAY = timedelta(days=1)
STOCK = SourceStock(namespace="stock", name="stock-1", uid="u1")


@pytest.fixture
def start_replica(control_plane: ControlPlane, platform_crds: tuple[str, ...], namespace: str) -> StartReplica:
    return lambda: replica(control_plane.kubeconfig, namespace)


class Kept:
    """A retention and what it counts."""

    def __init__(self, of: Replica, most: int = 20_000) -> None:
        self.registry = CollectorRegistry()
        metrics = RetentionMetrics(self.registry)
        settings = Operations(retention_seconds=DAY.total_seconds(), most=most)
        self.retention = Retention(of.client, of.namespace, settings=settings, clock=of.clock, metrics=metrics)

    def forgotten(self, why: str) -> float:
        return self.registry.get_sample_value("runtime_api_operations_forgotten_total", {"why": why}) or 0


async def record(of: Replica, name: str, kind: OperationType = OperationType.SEED_STOCK) -> Operation:
    asked = SeedStock(operation_id=name, spec_name="g1.1", replicas=1)
    target = Target(kind="GPUUnit", namespace=of.namespace, name=name)
    return (await of.ledger.record(kind, name, asked, target)).operation


async def test_what_is_finished_is_forgotten_a_retention_time_after_its_end(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        kept = Kept(one)
        early, late = await record(one, "early"), await record(one, "late")
        await one.ledger.succeed(early)
        one.clock.ahead = timedelta(hours=6)
        await one.ledger.fail(late)
        one.clock.ahead = DAY - timedelta(minutes=1)
        await kept.retention.once()
        assert sorted(await one.operations()) == ["early", "late"]
        one.clock.ahead = DAY + timedelta(minutes=1)
        await kept.retention.once()
        assert sorted(await one.operations()) == ["late"]
        one.clock.ahead = DAY + timedelta(hours=7)
        await kept.retention.once()
        assert await one.operations() == {}
        assert kept.forgotten("expired") == 2


async def test_what_somebody_must_still_end_is_kept_however_old(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        kept = Kept(one)
        unit = OperationType.CREATE_UNIT
        await record(one, "seeding")
        await record(one, "pool", OperationType.CREATE_STOCK_POOL)
        await record(one, "waiting", unit)
        await one.ledger.start(await record(one, "chosen", unit), stock=STOCK)
        one.clock.ahead = 30 * DAY
        await kept.retention.once()
        assert sorted(await one.operations()) == ["chosen", "pool", "seeding"]


async def test_two_replicas_forget_no_more_than_one(start_replica: StartReplica) -> None:
    async with start_replica() as one, start_replica() as other:
        for number in range(20):
            await one.ledger.succeed(await record(one, f"done-{number}"))
        one.clock.ahead = other.clock.ahead = 2 * DAY
        fresh = await record(one, "fresh")
        await one.ledger.succeed(fresh)
        kept = [Kept(one), Kept(other)]
        await asyncio.gather(*(each.retention.once() for each in kept))
        assert list(await one.operations()) == ["fresh"]
        assert sum(each.forgotten("expired") for each in kept) == 20


async def test_beyond_the_most_the_oldest_finished_ones_are_forgotten_and_it_is_said(
    start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    async with start_replica() as one:
        kept = Kept(one, most=100)
        await record(one, "seeding")  # the oldest of all, and not finished
        for number in range(60):
            one.clock.ahead = timedelta(seconds=number)
            await finished(one, f"old-{number}")
        one.clock.ahead = timedelta(hours=3)
        async with asyncio.TaskGroup() as tasks:
            for number in range(49):
                tasks.create_task(finished(one, f"new-{number}"))
        await kept.retention.once()
        left = await one.operations()
        assert len(left) == 100
        assert "seeding" in left
        assert [number for number in range(60) if f"old-{number}" not in left] == list(range(10))
        assert kept.forgotten("too_many") == 10
        assert [record.levelno for record in caplog.records if "before their time" in record.message] == [
            logging.WARNING
        ]
        await kept.retention.once()
        assert len(await one.operations()) == 100


async def test_what_only_waits_for_stock_goes_when_nothing_finished_is_left(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        kept = Kept(one, most=100)
        async with asyncio.TaskGroup() as tasks:
            for number in range(101):
                tasks.create_task(record(one, f"waiting-{number}", OperationType.CREATE_UNIT))
            tasks.create_task(finished(one, "done"))
        await kept.retention.once()
        left = await one.operations()
        assert len(left) == 100
        assert "done" not in left


async def test_the_longest_retention_is_no_selector_too_long(start_replica: StartReplica) -> None:
    async with start_replica() as one:
        settings, metrics = (
            Operations(retention_seconds=30 * DAY.total_seconds()),
            RetentionMetrics(CollectorRegistry()),
        )
        retention = Retention(one.client, one.namespace, settings=settings, clock=one.clock, metrics=metrics)
        await finished(one, "done")
        one.clock.ahead = 30 * DAY - timedelta(minutes=1)
        await retention.once()
        assert list(await one.operations()) == ["done"]
        one.clock.ahead = 30 * DAY + timedelta(minutes=1)
        await retention.once()
        assert await one.operations() == {}


async def finished(of: Replica, name: str) -> None:
    await of.ledger.succeed(await record(of, name))
