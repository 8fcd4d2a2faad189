"""Which operations are evicted, and when."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Self, cast

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.operation import OPERATIONS, Operation, OperationState, OperationSummary, OperationType
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions, ListPage
from gpu_runtime.kube.errors import ApiStatus, KubeConflict
from gpu_runtime.kube.meta import ApiResource, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.operation_retention import (
    MIN_AGE,
    OperationRetention,
    OperationRetentionMetrics,
    choose_evictions,
    is_expired,
    retained_hours,
    sort_by_age,
    surplus_by_caller,
)
from gpu_runtime.runtime_api.settings import APINamespaceSettings, OperationSettings
from tests.unit.runtime_api.interleaved_kube import FakeKubeServer
from tests.unit.runtime_api.runtime_api_objects import STOCK, operation

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DAY = timedelta(days=1)
UNIT, SEED, POOL = OperationType.CREATE_UNIT, OperationType.SEED_STOCK, OperationType.CREATE_STOCK_POOL


def summary(full: Operation) -> OperationSummary:
    return msgspec.json.decode(msgspec.json.encode(full), type=OperationSummary)


FINISHED_LATE: dict[str, Any] = {"finished_at": "2026-01-02T09:00:00Z"}


@pytest.mark.parametrize(
    ("full", "age", "expired"),
    [
        (operation(SEED, OperationState.SUCCEEDED, **FINISHED_LATE), DAY + timedelta(hours=5), False),
        (operation(SEED, OperationState.SUCCEEDED, **FINISHED_LATE), DAY + timedelta(hours=6), True),
        (operation(UNIT, OperationState.FAILED, **FINISHED_LATE), DAY + timedelta(hours=6), True),
        (operation(UNIT, OperationState.ACCEPTED), DAY - timedelta(seconds=1), False),
        (operation(UNIT, OperationState.ACCEPTED), DAY, True),
        (operation(UNIT, OperationState.ACCEPTED, stock=STOCK), 30 * DAY, False),
        (operation(UNIT, OperationState.RUNNING, stock=STOCK), 30 * DAY, False),
        (operation(UNIT, OperationState.ACCEPTED, recorded_with=STOCK), 30 * DAY, False),
        (operation(UNIT, OperationState.ACCEPTED, recorded_with=STOCK, attempt=1), DAY, True),
        (operation(UNIT, OperationState.ACCEPTED, attempt=1, started_at="2026-01-02T09:00:00Z"), DAY, False),
        (operation(UNIT, OperationState.ACCEPTED, attempt=1, started_at="2026-01-02T09:00:00Z"), 2 * DAY, True),
        (operation(UNIT, OperationState.RUNNING), 30 * DAY, False),
        (operation(UNIT, OperationState.ROLLING_BACK), 30 * DAY, False),
        (operation(SEED, OperationState.ACCEPTED), 30 * DAY, False),
        (operation(SEED, OperationState.RUNNING), 30 * DAY, False),
        (operation(POOL, OperationState.ACCEPTED), 30 * DAY, False),
        (operation(POOL, OperationState.ROLLING_BACK), 30 * DAY, False),
    ],
)
def test_only_finished_and_waiting_operations_expire(full: Operation, age: timedelta, expired: bool) -> None:
    assert is_expired(summary(full), CREATED + age, DAY) is expired


@pytest.mark.parametrize("state", [OperationState.SUCCEEDED, OperationState.ACCEPTED])
def test_no_operation_expires_while_a_run_of_its_attempt_may_be_in_progress(state: OperationState) -> None:
    full = operation(UNIT, state, attempt=1)
    assert not is_expired(summary(full), CREATED + MIN_AGE - timedelta(seconds=1), timedelta(seconds=60))
    assert is_expired(summary(full), CREATED + MIN_AGE, timedelta(seconds=60))


@pytest.mark.parametrize("minute", [0, 1, 59])
@pytest.mark.parametrize("retention", [timedelta(seconds=60), timedelta(minutes=90), DAY, 30 * DAY])
def test_hour_with_an_expired_operation_is_scanned(minute: int, retention: timedelta) -> None:
    now = datetime(2026, 1, 2, 3, minute, 30, tzinfo=UTC)
    hours = retained_hours(now, retention)
    for late in (timedelta(), timedelta(seconds=1), timedelta(hours=1)):
        assert (now - retention - late).strftime("%Y-%m-%dT%H") not in hours
    assert (now - retention + timedelta(hours=1)).strftime("%Y-%m-%dT%H") in hours
    assert len(hours) <= retention / timedelta(hours=1) + 2


def test_operations_of_one_hour_are_evicted_in_finish_order() -> None:
    times = ["2026-01-02T09:00:00Z", "2026-01-02T08:00:00Z", "2026-01-02T08:30:00Z"]
    summaries = [summary(operation(state=OperationState.SUCCEEDED, finished_at=time)) for time in times]
    assert [each.status.finished_at for each in sort_by_age(summaries)] == sorted(times)


@pytest.mark.parametrize(
    ("counts", "max_retained", "surplus"),
    [
        ({"a": 5, "b": 5}, 10, {}),
        ({"a": 20, "b": 1}, 10, {"a": 11}),
        ({"a": 20, "b": 6}, 10, {"a": 15, "b": 1}),
        ({"a": 9, "b": 9, "c": 2}, 10, {"a": 5, "b": 5}),
        ({"a": 1000, "b": 3, "c": 3}, 10, {"a": 996}),
        ({"a": 3, "b": 3}, 0, {"a": 3, "b": 3}),
        ({}, 10, {}),
    ],
)
def test_callers_with_the_most_operations_lose_first(
    counts: dict[str, int], max_retained: int, surplus: dict[str, int]
) -> None:
    found = surplus_by_caller(counts, max_retained)
    assert found == surplus
    assert sum(counts.values()) - found.total() <= max_retained


def test_caller_loses_waiting_operations_before_finished_ones() -> None:
    finished = summary(operation(UNIT, OperationState.SUCCEEDED, finished_at="2026-01-02T03:00:00Z"))
    waiting = summary(operation(UNIT, OperationState.ACCEPTED, attempt=1, started_at="2026-01-02T09:00:00Z"))
    assert choose_evictions([finished, waiting], {"": 1}) == [waiting]
    assert choose_evictions([finished, waiting], {"": 2}) == [waiting, finished]
    assert choose_evictions([finished, waiting], {"another": 2}) == []


class RacingClient:
    """A client whose delete arrives after a repeated request has resumed the operation."""

    def __init__(self, server: FakeKubeServer) -> None:
        self.server = server

    def with_options(self, *_: object, **__: object) -> Self:
        return self

    async def pages(self, resource: ApiResource[Any], _options: ListOptions) -> AsyncIterator[ListPage[Any]]:
        yield ListPage(tuple(msgspec.convert(each, resource.model) for each in self.server.all(OPERATIONS)), "1")

    async def count(self, *_: object) -> int:
        return 1

    async def delete(self, resource: ApiResource[Any], key: ObjectKey, *, uid: str, resource_version: str = "") -> None:
        stock = {"namespace": "runtime-stock", "name": "stock-0", "uid": "stock-uid"}
        resumed = {"status": {"state": "Running", "attempt": 1, "stock": stock}}
        self.server.patch(OPERATIONS, key, resumed, "status")
        found = self.server.existing(resource, key)["metadata"]
        if uid != found["uid"] or resource_version not in ("", found["resourceVersion"]):
            raise KubeConflict(ApiStatus(code=409, reason="Conflict", message="the object has changed"))
        self.server.delete(resource, key, uid)


class LaterClock(SystemClock):
    def now(self) -> datetime:
        return CREATED + 400 * DAY


async def test_waiting_operation_that_is_resumed_in_the_meantime_is_not_evicted() -> None:
    server, key = FakeKubeServer(), ObjectKey("runtime-system", "op")
    target = {"kind": "GPUUnit", "namespace": "runtime-instance", "name": "web"}
    spec = {"operationID": "op", "type": "CreateUnit", "requestHash": "0" * 64, "target": target}
    metadata = {"namespace": key.namespace, "name": key.name, "creationTimestamp": "2026-01-02T03:04:05Z"}
    server.create(OPERATIONS, {"metadata": metadata, "spec": spec})
    metrics = OperationRetentionMetrics(CollectorRegistry())
    client = cast(KubeClient, RacingClient(server))
    informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
    await OperationRetention(
        client, informers, lambda: None, key.namespace, OperationSettings(), LaterClock(), metrics
    ).run_once()
    assert server.find(OPERATIONS, key) is not None
