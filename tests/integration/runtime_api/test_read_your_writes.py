"""Whoever was told that something is done sees it done, on whichever replica it asks."""

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial

from tests.integration.runtime_api.live import Answer, Caller, LiveReplica, Platform, until


async def test_what_is_created_is_there_on_every_replica_and_what_is_deleted_is_gone(
    platform: Platform, client: Caller
) -> None:
    await client.stocked({"seen": 10})
    for number in range(10):
        name, maker = f"seen-{number}", platform.standing[number % 3]
        assert (await client.create(maker, "seen", name)).status == 201
        assert await statuses(get(client, replica, name) for replica in platform.standing) == [200] * 3
        assert (await client.delete(maker, name)).status in (200, 202, 204)
        await until(partial(is_gone, client, name), f"{name} is gone on every replica")
        again = await client.create(platform.standing[(number + 1) % 3], "seen", name)
        assert again.status == 410


async def test_a_change_is_seen_at_once_where_it_was_made(platform: Platform, client: Caller) -> None:
    await client.stocked({"changed": 3})
    for number, replica in enumerate(platform.standing):
        name = f"changed-{number}"
        assert (await client.create(replica, "changed", name)).status == 201
        for image in (f"python:{version}" for version in range(10)):
            changed = await client.ask(replica, "PUT", f"/api/v1/gpu-units/{name}", {"image": image})
            assert changed.status == 200, changed
            assert (await get(client, replica, name)).body["data"]["image"] == image


def get(client: Caller, replica: LiveReplica, name: str) -> Awaitable[Answer]:
    return client.ask(replica, "GET", f"/api/v1/gpu-units/{name}")


async def is_gone(client: Caller, name: str) -> bool:
    return await statuses(get(client, replica, name) for replica in client.platform.standing) == [404] * 3


async def statuses(answers: Iterable[Awaitable[Answer]]) -> list[int]:
    return [answer.status for answer in await asyncio.gather(*answers)]
