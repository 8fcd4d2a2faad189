"""Who serves requests and who reconciles need each other's work, not each other: either may be away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment

from tests.integration.controller_manager.conftest import UNIT, as_dict, ready
from tests.integration.runtime_api.live import UNITS, Caller, Platform, until


@asynccontextmanager
async def every_api_crashed(platform: Platform, client: Caller) -> AsyncIterator[None]:
    for replica in platform.standing:
        replica.kill()
    try:
        yield
    finally:
        await client.started(*platform.standing)


@asynccontextmanager
async def manager_crashed(platform: Platform) -> AsyncIterator[None]:
    platform.manager.end()
    try:
        yield
    finally:
        # It was killed: nobody gave the Lease back, and the test need not wait for its end.
        platform.plane.kubectl("delete", "lease", "controller-manager", "--namespace=runtime-system")
        platform.manager.start()
        await asyncio.to_thread(lambda: platform.manager.wait_ready().wait_leading())


async def wait_ready(client: Caller, name: str) -> None:
    """In a new cluster that takes half a minute: so long its garbage collector knows nothing of units, and the pod of
    the stock stays."""

    async def is_ready() -> bool:
        unit = as_dict(await client.kube.get(UNIT, name, namespace=UNITS))
        return ready(unit).get("status") == "True"

    await until(is_ready, f"{name} is Ready", 180)


async def deployments(client: Caller) -> dict[str, str]:
    """The UIDs, by name."""
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in await client.all(Deployment, UNITS)}


async def test_reconciliation_goes_on_while_every_runtime_api_is_away(platform: Platform, client: Caller) -> None:
    name = "made-without-api"
    async with every_api_crashed(platform, client):
        assert {(await client.ask(each, "GET", "/readyz")).status for each in platform.standing} == {0}
        about = ObjectMeta(name=name, namespace=UNITS)
        await client.kube.create(UNIT(metadata=about, spec={"specName": "out.1", "image": "python:3.12", "gpu": 1}))
        await wait_ready(client, name)
        built = (await deployments(client))[name]
        await client.kube.delete(Deployment, name, namespace=UNITS)

        async def repaired() -> bool:
            return (await deployments(client)).get(name, built) != built

        await until(repaired, "what was deleted is made again")
        await wait_ready(client, name)
    for replica in platform.standing:
        answer = await client.ask(replica, "GET", f"/api/v1/gpu-units/{name}")
        assert (answer.status, answer.body["data"]["ready"]) == (200, True)
    assert (await client.delete(platform.standing[0], name)).status == 204


async def test_the_api_goes_on_while_the_controller_manager_is_away_and_its_units_are_ready_after_that(
    platform: Platform, client: Caller
) -> None:
    flavour, names = "out.2", [f"made-without-manager-{number}" for number in range(3)]
    first, second, third = platform.standing
    await client.stocked({flavour: len(names)})
    async with manager_crashed(platform):
        made = [await client.create(each, flavour, name) for each, name in zip(platform.standing, names, strict=True)]
        assert [answer.status for answer in made] == [201, 201, 201], made
        assert (await client.create(first, flavour, names[1])).status == 200, "the same request, on another replica"
        storage = {"name": "storage-without-manager", "size": "1Gi"}
        assert (await client.ask(second, "POST", "/api/v1/gpu-storages", storage)).status == 201
        assert (await client.seed(third, flavour, 1, "seed-without-manager")).status == 202
        answer = await client.ask(second, "GET", f"/api/v1/gpu-units/{names[0]}")
        assert (answer.status, answer.body["data"]["ready"]) == (200, False)
        assert not set(names) & set(await deployments(client)), "nobody was there to build them"
    for name in names:
        await wait_ready(client, name)
        assert (await client.delete(first, name)).status == 204
    await client.sees(third, {flavour: 1})
    assert (await client.ask(first, "DELETE", f"/api/v1/gpu-storages/{storage['name']}")).status == 204
