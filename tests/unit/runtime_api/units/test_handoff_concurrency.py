"""However many creates come at once, only so many are under way: the others wait, and none is turned away."""

import asyncio
from typing import Any, cast

import pytest

from gpu_runtime.runtime_api.units.handoff import MAX_CONCURRENT_HANDOFFS, Handoff
from gpu_runtime.runtime_api.units.requests import CreateUnit


async def test_creates_above_the_concurrency_limit_wait_in_fifo_order(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: set[str] = set()
    began: list[str] = []
    most = 0

    async def create(_self: Handoff, request: CreateUnit) -> None:
        nonlocal most
        began.append(request.name)
        under_way.add(request.name)
        most = max(most, len(under_way))
        await asyncio.sleep(0)
        under_way.remove(request.name)

    monkeypatch.setattr(Handoff, "_create", create)
    nothing = cast(Any, None)
    handoff = Handoff(nothing, nothing, nothing, nothing, nothing, consumed_deleter=nothing)
    names = [f"unit-{number}" for number in range(10 * MAX_CONCURRENT_HANDOFFS)]
    asked = [CreateUnit(operation_id=name, name=name, spec_name="g1.1", image="python") for name in names]
    await asyncio.gather(*map(handoff.create, asked))
    assert began == names
    assert most == MAX_CONCURRENT_HANDOFFS
