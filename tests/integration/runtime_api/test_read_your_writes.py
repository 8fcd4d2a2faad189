"""A client sees its own writes, on every replica."""

import asyncio
from collections.abc import Awaitable, Iterable
from functools import partial

from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LiveApiProcess, LivePlatform, until


async def test_creates_and_deletes_are_visible_on_every_replica(platform: LivePlatform, api_client: ApiCaller) -> None:
    await api_client.seed_and_wait({"seen": 10})
    for number in range(10):
        name, creator = f"seen-{number}", platform.shared_replicas[number % 3]
        assert (await api_client.create_unit(creator, "seen", name)).status == 201
        assert await statuses(get(api_client, replica, name) for replica in platform.shared_replicas) == [200] * 3
        assert (await api_client.delete_unit(creator, name)).status in (200, 202, 204)
        await until(partial(is_deleted_everywhere, api_client, name), f"{name} is deleted on every replica")
        replay = await api_client.create_unit(platform.shared_replicas[(number + 1) % 3], "seen", name)
        assert replay.status == 410


async def test_update_is_visible_immediately_on_its_replica(platform: LivePlatform, api_client: ApiCaller) -> None:
    await api_client.seed_and_wait({"changed": 3})
    for number, replica in enumerate(platform.shared_replicas):
        name = f"changed-{number}"
        assert (await api_client.create_unit(replica, "changed", name)).status == 201
        for image in (f"python:{version}" for version in range(10)):
            updated = await api_client.request(replica, "PUT", f"/api/v1/gpu-units/{name}", {"image": image})
            assert updated.status == 200, updated
            assert (await get(api_client, replica, name)).body["data"]["image"] == image


def get(client: ApiCaller, replica: LiveApiProcess, name: str) -> Awaitable[ApiResponse]:
    return client.request(replica, "GET", f"/api/v1/gpu-units/{name}")


async def is_deleted_everywhere(client: ApiCaller, name: str) -> bool:
    return await statuses(get(client, replica, name) for replica in client.platform.shared_replicas) == [404] * 3


async def statuses(requests: Iterable[Awaitable[ApiResponse]]) -> list[int]:
    return [response.status for response in await asyncio.gather(*requests)]
