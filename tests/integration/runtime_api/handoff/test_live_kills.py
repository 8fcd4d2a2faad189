"""Whoever is killed, and whenever: stock is neither lost nor given out twice, and nothing half-done stays half-done."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.integration.runtime_api.conservation import settled
from tests.integration.runtime_api.handoff.crossing import Crossing, crossing
from tests.integration.runtime_api.live import Caller, Platform

STEPS = {
    "record": "POST operations",
    "claim": "PATCH gpuunits",
    "make": "POST gpuunits",
    "commit": "PATCH operations/status",
    "release": "DELETE gpuunits",
}
"""The writes of one create, in their order. Its answer comes before the last one."""
CHOSEN = 2
"""What has chosen stock is finished without anybody asking again; what has not waits for the caller."""


@dataclass(frozen=True)
class Case:
    """A create whose replica is killed at one of its writes, with two stock units of its own flavour."""

    turn: int
    write: int
    carried_out: bool

    @property
    def name(self) -> str:
        step = tuple(STEPS)[self.write - 1]
        return f"kill-{self.turn}-{step}-{'unheard' if self.carried_out else 'unsent'}"

    @property
    def goes_on_alone(self) -> bool:
        return self.write + self.carried_out >= CHOSEN

    @property
    def answers(self) -> set[int]:
        """What the caller may hear, with 0 for nothing: after the commit it is not the kill that decides."""
        return {0, 201} if self.write == len(STEPS) else {0}


@pytest.mark.parametrize("turn", range(2))
async def test_a_replica_that_is_killed_at_any_step_leaves_nothing_half_done(
    platform: Platform, client: Caller, turn: int
) -> None:
    cases = [Case(turn, write, carried_out) for write in range(1, len(STEPS) + 1) for carried_out in (False, True)]
    stock = {case.name: 2 for case in cases}
    await client.stocked(stock)
    async with AsyncExitStack() as stack:
        doomed = [
            await stack.enter_async_context(crossing(platform, case.name, case.write, carried_out=case.carried_out))
            for case in cases
        ]
        await client.started(*(each.replica for each in doomed))
        await asyncio.gather(*(killed(client, case, each) for case, each in zip(cases, doomed, strict=True)))
        print(f"after {len(cases)} kills everything was in order within {await settled(client, stock):.1f} s")
    await replayed(platform, client, cases)
    assert await settled(client, stock) < 10
    seen = await client.look()
    for case in cases:
        assert (len(seen.stock_of(case.name)), len(seen.units_of(case.name))) == (1, 1), case.name


async def killed(client: Caller, case: Case, doomed: Crossing) -> None:
    answer = await client.create(doomed.replica, case.name, case.name)
    try:
        await asyncio.wait_for(doomed.reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: {answer}, {doomed.writes}") from None
    assert answer.status in case.answers
    assert doomed.writes == list(STEPS.values())[: case.write]


async def replayed(platform: Platform, client: Caller, cases: list[Case]) -> None:
    """The caller asks another replica, answered or not. What was finished meanwhile is not made again."""
    answers = await asyncio.gather(
        *(client.create(platform.standing[number % 3], case.name, case.name) for number, case in enumerate(cases))
    )
    statuses = {case.name: answer.status for case, answer in zip(cases, answers, strict=True)}
    assert statuses == {case.name: 200 if case.goes_on_alone else 201 for case in cases}
