"""The handoff limits the number of concurrent creates. Further creates wait and are not rejected."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.runtime_api.units.caller_semaphore import MAX_CONCURRENT_HANDOFFS
from gpu_runtime.runtime_api.units.handoff import Handoff


async def test_creates_above_the_concurrency_limit_wait_in_fifo_order(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[str] = set()
    started: list[str] = []
    max_running = 0

    async def create(_self: Handoff, request: RecordedUnitRequest, _caller: str) -> None:
        nonlocal max_running
        started.append(request.name)
        running.add(request.name)
        max_running = max(max_running, len(running))
        await asyncio.sleep(0)
        running.remove(request.name)

    monkeypatch.setattr(Handoff, "_create", create)
    unused = cast(Any, None)
    handoff = Handoff(unused, unused, cast(Any, SimpleNamespace(store=None)), unused, unused, deletions=unused)
    names = [f"unit-{number}" for number in range(10 * MAX_CONCURRENT_HANDOFFS)]
    requests = [RecordedUnitRequest(operation_id=name, name=name, spec_name="g1.1", image="python") for name in names]
    await asyncio.gather(*map(handoff.create, requests))
    assert started == names
    assert max_running == MAX_CONCURRENT_HANDOFFS
