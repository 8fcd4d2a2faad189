"""The runtime API works while the controller manager is down, and the controller manager while all APIs are down."""

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
        # The killed leader did not release its Lease. Delete it, so that the test need not wait until it expires.
        platform.control_plane.kubectl("delete", "lease", "controller-manager", "--namespace=runtime-system")
        platform.manager.start()
        await asyncio.to_thread(lambda: platform.manager.wait_ready().wait_leading())


async def wait_ready(client: ApiCaller, name: str) -> None:
    """Wait until the unit is Ready.

    In a new cluster that takes half a minute: until then the garbage collector does not know the kind GPUUnit, and the
    pod of the stock unit is not deleted.
    """

    async def is_ready() -> bool:
        unit = as_dict(await client.kube.get(UNIT, name, namespace=UNIT_NAMESPACE))
        return ready_condition(unit).get("status") == "True"

    await until(is_ready, f"{name} is Ready", 180)


async def deployments(client: ApiCaller) -> dict[str, str]:
    """The UIDs of all Deployments of units, by name."""
    return {
        each["metadata"]["name"]: each["metadata"]["uid"]
        for each in await client.list_objects(Deployment, UNIT_NAMESPACE)
    }


async def test_reconciliation_continues_without_any_runtime_api(platform: LivePlatform, api_client: ApiCaller) -> None:
    name = "created-without-api"
    async with all_replicas_killed(platform, api_client):
        assert {(await api_client.request(each, "GET", "/readyz")).status for each in platform.shared_replicas} == {0}
        metadata = ObjectMeta(name=name, namespace=UNIT_NAMESPACE)
        await api_client.kube.create(
            UNIT(metadata=metadata, spec={"specName": "out.1", "image": "python:3.12", "gpu": 1})
        )
        await wait_ready(api_client, name)
        first_uid = (await deployments(api_client))[name]
        await api_client.kube.delete(Deployment, name, namespace=UNIT_NAMESPACE)

        async def is_recreated() -> bool:
            return (await deployments(api_client)).get(name, first_uid) != first_uid

        await until(is_recreated, "the deleted Deployment is created again")
        await wait_ready(api_client, name)
    for replica in platform.shared_replicas:
        response = await api_client.request(replica, "GET", f"/api/v1/gpu-units/{name}")
        assert (response.status, response.body["data"]["ready"]) == (200, True)
    assert (await api_client.delete_unit(platform.shared_replicas[0], name)).status == 204


async def test_api_works_without_controller_manager_and_units_become_ready_later(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    flavor, names = "out.2", [f"created-without-manager-{number}" for number in range(3)]
    first, second, third = platform.shared_replicas
    await api_client.seed_and_wait({flavor: len(names)})
    async with manager_killed(platform):
        created = [
            await api_client.create_unit(each, flavor, name)
            for each, name in zip(platform.shared_replicas, names, strict=True)
        ]
        assert [response.status for response in created] == [201, 201, 201], created
        assert (await api_client.create_unit(first, flavor, names[1])).status == 200, "a replay on another replica"
        storage = {"name": "storage-without-manager", "size": "1Gi"}
        assert (await api_client.request(second, "POST", "/api/v1/gpu-storages", storage)).status == 201
        assert (await api_client.seed_stock(third, flavor, 1, "seed-without-manager")).status == 202
        response = await api_client.request(second, "GET", f"/api/v1/gpu-units/{names[0]}")
        assert (response.status, response.body["data"]["ready"]) == (200, False)
        assert not set(names) & set(await deployments(api_client)), "Deployments exist without a controller manager"
    for name in names:
        await wait_ready(api_client, name)
        assert (await api_client.delete_unit(first, name)).status == 204
    await api_client.wait_stock_visible(third, {flavor: 1})
    assert (await api_client.request(first, "DELETE", f"/api/v1/gpu-storages/{storage['name']}")).status == 204
