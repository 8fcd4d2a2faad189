"""A replica is paused during a handoff and continues after another replica has created and deleted the unit."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.handoff.kube_write_proxy import kube_write_proxy
from tests.integration.runtime_api.live_platform import ApiCaller, LivePlatform, until
from tests.integration.runtime_api.stock_conservation import wait_conserved

HANDOFF_WRITE_COUNT = 5
"""Number of writes of one create request."""
CREATE_UNIT_WRITE = 3
"""The write that creates the unit. If it arrives after the deletion of the unit, it creates the unit again."""


@dataclass(frozen=True)
class PauseCase:
    """A create request whose replica is paused at one of its writes. The case has its own flavor."""

    write: int
    after_write: bool

    @property
    def name(self) -> str:
        return f"pause-{self.write}-{'after-write' if self.after_write else 'before-write'}"


async def test_resumed_replica_does_not_recreate_a_deleted_unit(platform: LivePlatform, api_client: ApiCaller) -> None:
    cases = [
        PauseCase(write, after_write) for write in range(1, HANDOFF_WRITE_COUNT + 1) for after_write in (False, True)
    ]
    names, stock = [case.name for case in cases], {case.name: 2 for case in cases}
    await api_client.seed_and_wait(stock)
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write, pause_replica=True)
            )
            for case in cases
        ]
        await api_client.start_replicas(*(proxy.replica for proxy in proxies))
        requests = [
            asyncio.create_task(api_client.create_unit(proxy.replica, name, name))
            for name, proxy in zip(names, proxies, strict=True)
        ]
        await asyncio.gather(*(proxy.fault_reached.wait() for proxy in proxies))
        await asyncio.gather(*(create_and_delete(platform, api_client, name) for name in names))
        for proxy in proxies:
            proxy.resume()
        late_statuses = {name: await proxy.paused_write_status for name, proxy in zip(names, proxies, strict=True)}
        seconds = await wait_conserved(api_client, stock, deleted=names)
        print(f"stock was conserved {seconds:.1f} s after the paused replicas were resumed")
        responses = dict(zip(names, await asyncio.gather(*requests), strict=True))
    late_create = PauseCase(CREATE_UNIT_WRITE, after_write=False).name
    assert late_statuses[late_create] == 201, "the late create did not create the unit again"
    snapshot = await api_client.snapshot()
    assert not [name for name in names if snapshot.units_of(name)]
    assert {len(snapshot.stock_of(name)) for name in names} == {1}
    assert {response.status for response in responses.values()} <= {200, 201, 410, 503}, responses
    replays = await asyncio.gather(*(api_client.create_unit(platform.shared_replicas[2], name, name) for name in names))
    assert {response.status for response in replays} == {410}


async def create_and_delete(platform: LivePlatform, client: ApiCaller, name: str) -> None:
    """Send the same create request to another replica, and delete the unit through a third replica."""

    async def is_created() -> bool:
        return (await client.create_unit(platform.shared_replicas[0], name, name)).status in (200, 201)

    await until(is_created, f"unit {name} is created")
    assert (await client.delete_unit(platform.shared_replicas[1], name)).status in (200, 202, 204)
