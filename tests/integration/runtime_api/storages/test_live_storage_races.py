"""Three replicas: of those who want one storage at once, one gets it, and what is mounted keeps its data."""

import asyncio
from collections import Counter
from functools import partial

from tests.integration.controller_manager.conftest import UNIT, Object, ready
from tests.integration.runtime_api.conservation import settled
from tests.integration.runtime_api.live import UNITS, Answer, Caller, Platform, until
from tests.integration.runtime_api.storages.holding import (
    Mounted,
    claims,
    create,
    held_by,
    make_storages,
    mounts,
    pods_that_mount,
    storages,
    watched,
)

LANES, ROUNDS = 10, 5
"""Storages, and how often two units race for each of them."""


async def test_fifty_times_two_units_race_for_one_storage(platform: Platform, client: Caller) -> None:
    lanes = [f"lane-{number}" for number in range(LANES)]
    await make_storages(client, lanes)
    await client.stocked({"lanes": LANES * ROUNDS})
    async with watched(client) as mounted:
        winners = await asyncio.gather(*(raced(client, mounted, number) for number in range(LANES)))
    every = [name for lane in winners for name in lane]
    await settled(client, {"lanes": LANES * ROUNDS}, deleted=every)
    assert len((await client.look()).stock_of("lanes")) == 0
    print(f"first wins by turn: {Counter(name[-1] for name in every)}")


async def raced(client: Caller, mounted: Mounted, number: int) -> list[str]:
    """One storage goes from winner to winner."""
    storage, standing, winners = f"lane-{number}", client.platform.standing, []
    for turn in range(ROUNDS):
        names = [f"{storage}-{turn}-{one}" for one in "ab"]
        replicas = standing[(number + turn) % 3], standing[(number + turn + 1) % 3]
        answers = await asyncio.gather(
            *(create(client, each, "lanes", name, storage) for each, name in zip(replicas, names, strict=True))
        )
        assert Counter(map(told, answers)) == {(201, ""): 1, (409, "storage_in_use"): 1}, answers
        winner = next(name for name, answer in zip(names, answers, strict=True) if answer.status == 201)
        winners.append(winner)
        await handed_back(client, mounted, storage, winner)
    return winners


async def handed_back(client: Caller, mounted: Mounted, storage: str, winner: str) -> None:
    """The winner has it until its pod, which has really been there, is gone."""
    await until(partial(is_mounted, mounted, storage, winner), f"a pod of {winner} mounts {storage}")
    assert (await client.delete(client.platform.standing[0], winner)).status == 204
    await until(partial(is_free, mounted, storage), f"{winner} has released {storage}")
    assert await pods_that_mount(client, storage) == []


async def is_mounted(mounted: Mounted, storage: str, unit: str) -> bool:
    return mounted.holders[storage] == unit and (storage, unit) in mounted.ever


async def is_free(mounted: Mounted, storage: str) -> bool:
    return mounted.holders[storage] is None


def told(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


async def test_updates_take_a_storage_and_give_it_back_when_its_pod_is_gone(platform: Platform, client: Caller) -> None:
    await make_storages(client, ["wanders"])
    await client.stocked({"wanders": 2})
    one, other = "wanders-1", "wanders-2"
    made = [await client.create(platform.standing[0], "wanders", name) for name in (one, other)]
    assert [answer.status for answer in made] == [201, 201]

    async def update(name: str, *mounted: str) -> tuple[int, str]:
        return told(await client.ask(platform.standing[1], "PUT", f"/api/v1/gpu-units/{name}", mounts(*mounted)))

    async with watched(client) as mounted:
        for name, waiting in ((one, other), (other, one)):
            assert await update(name, "wanders") == (200, "")
            assert await update(waiting, "wanders") == (409, "storage_in_use")
            await until(partial(is_mounted, mounted, "wanders", name), f"a pod of {name} mounts it")
            assert await update(name) == (200, "")
            await until(partial(is_free, mounted, "wanders"), f"{name} has released it")
            assert await pods_that_mount(client, "wanders") == []
    gone = [await client.delete(platform.standing[0], name) for name in (one, other)]
    assert [answer.status for answer in gone] == [204, 204]


RACES = 50


async def test_fifty_times_a_delete_races_with_a_mount(platform: Platform, client: Caller) -> None:
    names = [f"contested-{number}" for number in range(RACES)]
    await make_storages(client, names)
    await client.stocked({"contested": RACES})
    async with watched(client):
        outcomes: dict[str, tuple[int, int]] = {}
        for first in range(0, RACES, LANES):
            group = range(first, first + LANES)
            results = await asyncio.gather(*(mounted_and_deleted(client, number) for number in group))
            outcomes |= {names[number]: result for number, result in zip(group, results, strict=True)}
        print(f"mount and delete: {Counter(outcomes.values())}")
        assert set(outcomes.values()) <= {(201, 409), (409, 204), (400, 204)}
        kept = {name for name, (made, _) in outcomes.items() if made == 201}
        assert 0 < len(kept) < RACES, "one of them always won"
        await data_is_kept(client, kept)
        await until(lambda: all_gone(client, set(names) - kept), "the deleted storages are gone")
        await settled(client, {"contested": RACES})
        await until(lambda: are_ready(client, kept), "the units run on their data")
        await data_is_kept(client, kept)
    gone = await asyncio.gather(*(client.delete(platform.standing[0], f"unit-of-{name}") for name in kept))
    assert {answer.status for answer in gone} == {204}


async def mounted_and_deleted(client: Caller, number: int) -> tuple[int, int]:
    """One of them has a head start, which grows with the number. The last two are over before the other begins."""
    name, standing = f"contested-{number}", client.platform.standing

    async def make(after: float) -> int:
        await asyncio.sleep(after)
        return (await create(client, standing[number % 3], "contested", f"unit-of-{name}", name)).status

    async def end(after: float) -> int:
        await asyncio.sleep(after)
        return (await client.ask(standing[(number + 1) % 3], "DELETE", f"/api/v1/gpu-storages/{name}")).status

    if number == RACES - 2:
        return await make(0), await end(0)
    if number == RACES - 1:
        ended = await end(0)
        return await make(0), ended
    # A mount has more to do before it attaches than a delete before it deletes.
    make_after, end_after = (0.001 * number, 0.0) if number % 2 else (0.0, 0.01 * number)
    made, ended = await asyncio.gather(make(make_after), end(end_after))
    return made, ended


async def data_is_kept(client: Caller, names: set[str]) -> None:
    found, data = await storages(client), await claims(client)
    for name in names:
        assert held_by(found[name]) == f"unit-of-{name}"
        assert "deletionTimestamp" not in found[name]["metadata"]
        assert "deletionTimestamp" not in data[name]["metadata"]


async def all_gone(client: Caller, names: set[str]) -> bool:
    return not names & ((await storages(client)).keys() | (await claims(client)).keys())


async def are_ready(client: Caller, kept: set[str]) -> bool:
    units: dict[str, Object] = {each["metadata"]["name"]: each for each in await client.all(UNIT, UNITS)}
    return all(ready(units[f"unit-of-{name}"]).get("reason") == "UnitReady" for name in kept)
