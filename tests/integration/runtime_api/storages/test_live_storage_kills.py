"""After a kill at any write, no attachment stays orphaned, and a replay of the request succeeds."""

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
"""The writes of a create with two mounts: record, attach, attach, claim, create, commit, release."""
UPDATE = ("PATCH gpustorages", "PATCH gpuunits")
"""The writes of an update that adds a mount."""
FIRST_WRITE_AFTER_STOCK_CHOICE = 2
"""From this write on, recovery finishes the operation. Before it, the operation waits for a replay of the request."""
RECOVERY_TIMEOUT_SECONDS = 10
"""Maximum time until no orphaned attachment exists after the kills."""


@dataclass(frozen=True)
class StorageKillCase:
    """A request with its own stock and storages, whose replica is killed at one of its writes."""

    writes: tuple[str, ...]
    write: int
    after_write: bool

    @property
    def name(self) -> str:
        kind = "create" if self.writes is CREATE else "update"
        return f"{kind}-{self.write}-{'after-write' if self.after_write else 'before-write'}"

    @property
    def storages(self) -> list[str]:
        return [f"{self.name}-{each}" for each in ("b", "a")][: 2 if self.writes is CREATE else 1]

    @property
    def replay_status(self) -> int:
        """The expected status of a replay on another replica."""
        finished = self.writes is UPDATE or self.write + self.after_write >= FIRST_WRITE_AFTER_STOCK_CHOICE
        return 200 if finished else 201

    @property
    def allowed_statuses(self) -> set[int]:
        """The allowed statuses of the killed request. 0 is no response. A create is answered before its last write."""
        return {0, 201} if self.writes is CREATE and self.write == len(CREATE) else {0}

    async def send(self, client: ApiCaller, replica: ApiProcess) -> ApiResponse:
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
"""Kills before each write and after the last one. A kill after a write has the effect of a kill before the next one."""


async def test_kill_at_any_write_leaves_no_orphaned_attachment(platform: LivePlatform, api_client: ApiCaller) -> None:
    stock, storages = {case.name: 1 for case in CASES}, [name for case in CASES for name in case.storages]
    await create_storages(api_client, storages, with_volumes=False)
    await api_client.seed_and_wait(stock)
    updates = [case for case in CASES if case.writes is UPDATE]
    created = await asyncio.gather(
        *(api_client.create_unit(platform.shared_replicas[0], case.name, case.name) for case in updates)
    )
    assert {response.status for response in created} == {201}
    async with observing_mounts(api_client) as observer, AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(
                kube_write_proxy(platform, case.name, case.write, after_write=case.after_write)
            )
            for case in CASES
        ]
        await api_client.start_replicas(*(proxy.replica for proxy in proxies))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(restart_manager(api_client))
            kill_times = await asyncio.gather(
                *(send_and_kill(api_client, case, proxy) for case, proxy in zip(CASES, proxies, strict=True))
            )
        await wait_no_orphaned_attachments(api_client)
        seconds = time.monotonic() - max(kill_times)
        print(f"no orphaned attachment {seconds:.1f} s after the last of {len(kill_times)} kills")
        await wait_conserved(api_client, stock)
        await replay_requests(api_client)
        await delete_units_and_wait_released(api_client, observer, storages)


async def restart_manager(client: ApiCaller) -> None:
    """Kill and start the controller manager at random times while the requests run."""
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await kill_manager(client)
    await asyncio.sleep(random.uniform(0, 0.5))  # noqa: S311
    await start_manager(client)


async def send_and_kill(client: ApiCaller, case: StorageKillCase, proxy: KubeWriteProxy) -> float:
    """Send the request and return the time of the kill."""
    response = await case.send(client, proxy.replica)
    try:
        await asyncio.wait_for(proxy.fault_reached.wait(), 60)
    except TimeoutError:
        raise AssertionError(f"{case.name}: {response}, {proxy.writes}") from None
    assert response.status in case.allowed_statuses
    assert tuple(proxy.writes) == case.writes[: case.write], case.name
    return time.monotonic()


async def wait_no_orphaned_attachments(client: ApiCaller) -> None:
    orphans: list[str] = []

    async def none_is_orphaned() -> bool:
        orphans[:] = await orphaned_attachments(client)
        return not orphans

    try:
        await until(none_is_orphaned, "no attachment is orphaned", RECOVERY_TIMEOUT_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {orphans}") from None


async def replay_requests(client: ApiCaller) -> None:
    replicas = client.platform.shared_replicas
    responses = await asyncio.gather(*(case.send(client, replicas[n % 3]) for n, case in enumerate(CASES)))
    statuses = {case.name: response.status for case, response in zip(CASES, responses, strict=True)}
    assert statuses == {case.name: case.replay_status for case in CASES}
    storages = await list_storages(client)
    for case in CASES:
        assert [attached_unit(storages[name]) for name in case.storages] == [case.name] * len(case.storages)


async def delete_units_and_wait_released(client: ApiCaller, observer: MountObserver, storages: list[str]) -> None:
    """Delete all units while no controller manager runs. The next one must detach their storages."""
    await kill_manager(client)
    replica = client.platform.shared_replicas[0]
    deleted = await asyncio.gather(*(client.delete_unit(replica, case.name) for case in CASES))
    assert {response.status for response in deleted} == {204}
    await start_manager(client)

    async def are_free() -> bool:
        return not any(observer.attached_units[name] for name in storages)

    seconds = await until(are_free, "all storages are detached")
    print(f"storages of deleted units were detached within {seconds:.1f} s")
