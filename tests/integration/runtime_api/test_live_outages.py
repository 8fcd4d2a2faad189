"""Who serves requests and who reconciles need each other's work, not each other: either may be away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment

from tests.integration.controller_manager.conftest import UNIT, as_dict, ready_condition
from tests.integration.runtime_api.live_platform import UNIT_NAMESPACE, ApiCaller, LivePlatform, until


@asynccontextmanager
async def all_replicas_killed(platform: LivePlatform, client: ApiCaller) -> AsyncIterator[None]:
    for replica in platform.shared_replicas:
        replica.kill()
    try:
        yield
    finally:
        await client.start_replicas(*platform.shared_replicas)


@asynccontextmanager
async def manager_killed(platform: LivePlatform) -> AsyncIterator[None]:
    platform.manager.stop()
    try:
        yield
    finally:
        # It was killed: nobody gave the Lease back, and the test need not wait for its end.
        platform.control_plane.kubectl("delete", "lease", "controller-manager", "--namespace=runtime-system")
        platform.manager.start()
        await asyncio.to_thread(lambda: platform.manager.wait_ready().wait_leading())


async def wait_ready(client: ApiCaller, name: str) -> None:
    """In a new cluster that takes half a minute: so long its garbage collector knows nothing of units, and the pod of
    the stock stays."""

    async def is_ready() -> bool:
        unit = as_dict(await client.kube.get(UNIT, name, namespace=UNIT_NAMESPACE))
        return ready_condition(unit).get("status") == "True"

    await until(is_ready, f"{name} is Ready", 180)


async def deployments(client: ApiCaller) -> dict[str, str]:
    """The UIDs, by name."""
    return {
        each["metadata"]["name"]: each["metadata"]["uid"]
        for each in await client.list_objects(Deployment, UNIT_NAMESPACE)
    }


async def test_reconciliation_continues_without_any_runtime_api(platform: LivePlatform, api_client: ApiCaller) -> None:
    name = "made-without-api"
    async with all_replicas_killed(platform, api_client):
        assert {(await api_client.request(each, "GET", "/readyz")).status for each in platform.shared_replicas} == {0}
        about = ObjectMeta(name=name, namespace=UNIT_NAMESPACE)
        await api_client.kube.create(UNIT(metadata=about, spec={"specName": "out.1", "image": "python:3.12", "gpu": 1}))
        await wait_ready(api_client, name)
        built = (await deployments(api_client))[name]
        await api_client.kube.delete(Deployment, name, namespace=UNIT_NAMESPACE)

        async def repaired() -> bool:
            return (await deployments(api_client)).get(name, built) != built

        await until(repaired, "what was deleted is made again")
        await wait_ready(api_client, name)
    for replica in platform.shared_replicas:
        answer = await api_client.request(replica, "GET", f"/api/v1/gpu-units/{name}")
        assert (answer.status, answer.body["data"]["ready"]) == (200, True)
    assert (await api_client.delete_unit(platform.shared_replicas[0], name)).status == 204


async def test_api_works_without_controller_manager_and_units_become_ready_later(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    flavor, names = "out.2", [f"made-without-manager-{number}" for number in range(3)]
    first, second, third = platform.shared_replicas
    await api_client.seed_and_wait({flavor: len(names)})
    async with manager_killed(platform):
        made = [
            await api_client.create_unit(each, flavor, name)
            for each, name in zip(platform.shared_replicas, names, strict=True)
        ]
        assert [answer.status for answer in made] == [201, 201, 201], made
        assert (await api_client.create_unit(first, flavor, names[1])).status == 200, (
            "the same request, on another replica"
        )
        storage = {"name": "storage-without-manager", "size": "1Gi"}
        assert (await api_client.request(second, "POST", "/api/v1/gpu-storages", storage)).status == 201
        assert (await api_client.seed_stock(third, flavor, 1, "seed-without-manager")).status == 202
        answer = await api_client.request(second, "GET", f"/api/v1/gpu-units/{names[0]}")
        assert (answer.status, answer.body["data"]["ready"]) == (200, False)
        assert not set(names) & set(await deployments(api_client)), "nobody was there to build them"
    for name in names:
        await wait_ready(api_client, name)
        assert (await api_client.delete_unit(first, name)).status == 204
    await api_client.wait_stock_visible(third, {flavor: 1})
    assert (await api_client.request(first, "DELETE", f"/api/v1/gpu-storages/{storage['name']}")).status == 204
