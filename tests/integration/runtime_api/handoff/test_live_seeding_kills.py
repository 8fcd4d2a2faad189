"""Seeding whose process is killed or asleep: all the stock that was asked for, once, and never what was consumed."""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.handoff.kube_write_proxy import KubeWriteProxy, kube_write_proxy
from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LivePlatform, until
from tests.integration.runtime_api.stock_conservation import conservation_errors, wait_conserved

REPLICAS = 4
RECORD, START, FIRST_UNIT, LAST_UNIT, END = 1, 2, 3, 6, 7
"""The writes of seeding four, in their order."""


@dataclass(frozen=True)
class SeedingCase:
    kind: str
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.write}-{'unheard' if self.after_write else 'unsent'}"

    @property
    def is_recorded(self) -> bool:
        return self.write > RECORD or self.after_write


async def test_seeding_of_a_killed_replica_is_finished_by_another(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    writes = (RECORD, START, FIRST_UNIT, LAST_UNIT, END)
    cases = [SeedingCase("seeder-dies", write, carried_out) for write in writes for carried_out in (False, True)]
    async with AsyncExitStack() as stack:
        doomed = [await stack.enter_async_context(_seeding_proxy(platform, case)) for case in cases]
        await api_client.start_replicas(*(each.replica for each in doomed))
        await asyncio.gather(
            *(seed_until_fault(api_client, case, each) for case, each in zip(cases, doomed, strict=True))
        )
        expected = {case.name: REPLICAS if case.is_recorded else 0 for case in cases}
        print(f"after {len(cases)} kills all stock was there within {await wait_conserved(api_client, expected):.1f} s")
    answers = await asyncio.gather(
        *(api_client.seed_stock(platform.shared_replicas[0], case.name, REPLICAS) for case in cases)
    )
    replays = {case.name: answer.status for case, answer in zip(cases, answers, strict=True)}
    assert replays == {case.name: 200 if case.is_recorded else 202 for case in cases}
    await asyncio.gather(*(assert_consumable(platform, api_client, case) for case in cases))
    assert conservation_errors(await api_client.snapshot(), {case.name: REPLICAS for case in cases}) == []


async def test_resumed_seeding_does_not_recreate_consumed_stock(platform: LivePlatform, api_client: ApiCaller) -> None:
    writes = (START, FIRST_UNIT, LAST_UNIT, END)
    cases = [SeedingCase("seeder-sleeps", write, carried_out) for write in writes for carried_out in (False, True)]
    async with AsyncExitStack() as stack:
        asleep = [await stack.enter_async_context(_seeding_proxy(platform, case, pauses=True)) for case in cases]
        await api_client.start_replicas(*(each.replica for each in asleep))
        requests = [
            asyncio.create_task(seed_until_fault(api_client, case, each))
            for case, each in zip(cases, asleep, strict=True)
        ]
        await asyncio.gather(*(each.fault_reached.wait() for each in asleep))
        await asyncio.gather(*(assert_consumable(platform, api_client, case) for case in cases))
        for each in asleep:
            each.resume()
        late = {case.name: await each.paused_write_status for case, each in zip(cases, asleep, strict=True)}
        stock = {case.name: REPLICAS for case in cases}
        print(f"what the sleepers made was gone within {await wait_conserved(api_client, stock):.1f} s")
        await asyncio.gather(*requests)
    assert {late[f"seeder-sleeps-{write}-unsent"] for write in (FIRST_UNIT, LAST_UNIT)} == {201}, (
        "nothing came too late"
    )
    seen = await api_client.snapshot()
    assert not [case.name for case in cases if seen.stock_of(case.name)]


def _seeding_proxy(
    platform: LivePlatform, case: SeedingCase, *, pauses: bool = False
) -> AbstractAsyncContextManager[KubeWriteProxy]:
    return kube_write_proxy(platform, case.name, case.write, after_write=case.after_write, pause_replica=pauses)


async def seed_until_fault(client: ApiCaller, case: SeedingCase, crossed: KubeWriteProxy) -> ApiResponse:
    answer = await client.seed_stock(crossed.replica, case.name, REPLICAS)
    await asyncio.wait_for(crossed.fault_reached.wait(), 60)
    return answer


async def assert_consumable(platform: LivePlatform, client: ApiCaller, case: SeedingCase) -> None:
    """All of it, and not one more."""
    for number in range(REPLICAS):
        name = f"{case.name}-{number}"

        async def made(name: str = name) -> bool:
            return (await client.create_unit(platform.shared_replicas[1], case.name, name)).status in (200, 201)

        await until(made, f"{name} is made")
    more = await client.create_unit(platform.shared_replicas[2], case.name, f"{case.name}-more")
    assert (more.status, more.code) == (409, "no_stock")
