"""Three replicas: of those who want one storage at once, one gets it, and what is mounted keeps its data."""

import asyncio
from collections import Counter
from functools import partial

from tests.integration.controller_manager.conftest import UNIT, Object, ready_condition
from tests.integration.runtime_api.live_platform import UNIT_NAMESPACE, ApiCaller, ApiResponse, LivePlatform, until
from tests.integration.runtime_api.stock_conservation import wait_conserved
from tests.integration.runtime_api.storages.storage_observer import (
    MountObserver,
    attached_unit,
    create_storages,
    create_unit_with_mounts,
    list_pvcs,
    list_storages,
    mounting_pods,
    observing_mounts,
    storage_mounts,
)

STORAGE_COUNT, ROUNDS = 10, 5
"""Storages, and how often two units race for each of them."""


async def test_two_units_race_for_one_storage_fifty_times(platform: LivePlatform, api_client: ApiCaller) -> None:
    lanes = [f"lane-{number}" for number in range(STORAGE_COUNT)]
    await create_storages(api_client, lanes)
    await api_client.seed_and_wait({"lanes": STORAGE_COUNT * ROUNDS})
    async with observing_mounts(api_client) as mounted:
        winners = await asyncio.gather(
            *(race_for_storage(api_client, mounted, number) for number in range(STORAGE_COUNT))
        )
    every = [name for lane in winners for name in lane]
    await wait_conserved(api_client, {"lanes": STORAGE_COUNT * ROUNDS}, deleted=every)
    assert len((await api_client.snapshot()).stock_of("lanes")) == 0
    print(f"first wins by turn: {Counter(name[-1] for name in every)}")


async def race_for_storage(client: ApiCaller, mounted: MountObserver, number: int) -> list[str]:
    """One storage goes from winner to winner."""
    storage, standing, winners = f"lane-{number}", client.platform.shared_replicas, []
    for turn in range(ROUNDS):
        names = [f"{storage}-{turn}-{one}" for one in "ab"]
        replicas = standing[(number + turn) % 3], standing[(number + turn + 1) % 3]
        answers = await asyncio.gather(
            *(
                create_unit_with_mounts(client, each, "lanes", name, storage)
                for each, name in zip(replicas, names, strict=True)
            )
        )
        assert Counter(map(status_and_code, answers)) == {(201, ""): 1, (409, "storage_in_use"): 1}, answers
        winner = next(name for name, answer in zip(names, answers, strict=True) if answer.status == 201)
        winners.append(winner)
        await handed_back(client, mounted, storage, winner)
    return winners


async def handed_back(client: ApiCaller, mounted: MountObserver, storage: str, winner: str) -> None:
    """The winner has it until its pod, which has really been there, is gone."""
    await until(partial(is_mounted, mounted, storage, winner), f"a pod of {winner} mounts {storage}")
    assert (await client.delete_unit(client.platform.shared_replicas[0], winner)).status == 204
    await until(partial(is_free, mounted, storage), f"{winner} has released {storage}")
    assert await mounting_pods(client, storage) == []


async def is_mounted(mounted: MountObserver, storage: str, unit: str) -> bool:
    return mounted.attached_units[storage] == unit and (storage, unit) in mounted.seen_mounts


async def is_free(mounted: MountObserver, storage: str) -> bool:
    return mounted.attached_units[storage] is None


def status_and_code(answer: ApiResponse) -> tuple[int, str]:
    return answer.status, answer.code


async def test_update_attaches_a_storage_and_releases_it_after_its_pod_terminated(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    await create_storages(api_client, ["wanders"])
    await api_client.seed_and_wait({"wanders": 2})
    one, other = "wanders-1", "wanders-2"
    made = [await api_client.create_unit(platform.shared_replicas[0], "wanders", name) for name in (one, other)]
    assert [answer.status for answer in made] == [201, 201]

    async def update(name: str, *mounted: str) -> tuple[int, str]:
        return status_and_code(
            await api_client.request(
                platform.shared_replicas[1], "PUT", f"/api/v1/gpu-units/{name}", storage_mounts(*mounted)
            )
        )

    async with observing_mounts(api_client) as mounted:
        for name, waiting in ((one, other), (other, one)):
            assert await update(name, "wanders") == (200, "")
            assert await update(waiting, "wanders") == (409, "storage_in_use")
            await until(partial(is_mounted, mounted, "wanders", name), f"a pod of {name} mounts it")
            assert await update(name) == (200, "")
            await until(partial(is_free, mounted, "wanders"), f"{name} has released it")
            assert await mounting_pods(api_client, "wanders") == []
    gone = [await api_client.delete_unit(platform.shared_replicas[0], name) for name in (one, other)]
    assert [answer.status for answer in gone] == [204, 204]


RACES = 50


async def test_delete_races_with_a_mount_fifty_times(platform: LivePlatform, api_client: ApiCaller) -> None:
    names = [f"contested-{number}" for number in range(RACES)]
    await create_storages(api_client, names)
    await api_client.seed_and_wait({"contested": RACES})
    async with observing_mounts(api_client):
        outcomes: dict[str, tuple[int, int]] = {}
        for first in range(0, RACES, STORAGE_COUNT):
            group = range(first, first + STORAGE_COUNT)
            results = await asyncio.gather(*(mount_and_delete(api_client, number) for number in group))
            outcomes |= {names[number]: result for number, result in zip(group, results, strict=True)}
        print(f"mount and delete: {Counter(outcomes.values())}")
        assert set(outcomes.values()) <= {(201, 409), (409, 204), (400, 204)}
        kept = {name for name, (made, _) in outcomes.items() if made == 201}
        assert 0 < len(kept) < RACES, "one of them always won"
        await assert_data_preserved(api_client, kept)
        await until(lambda: are_deleted(api_client, set(names) - kept), "the deleted storages are gone")
        await wait_conserved(api_client, {"contested": RACES})
        await until(lambda: are_ready(api_client, kept), "the units run on their data")
        await assert_data_preserved(api_client, kept)
    gone = await asyncio.gather(
        *(api_client.delete_unit(platform.shared_replicas[0], f"unit-of-{name}") for name in kept)
    )
    assert {answer.status for answer in gone} == {204}


async def mount_and_delete(client: ApiCaller, number: int) -> tuple[int, int]:
    """One of them has a head start, which grows with the number. The last two are over before the other begins."""
    name, standing = f"contested-{number}", client.platform.shared_replicas

    async def make(after: float) -> int:
        await asyncio.sleep(after)
        return (
            await create_unit_with_mounts(client, standing[number % 3], "contested", f"unit-of-{name}", name)
        ).status

    async def end(after: float) -> int:
        await asyncio.sleep(after)
        return (await client.request(standing[(number + 1) % 3], "DELETE", f"/api/v1/gpu-storages/{name}")).status

    if number == RACES - 2:
        return await make(0), await end(0)
    if number == RACES - 1:
        ended = await end(0)
        return await make(0), ended
    # A mount has more to do before it attaches than a delete before it deletes.
    make_after, end_after = (0.001 * number, 0.0) if number % 2 else (0.0, 0.01 * number)
    made, ended = await asyncio.gather(make(make_after), end(end_after))
    return made, ended


async def assert_data_preserved(client: ApiCaller, names: set[str]) -> None:
    found, data = await list_storages(client), await list_pvcs(client)
    for name in names:
        assert attached_unit(found[name]) == f"unit-of-{name}"
        assert "deletionTimestamp" not in found[name]["metadata"]
        assert "deletionTimestamp" not in data[name]["metadata"]


async def are_deleted(client: ApiCaller, names: set[str]) -> bool:
    return not names & ((await list_storages(client)).keys() | (await list_pvcs(client)).keys())


async def are_ready(client: ApiCaller, kept: set[str]) -> bool:
    units: dict[str, Object] = {
        each["metadata"]["name"]: each for each in await client.list_objects(UNIT, UNIT_NAMESPACE)
    }
    return all(ready_condition(units[f"unit-of-{name}"]).get("reason") == "UnitReady" for name in kept)
