"""Whoever is killed, and whenever: soon no storage is attached to nothing, and the request gets its answer."""

import asyncio
import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.integration.runtime_api.edge.conftest import ApiProcess
from tests.integration.runtime_api.handoff.kube_write_proxy import KubeWriteProxy, kube_write_proxy
from tests.integration.runtime_api.live_platform import ApiCaller, ApiResponse, LivePlatform, until
from tests.integration.runtime_api.stock_conservation import wait_conserved
from tests.integration.runtime_api.storages.storage_observer import (
    MountObserver,
    attached_unit,
    create_storages,
    create_unit_with_mounts,
    kill_manager,
    list_storages,
    observing_mounts,
    orphaned_attachments,
    start_manager,
    storage_mounts,
)

CREATE = (
    "POST operations",
    "PATCH gpustorages",
    "PATCH gpustorages",
    "PATCH gpuunits",
    "POST gpuunits",
    "PATCH operations/status",
    "DELETE gpuunits",
)
"""The writes of a create with two mounts: record, attach, attach, claim, make, commit, release."""
UPDATE = ("PATCH gpustorages", "PATCH gpuunits")
"""And of an update that gains a mount."""
CHOSEN = 2
"""What has chosen stock is finished without anybody asking again; what has not waits for the caller."""
SECONDS = 10
"""Within which everything is in order again."""


@dataclass(frozen=True)
class StorageKillCase:
    """A request whose replica is killed at one of its writes, with stock and storages of its own."""

    writes: tuple[str, ...]
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        kind = "create" if self.writes is CREATE else "update"
        return f"{kind}-{self.write}-{'unheard' if self.after_write else 'unsent'}"

    @property
    def storages(self) -> list[str]:
        return [f"{self.name}-{each}" for each in ("b", "a")][: 2 if self.writes is CREATE else 1]

    @property
    def replayed(self) -> int:
        """What the request is answered after the kill, by another replica."""
        alone = self.writes is UPDATE or self.write + self.after_write >= CHOSEN
        return 200 if alone else 201

    @property
    def answers(self) -> set[int]:
        """What the caller may hear, with 0 for nothing: a create is answered before its last write."""
        return {0, 201} if self.writes is CREATE and self.write == len(CREATE) else {0}

    async def ask(self, client: ApiCaller, replica: ApiProcess) -> ApiResponse:
        if self.writes is CREATE:
            return await create_unit_with_mounts(client, replica, self.name, self.name, *self.storages)
        return await client.request(replica, "PUT", f"/api/v1/gpu-units/{self.name}", storage_mounts(*self.storages))


CASES = [
    *(
        StorageKillCase(writes, write, after_write=False)
        for writes in (CREATE, UPDATE)
        for write in range(1, len(writes) + 1)
    ),
    *(StorageKillCase(writes, len(writes), after_write=True) for writes in (CREATE, UPDATE)),
]
"""Before each write, and after the last one. To be killed after a write leaves the same as before the next one."""


async def test_kill_at_any_write_leaves_no_orphaned_attachment(platform: LivePlatform, api_client: ApiCaller) -> None:
    stock, every = {case.name: 1 for case in CASES}, [name for case in CASES for name in case.storages]
    await create_storages(api_client, every, with_volumes=False)
    await api_client.seed_and_wait(stock)
    updates = [case for case in CASES if case.writes is UPDATE]
    made = await asyncio.gather(
        *(api_client.create_unit(platform.shared_replicas[0], case.name, case.name) for case in updates)
    )
    assert {answer.status for answer in made} == {201}
    async with observing_mounts(api_client) as mounted, AsyncExitStack() as stack:
        doomed = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write)
            )
            for case in CASES
        ]
        await api_client.start_replicas(*(each.replica for each in doomed))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(manager_dies(api_client))
            deaths = await asyncio.gather(
                *(killed(api_client, case, each) for case, each in zip(CASES, doomed, strict=True))
            )
        await wait_no_orphaned_attachments(api_client)
        print(
            f"no storage was attached to nothing {time.monotonic() - max(deaths):.1f} s after the last of {len(deaths)}"
        )
        await wait_conserved(api_client, stock)
        await replayed(api_client)
        await everything_is_released(api_client, mounted, every)


async def manager_dies(client: ApiCaller) -> None:
    """Somewhere in the middle of what the others do."""
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await kill_manager(client)
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await start_manager(client)


async def killed(client: ApiCaller, case: StorageKillCase, doomed: KubeWriteProxy) -> float:
    """Gives the time of death."""
    answer = await case.ask(client, doomed.replica)
    try:
        await asyncio.wait_for(doomed.fault_reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: {answer}, {doomed.writes}") from None
    assert answer.status in case.answers
    assert tuple(doomed.writes) == case.writes[: case.write], case.name
    return time.monotonic()


async def wait_no_orphaned_attachments(client: ApiCaller) -> None:
    found: list[str] = []

    async def in_order() -> bool:
        found[:] = await orphaned_attachments(client)
        return not found

    try:
        await until(in_order, "every storage is free or held by its unit", SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None


async def replayed(client: ApiCaller) -> None:
    standing = client.platform.shared_replicas
    answers = await asyncio.gather(*(case.ask(client, standing[n % 3]) for n, case in enumerate(CASES)))
    statuses = {case.name: answer.status for case, answer in zip(CASES, answers, strict=True)}
    assert statuses == {case.name: case.replayed for case in CASES}
    held = await list_storages(client)
    for case in CASES:
        assert [attached_unit(held[name]) for name in case.storages] == [case.name] * len(case.storages)


async def everything_is_released(client: ApiCaller, mounted: MountObserver, every: list[str]) -> None:
    """Also what lost its unit while there was no controller manager."""
    await kill_manager(client)
    gone = await asyncio.gather(*(client.delete_unit(client.platform.shared_replicas[0], case.name) for case in CASES))
    assert {answer.status for answer in gone} == {204}
    await start_manager(client)

    async def are_free() -> bool:
        return not any(mounted.attached_units[name] for name in every)

    print(f"what lost its unit meanwhile was released within {await until(are_free, 'all are free'):.1f} s")
