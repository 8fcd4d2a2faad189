"""A replica is killed or paused during the seeding of stock.

The seed operation creates every requested stock unit once, and never creates a consumed stock unit again.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.handoff.kube_write_proxy import KubeWriteProxy, kube_write_proxy
from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LivePlatform, until
from tests.integration.runtime_api.stock_conservation import wait_conserved

REPLICAS = 4
RECORD, START, FIRST_UNIT, LAST_UNIT, END = 1, 2, 3, 6, 7
"""The numbers of the writes of a seed operation with four stock units, in order.

The writes are: record the Operation, mark it Running, create four stock units, mark the Operation Succeeded.
"""


@dataclass(frozen=True)
class SeedingCase:
    """A seed request whose replica is killed or paused at one of its writes. The case has its own flavor."""

    kind: str
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.write}-{'after-write' if self.after_write else 'before-write'}"

    @property
    def is_recorded(self) -> bool:
        """Whether the Operation exists at the fault, so that recovery finishes it without a replay of the request."""
        return self.write > RECORD or self.after_write


async def test_seeding_of_a_killed_replica_is_finished_by_another_replica(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    writes = (RECORD, START, FIRST_UNIT, LAST_UNIT, END)
    cases = [SeedingCase("seeder-killed", write, after_write) for write in writes for after_write in (False, True)]
    async with AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(_seeding_proxy(platform, case)) for case in cases]
        await api_client.start_replicas(*(proxy.replica for proxy in proxies))
        await asyncio.gather(
            *(seed_until_fault(api_client, case, proxy) for case, proxy in zip(cases, proxies, strict=True))
        )
        expected = {case.name: REPLICAS if case.is_recorded else 0 for case in cases}
        seconds = await wait_conserved(api_client, expected)
        print(f"all stock was seeded {seconds:.1f} s after {len(cases)} kills")
    responses = await asyncio.gather(
        *(api_client.seed_stock(platform.shared_replicas[0], case.name, REPLICAS) for case in cases)
    )
    replays = {case.name: response.status for case, response in zip(cases, responses, strict=True)}
    assert replays == {case.name: 200 if case.is_recorded else 202 for case in cases}
    await asyncio.gather(*(assert_consumable(platform, api_client, case) for case in cases))
    # A replica deletes consumed stock in the background, after its response.
    await wait_conserved(api_client, {case.name: REPLICAS for case in cases})


async def test_resumed_seeding_does_not_recreate_consumed_stock(platform: LivePlatform, api_client: ApiCaller) -> None:
    writes = (START, FIRST_UNIT, LAST_UNIT, END)
    cases = [SeedingCase("seeder-paused", write, after_write) for write in writes for after_write in (False, True)]
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(_seeding_proxy(platform, case, pause_replica=True)) for case in cases
        ]
        await api_client.start_replicas(*(proxy.replica for proxy in proxies))
        requests = [
            asyncio.create_task(seed_until_fault(api_client, case, proxy))
            for case, proxy in zip(cases, proxies, strict=True)
        ]
        await asyncio.gather(*(proxy.fault_reached.wait() for proxy in proxies))
        await asyncio.gather(*(assert_consumable(platform, api_client, case) for case in cases))
        for proxy in proxies:
            proxy.resume()
        late_statuses = {case.name: await proxy.paused_write_status for case, proxy in zip(cases, proxies, strict=True)}
        stock = {case.name: REPLICAS for case in cases}
        seconds = await wait_conserved(api_client, stock)
        print(f"late stock units were deleted {seconds:.1f} s after the paused replicas were resumed")
        await asyncio.gather(*requests)
    late_creates = [SeedingCase("seeder-paused", write, after_write=False).name for write in (FIRST_UNIT, LAST_UNIT)]
    assert {late_statuses[name] for name in late_creates} == {201}, "a late create did not create the stock unit again"
    snapshot = await api_client.snapshot()
    assert not [case.name for case in cases if snapshot.stock_of(case.name)]


def _seeding_proxy(
    platform: LivePlatform, case: SeedingCase, *, pause_replica: bool = False
) -> AbstractAsyncContextManager[KubeWriteProxy]:
    return kube_write_proxy(platform, case.name, case.write, after_write=case.after_write, pause_replica=pause_replica)


async def seed_until_fault(client: ApiCaller, case: SeedingCase, proxy: KubeWriteProxy) -> ApiResponse:
    response = await client.seed_stock(proxy.replica, case.name, REPLICAS)
    await asyncio.wait_for(proxy.fault_reached.wait(), 60)
    return response


async def assert_consumable(platform: LivePlatform, client: ApiCaller, case: SeedingCase) -> None:
    """Assert that creates can consume all seeded stock units of the case, and no more than those."""
    for number in range(REPLICAS):
        name = f"{case.name}-{number}"

        async def is_created(name: str = name) -> bool:
            return (await client.create_unit(platform.shared_replicas[1], case.name, name)).status in (200, 201)

        await until(is_created, f"unit {name} is created")
    excess = await client.create_unit(platform.shared_replicas[2], case.name, f"{case.name}-excess")
    assert (excess.status, excess.code) == (409, "no_stock")

    async def is_deleted() -> bool:
        return not (await client.snapshot()).stock_of(case.name)

    await until(is_deleted, f"the consumed stock of {case.name} is deleted")
