"""A unit claims to be a worker, or a request creates a second function with the requestID of another function."""

import aiohttp

from tests.integration.activator.activator_harness import UNIT_NAMESPACE, ActivatorHarness, until
from tests.integration.controller_manager.conftest import QUEUE, as_dict


async def test_activator_removes_a_unit_that_claims_to_be_a_worker(harness: ActivatorHarness) -> None:
    await harness.create_function("claimed", maxWorkers=4)
    serverless = {"enabled": True, "requestID": "claimed", "workerOf": "claimed"}
    spec = {"specName": "claimed", "image": "thief", "serverless": serverless}
    thief = await harness.create_unit(UNIT_NAMESPACE, "claimed-w0", spec)

    async def is_removed() -> bool:
        units = await harness.list_workers("claimed")
        return all(each["metadata"]["uid"] != thief["metadata"]["uid"] for each in units)

    async with harness.activator():
        await until(is_removed, "the unit is removed")
    queues = [as_dict(each)["spec"] async for each in harness.kube.list(QUEUE, namespace="runtime-system")]
    assert thief["metadata"]["uid"] not in [uid for each in queues for uid in each.get("workers", {})]


async def test_recorded_workers_are_the_workers_that_the_activator_created(harness: ActivatorHarness) -> None:
    await harness.create_function("scaled", maxWorkers=1, minAvailableCount=1)

    async def is_recorded() -> bool:
        workers = {each["metadata"]["uid"]: each["metadata"]["name"] for each in await harness.list_workers("scaled")}
        queues = [as_dict(each)["spec"] async for each in harness.kube.list(QUEUE, namespace="runtime-system")]
        return bool(workers) and [each.get("workers") for each in queues if each["requestID"] == "scaled"] == [workers]

    async with harness.activator():
        await until(is_recorded, "the worker is recorded")


async def test_request_for_a_second_function_with_the_same_request_id_is_409(harness: ActivatorHarness) -> None:
    await harness.create_function("owned")
    body = {
        "operationID": "steal-owned",
        "name": "thief",
        "specName": "g1.1",
        "image": "thief",
        "serverless": {"enabled": True, "requestID": "owned"},
    }

    async def is_rejected() -> bool:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{harness.api_url}/api/v1/gpu-units", json=body) as response,
        ):
            return response.status == 409 and (await response.json())["error"]["code"] == "duplicate_request_id"

    await until(is_rejected, "the request is rejected")
