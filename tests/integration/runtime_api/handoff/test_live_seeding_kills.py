"""Seeding whose process is killed or asleep: all the stock that was asked for, once, and never what was consumed."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.conservation import disorder, settled
from tests.integration.runtime_api.handoff.crossing import Crossing, crossing
from tests.integration.runtime_api.live import Answer, Caller, Platform, until

REPLICAS = 4
RECORD, START, FIRST_UNIT, LAST_UNIT, END = 1, 2, 3, 6, 7
"""The writes of seeding four, in their order."""


@dataclass(frozen=True)
class Case:
    kind: str
    write: int
    carried_out: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.write}-{'unheard' if self.carried_out else 'unsent'}"

    @property
    def is_recorded(self) -> bool:
        return self.write > RECORD or self.carried_out


async def test_a_seeding_that_was_killed_is_finished_by_another_replica(platform: Platform, client: Caller) -> None:
    writes = (RECORD, START, FIRST_UNIT, LAST_UNIT, END)
    cases = [Case("seeder-dies", write, carried_out) for write in writes for carried_out in (False, True)]
    async with AsyncExitStack() as stack:
        doomed = [await stack.enter_async_context(_crossing(platform, case)) for case in cases]
        await client.started(*(each.replica for each in doomed))
        await asyncio.gather(*(reached(client, case, each) for case, each in zip(cases, doomed, strict=True)))
        expected = {case.name: REPLICAS if case.is_recorded else 0 for case in cases}
        print(f"after {len(cases)} kills all stock was there within {await settled(client, expected):.1f} s")
    answers = await asyncio.gather(*(client.seed(platform.standing[0], case.name, REPLICAS) for case in cases))
    replays = {case.name: answer.status for case, answer in zip(cases, answers, strict=True)}
    assert replays == {case.name: 200 if case.is_recorded else 202 for case in cases}
    await asyncio.gather(*(can_be_consumed(platform, client, case) for case in cases))
    assert disorder(await client.look(), {case.name: REPLICAS for case in cases}) == []


async def test_a_seeding_that_was_asleep_makes_nothing_again_that_was_consumed(
    platform: Platform, client: Caller
) -> None:
    writes = (START, FIRST_UNIT, LAST_UNIT, END)
    cases = [Case("seeder-sleeps", write, carried_out) for write in writes for carried_out in (False, True)]
    async with AsyncExitStack() as stack:
        asleep = [await stack.enter_async_context(_crossing(platform, case, pauses=True)) for case in cases]
        await client.started(*(each.replica for each in asleep))
        requests = [asyncio.create_task(reached(client, case, each)) for case, each in zip(cases, asleep, strict=True)]
        await asyncio.gather(*(each.reached.wait() for each in asleep))
        await asyncio.gather(*(can_be_consumed(platform, client, case) for case in cases))
        for each in asleep:
            each.go_on()
        late = {case.name: await each.through for case, each in zip(cases, asleep, strict=True)}
        stock = {case.name: REPLICAS for case in cases}
        print(f"what the sleepers made was gone within {await settled(client, stock):.1f} s")
        await asyncio.gather(*requests)
    assert {late[f"seeder-sleeps-{write}-unsent"] for write in (FIRST_UNIT, LAST_UNIT)} == {201}, (
        "nothing came too late"
    )
    seen = await client.look()
    assert not [case.name for case in cases if seen.stock_of(case.name)]


def _crossing(platform: Platform, case: Case, *, pauses: bool = False) -> AbstractAsyncContextManager[Crossing]:
    return crossing(platform, case.name, case.write, carried_out=case.carried_out, pauses=pauses)


async def reached(client: Caller, case: Case, crossed: Crossing) -> Answer:
    answer = await client.seed(crossed.replica, case.name, REPLICAS)
    await asyncio.wait_for(crossed.reached.wait(), 60)
    return answer


async def can_be_consumed(platform: Platform, client: Caller, case: Case) -> None:
    """All of it, and not one more."""
    for number in range(REPLICAS):
        name = f"{case.name}-{number}"

        async def made(name: str = name) -> bool:
            return (await client.create(platform.standing[1], case.name, name)).status in (200, 201)

        await until(made, f"{name} is made")
    more = await client.create(platform.standing[2], case.name, f"{case.name}-more")
    assert (more.status, more.code) == (409, "no_stock")
