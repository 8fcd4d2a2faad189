"""A replica that was asleep in the middle of a handoff, and goes on when everything is over."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.conservation import settled
from tests.integration.runtime_api.handoff.crossing import crossing
from tests.integration.runtime_api.live import Answer, Caller, Platform, until

WRITES, MAKE = 5, 3
"""How many writes a create has, and the one whose coming too late makes a unit again."""


@dataclass(frozen=True)
class Case:
    write: int
    carried_out: bool

    @property
    def name(self) -> str:
        return f"pause-{self.write}-{'unheard' if self.carried_out else 'unsent'}"


async def test_a_replica_that_wakes_up_late_brings_no_deleted_unit_back(platform: Platform, client: Caller) -> None:
    cases = [Case(write, carried_out) for write in range(1, WRITES + 1) for carried_out in (False, True)]
    names, stock = [case.name for case in cases], {case.name: 2 for case in cases}
    await client.stocked(stock)
    async with AsyncExitStack() as stack:
        asleep = [
            await stack.enter_async_context(
                crossing(platform, case.name, case.write, carried_out=case.carried_out, pauses=True)
            )
            for case in cases
        ]
        await client.started(*(each.replica for each in asleep))
        requests = [
            asyncio.create_task(client.create(each.replica, name, name))
            for name, each in zip(names, asleep, strict=True)
        ]
        await asyncio.gather(*(each.reached.wait() for each in asleep))
        await asyncio.gather(*(made_and_deleted(platform, client, name) for name in names))
        for each in asleep:
            each.go_on()
        late = {name: await each.through for name, each in zip(names, asleep, strict=True)}
        print(f"late sleepers were cleared up after within {await settled(client, stock, deleted=names):.1f} s")
        answers = dict(zip(names, await asyncio.gather(*requests), strict=True))
    assert late[Case(MAKE, False).name] == 201, "nothing came too late"
    seen = await client.look()
    assert not [name for name in names if seen.units_of(name)]
    assert {len(seen.stock_of(name)) for name in names} == {1}
    assert {answer.status for answer in answers.values()} <= {200, 201, 410, 503}, answers
    replays = await asyncio.gather(*(client.create(platform.standing[2], name, name) for name in names))
    assert {answer.status for answer in replays} == {410}


async def made_and_deleted(platform: Platform, client: Caller, name: str) -> None:
    """Another replica answers the same request, and a third one deletes what was made."""
    answer = Answer(0)

    async def made() -> bool:
        nonlocal answer
        answer = await client.create(platform.standing[0], name, name)
        return answer.status in (200, 201)

    await until(made, f"{name} is made: {answer}")
    assert (await client.delete(platform.standing[1], name)).status in (200, 202, 204)
