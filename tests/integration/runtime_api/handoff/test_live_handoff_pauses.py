"""A replica that was asleep in the middle of a handoff, and goes on when everything is over."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.handoff.kube_write_proxy import kube_write_proxy
from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LivePlatform, until
from tests.integration.runtime_api.stock_conservation import wait_conserved

HANDOFF_WRITE_COUNT, CREATE_UNIT_WRITE = 5, 3
"""How many writes a create has, and the one whose coming too late makes a unit again."""


@dataclass(frozen=True)
class PauseCase:
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        return f"pause-{self.write}-{'unheard' if self.after_write else 'unsent'}"


async def test_resumed_replica_does_not_recreate_a_deleted_unit(platform: LivePlatform, api_client: ApiCaller) -> None:
    cases = [
        PauseCase(write, carried_out) for write in range(1, HANDOFF_WRITE_COUNT + 1) for carried_out in (False, True)
    ]
    names, stock = [case.name for case in cases], {case.name: 2 for case in cases}
    await api_client.seed_and_wait(stock)
    async with AsyncExitStack() as stack:
        asleep = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write, pause_replica=True)
            )
            for case in cases
        ]
        await api_client.start_replicas(*(each.replica for each in asleep))
        requests = [
            asyncio.create_task(api_client.create_unit(each.replica, name, name))
            for name, each in zip(names, asleep, strict=True)
        ]
        await asyncio.gather(*(each.fault_reached.wait() for each in asleep))
        await asyncio.gather(*(create_and_delete(platform, api_client, name) for name in names))
        for each in asleep:
            each.resume()
        late = {name: await each.paused_write_status for name, each in zip(names, asleep, strict=True)}
        print(
            f"late sleepers were cleared up after within {await wait_conserved(api_client, stock, deleted=names):.1f} s"
        )
        answers = dict(zip(names, await asyncio.gather(*requests), strict=True))
    assert late[PauseCase(CREATE_UNIT_WRITE, False).name] == 201, "nothing came too late"
    seen = await api_client.snapshot()
    assert not [name for name in names if seen.units_of(name)]
    assert {len(seen.stock_of(name)) for name in names} == {1}
    assert {answer.status for answer in answers.values()} <= {200, 201, 410, 503}, answers
    replays = await asyncio.gather(*(api_client.create_unit(platform.shared_replicas[2], name, name) for name in names))
    assert {answer.status for answer in replays} == {410}


async def create_and_delete(platform: LivePlatform, client: ApiCaller, name: str) -> None:
    """Another replica answers the same request, and a third one deletes what was made."""
    answer = ApiResponse(0)

    async def made() -> bool:
        nonlocal answer
        answer = await client.create_unit(platform.shared_replicas[0], name, name)
        return answer.status in (200, 201)

    await until(made, f"{name} is made: {answer}")
    assert (await client.delete_unit(platform.shared_replicas[1], name)).status in (200, 202, 204)
