"""Kills of a replica at every write of a handoff.

After each kill no stock unit is lost, no stock unit is consumed twice, and no handoff stays partially applied.
"""

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
    "create": "POST gpuunits",
    "commit": "PATCH operations/status",
    "release": "DELETE gpuunits",
}
"""The writes of one create request, in order. The replica sends its response before the last write."""
FIRST_WRITE_AFTER_STOCK_CHOICE = 2
"""From this write on, recovery finishes the operation, because the recorded Operation names the chosen stock unit.

A create that was killed before its record exists needs a replay of the request.
"""


@dataclass(frozen=True)
class KillCase:
    """A create request whose replica is killed at one of its writes. It has its own flavor with two stock units."""

    iteration: int
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        step = tuple(HANDOFF_WRITES)[self.write - 1]
        return f"kill-{self.iteration}-{step}-{'after-write' if self.after_write else 'before-write'}"

    @property
    def is_resumed_by_recovery(self) -> bool:
        return self.write + self.after_write >= FIRST_WRITE_AFTER_STOCK_CHOICE

    @property
    def allowed_statuses(self) -> set[int]:
        """The allowed statuses of the killed request. 0 means that the caller received no response.

        A kill at the last write can come before or after the caller has received the response.
        """
        return {0, 201} if self.write == len(HANDOFF_WRITES) else {0}


@pytest.mark.parametrize("iteration", range(2))
async def test_replica_killed_at_any_write_leaves_no_partial_handoff(
    platform: LivePlatform, api_client: ApiCaller, iteration: int
) -> None:
    cases = [
        KillCase(iteration, write, after_write)
        for write in range(1, len(HANDOFF_WRITES) + 1)
        for after_write in (False, True)
    ]
    stock = {case.name: 2 for case in cases}
    await api_client.seed_and_wait(stock)
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write)
            )
            for case in cases
        ]
        await api_client.start_replicas(*(proxy.replica for proxy in proxies))
        await asyncio.gather(
            *(kill_at_write(api_client, case, proxy) for case, proxy in zip(cases, proxies, strict=True))
        )
        seconds = await wait_conserved(api_client, stock)
        print(f"stock was conserved {seconds:.1f} s after {len(cases)} kills")
    await replay_on_another_replica(platform, api_client, cases)
    assert await wait_conserved(api_client, stock) < 10
    snapshot = await api_client.snapshot()
    for case in cases:
        assert (len(snapshot.stock_of(case.name)), len(snapshot.units_of(case.name))) == (1, 1), case.name


async def kill_at_write(client: ApiCaller, case: KillCase, proxy: KubeWriteProxy) -> None:
    response = await client.create_unit(proxy.replica, case.name, case.name)
    try:
        await asyncio.wait_for(proxy.fault_reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: the replica did not reach the write: {response}, {proxy.writes}") from None
    assert response.status in case.allowed_statuses
    assert proxy.writes == list(HANDOFF_WRITES.values())[: case.write]


async def replay_on_another_replica(platform: LivePlatform, client: ApiCaller, cases: list[KillCase]) -> None:
    """Send every request again to another replica, also if the caller received a response.

    The replay returns 200 if recovery has finished the operation, because the unit is not created again.
    """
    responses = await asyncio.gather(
        *(
            client.create_unit(platform.shared_replicas[number % 3], case.name, case.name)
            for number, case in enumerate(cases)
        )
    )
    statuses = {case.name: response.status for case, response in zip(cases, responses, strict=True)}
    assert statuses == {case.name: 200 if case.is_resumed_by_recovery else 201 for case in cases}
