"""Races on three replicas: one unit gets a storage, and a mounted storage keeps its data."""

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
"""The number of storages, and the number of races of two units for each storage."""


async def test_two_units_race_for_one_storage_fifty_times(platform: LivePlatform, api_client: ApiCaller) -> None:
    lanes = [f"lane-{number}" for number in range(STORAGE_COUNT)]
    await create_storages(api_client, lanes)
    await api_client.seed_and_wait({"lanes": STORAGE_COUNT * ROUNDS})
    async with observing_mounts(api_client) as observer:
        winners = await asyncio.gather(
            *(race_for_storage(api_client, observer, number) for number in range(STORAGE_COUNT))
        )
    deleted = [name for lane in winners for name in lane]
    await wait_conserved(api_client, {"lanes": STORAGE_COUNT * ROUNDS}, deleted=deleted)
    assert len((await api_client.snapshot()).stock_of("lanes")) == 0
    print(f"wins by unit: {Counter(name[-1] for name in deleted)}")


async def race_for_storage(client: ApiCaller, observer: MountObserver, number: int) -> list[str]:
    """Let two units race for the storage in every round, and return the winners."""
    storage, shared, winners = f"lane-{number}", client.platform.shared_replicas, []
    for round_number in range(ROUNDS):
        names = [f"{storage}-{round_number}-{suffix}" for suffix in "ab"]
        replicas = shared[(number + round_number) % 3], shared[(number + round_number + 1) % 3]
        responses = await asyncio.gather(
            *(
                create_unit_with_mounts(client, each, "lanes", name, storage)
                for each, name in zip(replicas, names, strict=True)
            )
        )
        assert Counter(map(status_and_code, responses)) == {(201, ""): 1, (409, "storage_in_use"): 1}, responses
        winner = next(name for name, response in zip(names, responses, strict=True) if response.status == 201)
        winners.append(winner)
        await delete_and_wait_released(client, observer, storage, winner)
    return winners


async def delete_and_wait_released(client: ApiCaller, observer: MountObserver, storage: str, winner: str) -> None:
    """Wait for the mount, then delete the unit. The storage stays attached until the pod is deleted."""
    await until(partial(is_mounted, observer, storage, winner), f"a pod of {winner} mounts {storage}")
    assert (await client.delete_unit(client.platform.shared_replicas[0], winner)).status == 204
    await until(partial(is_free, observer, storage), f"{storage} is detached from {winner}")
    assert await mounting_pods(client, storage) == []


async def is_mounted(observer: MountObserver, storage: str, unit: str) -> bool:
    return observer.attached_units[storage] == unit and (storage, unit) in observer.seen_mounts


async def is_free(observer: MountObserver, storage: str) -> bool:
    return observer.attached_units[storage] is None


def status_and_code(response: ApiResponse) -> tuple[int, str]:
    return response.status, response.code


async def test_update_attaches_a_storage_and_releases_it_after_its_pod_terminated(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    await create_storages(api_client, ["moving"])
    await api_client.seed_and_wait({"moving": 2})
    one, other = "moving-1", "moving-2"
    created = [await api_client.create_unit(platform.shared_replicas[0], "moving", name) for name in (one, other)]
    assert [response.status for response in created] == [201, 201]

    async def update(name: str, *storages: str) -> tuple[int, str]:
        return status_and_code(
            await api_client.request(
                platform.shared_replicas[1], "PUT", f"/api/v1/gpu-units/{name}", storage_mounts(*storages)
            )
        )

    async with observing_mounts(api_client) as observer:
        for name, waiting in ((one, other), (other, one)):
            assert await update(name, "moving") == (200, "")
            assert await update(waiting, "moving") == (409, "storage_in_use")
            await until(partial(is_mounted, observer, "moving", name), f"a pod of {name} mounts the storage")
            assert await update(name) == (200, "")
            await until(partial(is_free, observer, "moving"), f"the storage is detached from {name}")
            assert await mounting_pods(api_client, "moving") == []
    deleted = [await api_client.delete_unit(platform.shared_replicas[0], name) for name in (one, other)]
    assert [response.status for response in deleted] == [204, 204]


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
        print(f"statuses of mount and delete: {Counter(outcomes.values())}")
        assert set(outcomes.values()) <= {(201, 409), (409, 204), (400, 204)}
        kept = {name for name, (create_status, _) in outcomes.items() if create_status == 201}
        assert 0 < len(kept) < RACES, "mount and delete must each win at least once"
        await assert_data_preserved(api_client, kept)
        await until(lambda: are_deleted(api_client, set(names) - kept), "the storages are deleted")
        await wait_conserved(api_client, {"contested": RACES})
        await until(lambda: are_ready(api_client, kept), "the units are Ready")
        await assert_data_preserved(api_client, kept)
    deleted = await asyncio.gather(
        *(api_client.delete_unit(platform.shared_replicas[0], f"unit-of-{name}") for name in kept)
    )
    assert {response.status for response in deleted} == {204}


async def mount_and_delete(client: ApiCaller, number: int) -> tuple[int, int]:
    """Create a unit with the storage and delete the storage, and return both statuses.

    One of the requests starts earlier. The head start grows with the number. The last two races run one request after
    the other.
    """
    name, replicas = f"contested-{number}", client.platform.shared_replicas

    async def create(delay: float) -> int:
        await asyncio.sleep(delay)
        return (
            await create_unit_with_mounts(client, replicas[number % 3], "contested", f"unit-of-{name}", name)
        ).status

    async def delete(delay: float) -> int:
        await asyncio.sleep(delay)
        return (await client.request(replicas[(number + 1) % 3], "DELETE", f"/api/v1/gpu-storages/{name}")).status

    if number == RACES - 2:
        return await create(0), await delete(0)
    if number == RACES - 1:
        delete_status = await delete(0)
        return await create(0), delete_status
    # A create needs more steps before it attaches the storage than a delete before it deletes it.
    create_delay, delete_delay = (0.001 * number, 0.0) if number % 2 else (0.0, 0.01 * number)
    create_status, delete_status = await asyncio.gather(create(create_delay), delete(delete_delay))
    return create_status, delete_status


async def assert_data_preserved(client: ApiCaller, names: set[str]) -> None:
    storages, pvcs = await list_storages(client), await list_pvcs(client)
    for name in names:
        assert attached_unit(storages[name]) == f"unit-of-{name}"
        assert "deletionTimestamp" not in storages[name]["metadata"]
        assert "deletionTimestamp" not in pvcs[name]["metadata"]


async def are_deleted(client: ApiCaller, names: set[str]) -> bool:
    return not names & ((await list_storages(client)).keys() | (await list_pvcs(client)).keys())


async def are_ready(client: ApiCaller, names: set[str]) -> bool:
    units: dict[str, Object] = {
        each["metadata"]["name"]: each for each in await client.list_objects(UNIT, UNIT_NAMESPACE)
    }
    return all(ready_condition(units[f"unit-of-{name}"]).get("reason") == "UnitReady" for name in names)
