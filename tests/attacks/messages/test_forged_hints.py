"""A sender with the credentials of a worker publishes demand and cancel messages of other functions.

Both kinds of messages are hints without a proof. The streams and the records decide what happens.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gpu_runtime.activator.backlog_poller import BacklogPoller
from gpu_runtime.activator.invocation_reaper import MAX_PENDING_CANCELS, InvocationReaper
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, Termination
from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.worker_sidecar.cancellation import CHECK_INTERVAL_SECONDS, CancellationRegistry, InvocationCancelled
from tests.unit.activator.activator_objects import unit

UNUSED: Any = None
FLOOD = 5_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = InvocationRecord(
    request_hash="0" * 64,
    serverless_request_id="f",
    function_id="id-f",
    enqueued_at=NOW,
    deadline=NOW,
    updated_at=NOW,
)
CANCELLED = structs.replace(RUNNING, termination=Termination.CANCELLED)


class Records:
    """The record of the invocation `victim`."""

    def __init__(self) -> None:
        self.record, self.reads, self.fails = RUNNING, 0, False

    async def read(self, invocation_id: str) -> RecordAtRevision:
        assert invocation_id == "victim"
        self.reads += 1
        await asyncio.sleep(0)
        if self.fails:
            raise JetStreamError("no response")
        return RecordAtRevision(self.record, 1)


@asynccontextmanager
async def running_registry(records: Any) -> AsyncIterator[CancellationRegistry]:
    registry = CancellationRegistry(records)
    task = asyncio.create_task(registry.run())
    yield registry
    task.cancel()
    await asyncio.wait({task})


async def run_invocation(registry: CancellationRegistry, may_finish: asyncio.Event) -> str:
    try:
        async with registry.cancellable("victim"):
            await may_finish.wait()
    except InvocationCancelled:
        return "cancelled"
    return "finished"


async def rounds(count: int) -> None:
    """Wait until the registry has had time for this number of checks."""
    await asyncio.sleep(count * 1.5 * CHECK_INTERVAL_SECONDS)


@pytest.mark.parametrize("fails", [False, True], ids=["readable", "unreadable"])
async def test_forged_cancel_does_not_abort_a_running_invocation(fails: bool) -> None:
    records, may_finish = Records(), asyncio.Event()
    records.fails = fails
    async with running_registry(records) as registry:
        invocation = asyncio.create_task(run_invocation(registry, may_finish))
        await asyncio.sleep(0)
        for _ in range(FLOOD):
            registry.on_cancel("victim")
        while not records.reads:
            await rounds(1)
        await rounds(1)
        may_finish.set()
        assert await invocation == "finished"


async def test_flood_of_forged_cancels_causes_few_reads_and_hides_no_true_cancel() -> None:
    records, started = Records(), time.monotonic()
    async with running_registry(records) as registry:
        invocation = asyncio.create_task(run_invocation(registry, asyncio.Event()))
        for _ in range(20):
            await asyncio.sleep(CHECK_INTERVAL_SECONDS / 20)
            for _ in range(FLOOD // 20):
                registry.on_cancel("victim")
        assert 0 < records.reads <= 2 + (time.monotonic() - started) / CHECK_INTERVAL_SECONDS
        records.record = CANCELLED
        registry.on_cancel("victim")
        assert await asyncio.wait_for(invocation, 10) == "cancelled"


async def test_cancel_of_an_invocation_of_another_worker_reads_no_record() -> None:
    records = Records()
    async with running_registry(records) as registry:
        for number in range(FLOOD):
            registry.on_cancel(f"other-{number}")
        await rounds(1)
    assert records.reads == 0
    assert not registry._hinted


def reaper() -> InvocationReaper:
    unused = dict.fromkeys(("nats", "topology", "records", "functions", "terminal_results", "settings"))
    others = dict.fromkeys(("metrics", "clock", "tickets", "ignored"))
    found = InvocationReaper(**unused, **others)  # type: ignore[arg-type]
    found._running = True
    return found


@pytest.mark.parametrize("id_", ["", "x" * (MAX_INVOCATION_ID_LENGTH + 1), "a.b", "x" * 10**6], ids=len)
async def test_cancel_message_without_an_invocation_id_is_ignored(id_: str) -> None:
    found = reaper()
    found.cancel(id_)
    assert not found._cancelled
    assert not found._wake.is_set()


async def test_flood_of_cancels_uses_a_limited_amount_of_memory() -> None:
    found = reaper()
    for number in range(2 * MAX_PENDING_CANCELS):
        found.cancel(f"made-up-{number}")
    assert len(found._cancelled) == MAX_PENDING_CANCELS


def poller(now: list[float]) -> tuple[BacklogPoller, list[float]]:
    """Return a poller of one function, and the delays with which it enqueues the function."""
    function, delays = unit("f"), list[float]()
    backlog: Any = SimpleNamespace(clock=lambda: now[0], invalidate=lambda _: None)
    functions: Any = SimpleNamespace(by_id={"id-f": function}.get)
    return BacklogPoller(backlog, functions, lambda _, delay: delays.append(delay), 1.0, lambda: None), delays


def test_flood_of_forged_demand_reconciles_the_function_at_most_once_per_interval() -> None:
    now = [0.0]
    found, delays = poller(now)
    for _ in range(FLOOD):
        found.on_demand("id-f")
        now[0] += 1.0 / FLOOD
    assert len([delay for delay in delays if delay == 0]) <= 20
    assert delays.count(0) > 1, "later demand still takes effect"


def test_demand_of_unknown_functions_uses_no_memory() -> None:
    found, delays = poller([0.0])
    for number in range(FLOOD):
        found.on_demand(f"made-up-{number}")
    assert not delays
    assert not found._demand_at
