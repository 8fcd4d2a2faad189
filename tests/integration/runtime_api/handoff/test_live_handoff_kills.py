"""Whoever is killed, and whenever: stock is neither lost nor given out twice, and nothing half-done stays half-done."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from tests.integration.runtime_api.handoff.kube_write_proxy import KubeWriteProxy, kube_write_proxy
from tests.integration.runtime_api.live_platform import ApiCaller, LivePlatform
from tests.integration.runtime_api.stock_conservation import wait_conserved

HANDOFF_WRITES = {
    "record": "POST operations",
    "claim": "PATCH gpuunits",
    "make": "POST gpuunits",
    "commit": "PATCH operations/status",
    "release": "DELETE gpuunits",
}
"""The writes of one create, in their order. Its answer comes before the last one."""
STOCK_CHOSEN_WRITE = 2
"""What has chosen stock is finished without anybody asking again; what has not waits for the caller."""


@dataclass(frozen=True)
class KillCase:
    """A create whose replica is killed at one of its writes, with two stock units of its own flavor."""

    iteration: int
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        step = tuple(HANDOFF_WRITES)[self.write - 1]
        return f"kill-{self.iteration}-{step}-{'unheard' if self.after_write else 'unsent'}"

    @property
    def is_resumed_by_recovery(self) -> bool:
        return self.write + self.after_write >= STOCK_CHOSEN_WRITE

    @property
    def allowed_statuses(self) -> set[int]:
        """What the caller may hear, with 0 for nothing: after the commit it is not the kill that decides."""
        return {0, 201} if self.write == len(HANDOFF_WRITES) else {0}


@pytest.mark.parametrize("turn", range(2))
async def test_replica_killed_at_any_write_leaves_no_partial_handoff(
    platform: LivePlatform, api_client: ApiCaller, turn: int
) -> None:
    cases = [
        KillCase(turn, write, carried_out)
        for write in range(1, len(HANDOFF_WRITES) + 1)
        for carried_out in (False, True)
    ]
    stock = {case.name: 2 for case in cases}
    await api_client.seed_and_wait(stock)
    async with AsyncExitStack() as stack:
        doomed = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write)
            )
            for case in cases
        ]
        await api_client.start_replicas(*(each.replica for each in doomed))
        await asyncio.gather(*(kill_at_write(api_client, case, each) for case, each in zip(cases, doomed, strict=True)))
        print(
            f"after {len(cases)} kills everything was in order within {await wait_conserved(api_client, stock):.1f} s"
        )
    await replay_on_another_replica(platform, api_client, cases)
    assert await wait_conserved(api_client, stock) < 10
    seen = await api_client.snapshot()
    for case in cases:
        assert (len(seen.stock_of(case.name)), len(seen.units_of(case.name))) == (1, 1), case.name


async def kill_at_write(client: ApiCaller, case: KillCase, doomed: KubeWriteProxy) -> None:
    answer = await client.create_unit(doomed.replica, case.name, case.name)
    try:
        await asyncio.wait_for(doomed.fault_reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: {answer}, {doomed.writes}") from None
    assert answer.status in case.allowed_statuses
    assert doomed.writes == list(HANDOFF_WRITES.values())[: case.write]


async def replay_on_another_replica(platform: LivePlatform, client: ApiCaller, cases: list[KillCase]) -> None:
    """The caller asks another replica, answered or not. What was finished meanwhile is not made again."""
    answers = await asyncio.gather(
        *(
            client.create_unit(platform.shared_replicas[number % 3], case.name, case.name)
            for number, case in enumerate(cases)
        )
    )
    statuses = {case.name: answer.status for case, answer in zip(cases, answers, strict=True)}
    assert statuses == {case.name: 200 if case.is_resumed_by_recovery else 201 for case in cases}
