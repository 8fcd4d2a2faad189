"""Kills of a replica at every write of a handoff.

After each kill no stock unit is lost, no stock unit is consumed twice, and no handoff stays partially applied.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
from tests.integration.controller_manager.conftest import Object
from tests.integration.runtime_api.handoff.kube_write_proxy import KubeWriteProxy, kube_write_proxy
from tests.integration.runtime_api.live_platform import (
    ApiCaller,
    ApiResponse,
    LiveApiProcess,
    LivePlatform,
    operation_state,
    until,
)
from tests.integration.runtime_api.stock.test_live_prepared_pods import (
    create,
    create_pool,
    delete_pool,
    is_ready,
    pods_of,
    pool_pods,
    unit_pods,
    wait_full,
    wait_unit,
)
from tests.integration.runtime_api.stock_conservation import wait_conserved

HANDOFF_WRITES = {
    "record": "POST operations",
    "claim": "PATCH gpuunits",
    "create": "POST gpuunits",
    "commit": "PATCH operations/status",
    "release": "DELETE gpuunits",
}
"""The writes of one create request, in order. The replica sends its response before it releases the stock."""
PREPARED_WRITES = {
    "record": "POST operations",
    "claim": "PATCH pods",
    "create": "POST gpuunits",
    "commit": "PATCH operations/status",
}
"""The writes of a create request that takes a prepared pod."""
LAST_WRITE_BEFORE_RESPONSE = 4
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
    grade: str = "reserved"

    @property
    def name(self) -> str:
        step = tuple(self.writes)[self.write - 1]
        return f"kill-{self.grade}-{self.iteration}-{step}-{'after-write' if self.after_write else 'before-write'}"

    @property
    def writes(self) -> dict[str, str]:
        return PREPARED_WRITES if self.grade == "prepared" else HANDOFF_WRITES

    @property
    def is_resumed_by_recovery(self) -> bool:
        return self.write + self.after_write >= FIRST_WRITE_AFTER_STOCK_CHOICE

    @property
    def allowed_statuses(self) -> set[int]:
        """The allowed statuses of the killed request. 0 means that the caller received no response.

        A kill after the commit can come before or after the caller has received the response.
        """
        return {0, 201} if self.write > LAST_WRITE_BEFORE_RESPONSE else {0}


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
    async with killed_replicas(platform, api_client, cases):
        seconds = await wait_conserved(api_client, stock)
        print(f"stock was conserved {seconds:.1f} s after {len(cases)} kills")
    await replay_on_another_replica(platform, api_client, cases)
    assert await wait_conserved(api_client, stock) < 10
    snapshot = await api_client.snapshot()
    for case in cases:
        assert (len(snapshot.stock_of(case.name)), len(snapshot.units_of(case.name))) == (1, 1), case.name


async def test_replica_killed_at_any_write_of_an_adoption_loses_no_pod(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    cases = [
        KillCase(0, write, after_write, "prepared")
        for write in range(1, len(PREPARED_WRITES) + 1)
        for after_write in (False, True)
    ]
    await asyncio.gather(*(create_pool(api_client, case.name, image="python:3.12") for case in cases))
    async with killed_replicas(platform, api_client, cases):
        resumed = {f"make-{case.name}" for case in cases if case.is_resumed_by_recovery}
        await until(partial(have_succeeded, api_client, resumed), "recovery has finished the operations")
    await replay_on_another_replica(platform, api_client, cases)
    for case in cases:
        unit = await wait_unit(api_client, case.name, is_ready)
        (pod,) = await unit_pods(api_client, case.name)
        assert pod["metadata"]["uid"] == unit["metadata"]["annotations"][Annotation.SOURCE_STOCK_UID], case.name
        await wait_full(api_client, case.name)
        (waiting,) = await pool_pods(api_client, case.name)
        assert waiting["metadata"]["uid"] != pod["metadata"]["uid"]
        prepared = await pods_of(api_client, **{Label.PREPARED: "true"})
        assert not [each for each in prepared if case.name in each["metadata"]["labels"].values() and is_left(each)]
        assert (await api_client.delete_unit(platform.shared_replicas[0], case.name)).status == 204
        await delete_pool(api_client, case.name)


@asynccontextmanager
async def killed_replicas(platform: LivePlatform, client: ApiCaller, cases: list[KillCase]) -> AsyncIterator[None]:
    """Send the request of each case to its own replica, which is killed at the write of the case."""
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write)
            )
            for case in cases
        ]
        await client.start_replicas(*(proxy.replica for proxy in proxies))
        await asyncio.gather(*(kill_at_write(client, case, proxy) for case, proxy in zip(cases, proxies, strict=True)))
        yield


async def have_succeeded(client: ApiCaller, operation_ids: set[str]) -> bool:
    operations = (await client.snapshot()).operations
    return all(operation_state(operations[each]) == "Succeeded" for each in operation_ids)


def is_left(pod: Object) -> bool:
    """Whether a handoff has claimed the pod, and it is not the pod of a unit."""
    metadata = pod["metadata"]
    is_claimed = Annotation.CLAIMED_BY in metadata.get("annotations", {})
    return is_claimed and (Label.POOL in metadata["labels"] or not metadata.get("ownerReferences"))


async def kill_at_write(client: ApiCaller, case: KillCase, proxy: KubeWriteProxy) -> None:
    response = await send_create(client, proxy.replica, case)
    try:
        await asyncio.wait_for(proxy.fault_reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: the replica did not reach the write: {response}, {proxy.writes}") from None
    assert response.status in case.allowed_statuses
    assert proxy.writes == list(case.writes.values())[: case.write]


async def send_create(client: ApiCaller, replica: LiveApiProcess, case: KillCase) -> ApiResponse:
    if case.grade == "reserved":
        return await client.create_unit(replica, case.name, case.name)
    return await create(client, replica, case.name, case.name, image="python:3.12")


async def replay_on_another_replica(platform: LivePlatform, client: ApiCaller, cases: list[KillCase]) -> None:
    """Send every request again to another replica, also if the caller received a response.

    The replay returns 200 if recovery has finished the operation, because the unit is not created again.
    """
    responses = await asyncio.gather(
        *(send_create(client, platform.shared_replicas[number % 3], case) for number, case in enumerate(cases))
    )
    statuses = {case.name: response.status for case, response in zip(cases, responses, strict=True)}
    assert statuses == {case.name: 200 if case.is_resumed_by_recovery else 201 for case in cases}
