"""Which operations are evicted, and when."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.runtime_api.operations.operation_retention import (
    is_expired,
    retained_hours,
    selectors_oldest_first,
    sort_by_age,
)
from gpu_runtime.runtime_api.operations.operation_summary import OperationSummary
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


@pytest.mark.parametrize("minute", [0, 1, 59])
@pytest.mark.parametrize("retention", [timedelta(seconds=60), timedelta(minutes=90), DAY, 30 * DAY])
def test_hour_with_an_expired_operation_is_scanned(minute: int, retention: timedelta) -> None:
    now = datetime(2026, 1, 2, 3, minute, 30, tzinfo=UTC)
    hours = retained_hours(now, retention)
    for late in (timedelta(), timedelta(seconds=1), timedelta(hours=1)):
        assert (now - retention - late).strftime("%Y-%m-%dT%H") not in hours
    assert (now - retention + timedelta(hours=1)).strftime("%Y-%m-%dT%H") in hours
    assert len(hours) <= retention / timedelta(hours=1) + 2


def test_oldest_hours_are_scanned_first() -> None:
    selectors = selectors_oldest_first(datetime(2026, 1, 2, 3, 4, tzinfo=UTC), timedelta(hours=2))
    assert selectors == [
        f"{Label.CREATED_HOUR} notin (2026-01-02T02,2026-01-02T03,2026-01-02T04)",
        f"{Label.CREATED_HOUR}=2026-01-02T02",
        f"{Label.CREATED_HOUR}=2026-01-02T03",
        f"{Label.CREATED_HOUR}=2026-01-02T04",
    ]


def test_operations_of_one_hour_are_evicted_in_finish_order() -> None:
    times = ["2026-01-02T09:00:00Z", "2026-01-02T08:00:00Z", "2026-01-02T08:30:00Z"]
    summaries = [summary(operation(state=OperationState.SUCCEEDED, finished_at=time)) for time in times]
    assert [each.status.finished_at for each in sort_by_age(summaries)] == sorted(times)
