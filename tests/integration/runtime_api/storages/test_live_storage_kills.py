"""Whoever is killed, and whenever: soon no storage is attached to nothing, and the request gets its answer."""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.conservation import settled
from tests.integration.runtime_api.edge.conftest import Replica
from tests.integration.runtime_api.handoff.crossing import Crossing, crossing
from tests.integration.runtime_api.live import Answer, Caller, Platform, until
from tests.integration.runtime_api.storages.holding import (
    Mounted,
    create,
    held_by,
    make_storages,
    manager_killed,
    manager_started,
    mounts,
    storages,
    strays,
    watched,
)

CREATE = (
    "POST operations",
    "PATCH gpustorages",
    "PATCH gpustorages",
    "PATCH gpuunits",
    "POST gpuunits",
    "PATCH operations/status",
    "DELETE gpuunits",
)
"""The writes of a create with two mounts: record, attach, attach, claim, make, commit, release."""
UPDATE = ("PATCH gpustorages", "PATCH gpuunits")
"""And of an update that gains a mount."""
CHOSEN = 2
"""What has chosen stock is finished without anybody asking again; what has not waits for the caller."""
SECONDS = 10
"""Within which everything is in order again."""


@dataclass(frozen=True)
class Case:
    """A request whose replica is killed at one of its writes, with stock and storages of its own."""

    writes: tuple[str, ...]
    write: int
    carried_out: bool

    @property
    def name(self) -> str:
        kind = "create" if self.writes is CREATE else "update"
        return f"{kind}-{self.write}-{'unheard' if self.carried_out else 'unsent'}"

    @property
    def storages(self) -> list[str]:
        return [f"{self.name}-{each}" for each in ("b", "a")][: 2 if self.writes is CREATE else 1]

    @property
    def replayed(self) -> int:
        """What the request is answered after the kill, by another replica."""
        alone = self.writes is UPDATE or self.write + self.carried_out >= CHOSEN
        return 200 if alone else 201

    @property
    def answers(self) -> set[int]:
        """What the caller may hear, with 0 for nothing: a create is answered before its last write."""
        return {0, 201} if self.writes is CREATE and self.write == len(CREATE) else {0}

    async def ask(self, client: Caller, replica: Replica) -> Answer:
        if self.writes is CREATE:
            return await create(client, replica, self.name, self.name, *self.storages)
        return await client.ask(replica, "PUT", f"/api/v1/gpu-units/{self.name}", mounts(*self.storages))


CASES = [
    *(Case(writes, write, carried_out=False) for writes in (CREATE, UPDATE) for write in range(1, len(writes) + 1)),
    *(Case(writes, len(writes), carried_out=True) for writes in (CREATE, UPDATE)),
]
"""Before each write, and after the last one. To be killed after a write leaves the same as before the next one."""


async def test_whoever_is_killed_no_storage_stays_attached_to_nothing(platform: Platform, client: Caller) -> None:
    stock, every = {case.name: 1 for case in CASES}, [name for case in CASES for name in case.storages]
    await make_storages(client, every, with_volumes=False)
    await client.stocked(stock)
    updates = [case for case in CASES if case.writes is UPDATE]
    made = await asyncio.gather(*(client.create(platform.standing[0], case.name, case.name) for case in updates))
    assert {answer.status for answer in made} == {201}
    async with watched(client) as mounted, AsyncExitStack() as stack:
        doomed = [
            await stack.enter_async_context(crossing(platform, case.name, case.write, carried_out=case.carried_out))
            for case in CASES
        ]
        await client.started(*(each.replica for each in doomed))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(manager_dies(client))
            deaths = await asyncio.gather(
                *(killed(client, case, each) for case, each in zip(CASES, doomed, strict=True))
            )
        await nothing_is_stray(client)
        print(
            f"no storage was attached to nothing {time.monotonic() - max(deaths):.1f} s after the last of {len(deaths)}"
        )
        await settled(client, stock)
        await replayed(client)
        await everything_is_released(client, mounted, every)


async def manager_dies(client: Caller) -> None:
    """Somewhere in the middle of what the others do."""
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await manager_killed(client)
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await manager_started(client)


async def killed(client: Caller, case: Case, doomed: Crossing) -> float:
    """Gives the time of death."""
    answer = await case.ask(client, doomed.replica)
    try:
        await asyncio.wait_for(doomed.reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: {answer}, {doomed.writes}") from None
    assert answer.status in case.answers
    assert tuple(doomed.writes) == case.writes[: case.write], case.name
    return time.monotonic()


async def nothing_is_stray(client: Caller) -> None:
    found: list[str] = []

    async def in_order() -> bool:
        found[:] = await strays(client)
        return not found

    try:
        await until(in_order, "every storage is free or held by its unit", SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


async def replayed(client: Caller) -> None:
    standing = client.platform.standing
    answers = await asyncio.gather(*(case.ask(client, standing[n % 3]) for n, case in enumerate(CASES)))
    statuses = {case.name: answer.status for case, answer in zip(CASES, answers, strict=True)}
    assert statuses == {case.name: case.replayed for case in CASES}
    held = await storages(client)
    for case in CASES:
        assert [held_by(held[name]) for name in case.storages] == [case.name] * len(case.storages)


async def everything_is_released(client: Caller, mounted: Mounted, every: list[str]) -> None:
    """Also what lost its unit while there was no controller manager."""
    await manager_killed(client)
    gone = await asyncio.gather(*(client.delete(client.platform.standing[0], case.name) for case in CASES))
    assert {answer.status for answer in gone} == {204}
    await manager_started(client)

    async def are_free() -> bool:
        return not any(mounted.holders[name] for name in every)

    print(f"what lost its unit meanwhile was released within {await until(are_free, 'all are free'):.1f} s")
