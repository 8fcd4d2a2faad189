"""Prepared pods on a real API server with real controllers: a running pod of a pool becomes the pod of a unit."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import Event, Pod, Service
from lightkube.types import PatchType

from gpu_runtime.contract.crd.well_known import Annotation, Label
from tests.integration.controller_manager.conftest import POOL, UNIT, Object
from tests.integration.runtime_api.live_platform import (
    OPERATION,
    UNIT_NAMESPACE,
    ApiCaller,
    ApiResponse,
    LivePlatform,
    until,
)

RACES = int(os.environ.get("PREPARED_RACES", "10"))
"""How often two creates race for the last prepared pod."""
TEMPLATE = {"command": ["serve"], "ports": [{"name": "http", "port": 8080}]}


async def create_pool(client: ApiCaller, name: str, replicas: int = 1, **fields: Any) -> Object:
    """Create an adoptable pool with kubectl, and wait until all its pods are Ready. Its flavor has its name."""
    spec = {"specName": name, "image": "model:1", "memory": "1Gi", "gpu": 1, "replicas": replicas}
    spec |= {"template": TEMPLATE, "adoptable": True} | fields
    await client.kube.create(POOL(metadata=ObjectMeta(name=name, namespace=UNIT_NAMESPACE), spec=spec))
    await wait_full(client, name)
    return await get(client, POOL, name)


async def wait_full(client: ApiCaller, name: str) -> None:
    async def is_full() -> bool:
        pool = await get(client, POOL, name)
        return bool(
            pool.get("status", {}).get("phase") == "Ready"
            and pool["status"]["observedGeneration"] == pool["metadata"]["generation"]
        )

    await until(is_full, f"pool {name} is full")


def request(flavor: str, name: str, **fields: Any) -> Object:
    body = {"operationID": f"make-{name}", "name": name, "specName": flavor, "image": "model:1", "template": TEMPLATE}
    return body | fields


async def create(client: ApiCaller, replica: Any, flavor: str, name: str, **fields: Any) -> ApiResponse:
    return await client.request(replica, "POST", "/api/v1/gpu-units", request(flavor, name, **fields))


async def create_prepared(client: ApiCaller, replica: Any, flavor: str, name: str, **fields: Any) -> Object:
    """Create a unit from a prepared pod. A replica whose cache does not show the pod yet refuses, so try again."""
    response = ApiResponse(0)

    async def is_created() -> bool:
        nonlocal response
        response = await create(client, replica, flavor, name, stock={"grades": ["prepared"]}, **fields)
        return response.status in (200, 201)

    await until(is_created, f"{name} is created from a prepared pod")
    return dict(response.body["data"])


async def get(client: ApiCaller, kind: Any, name: str, namespace: str = UNIT_NAMESPACE) -> Object:
    return dict((await client.kube.get(kind, name, namespace=namespace)).to_dict())


async def pods_of(client: ApiCaller, **labels: str) -> list[Object]:
    found = client.kube.list(Pod, namespace=UNIT_NAMESPACE, labels={**labels})
    return [dict(each.to_dict()) async for each in found]


async def pool_pods(client: ApiCaller, name: str) -> list[Object]:
    return await pods_of(client, **{Label.POOL: name})


async def unit_pods(client: ApiCaller, name: str) -> list[Object]:
    return await pods_of(client, **{Label.UNIT: name})


async def wait_unit(client: ApiCaller, name: str, holds: Callable[[Object], bool]) -> Object:
    found: Object = {}

    async def is_so() -> bool:
        found.clear()
        found.update(await get(client, UNIT, name))
        return holds(found)

    try:
        await until(is_so, f"unit {name}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {found}") from None
    return found


def is_ready(unit: Object) -> bool:
    status = unit.get("status", {})
    return bool(status.get("phase") == "Ready" and status.get("observedGeneration") == unit["metadata"]["generation"])


async def wait_gone(client: ApiCaller, kind: Any, name: str) -> None:
    async def is_gone() -> bool:
        found = client.kube.list(kind, namespace=UNIT_NAMESPACE, fields={"metadata.name": name})
        return [each async for each in found] == []

    await until(is_gone, f"{kind.__name__} {name} is deleted")


async def delete_pool(client: ApiCaller, name: str) -> None:
    await client.kube.delete(POOL, name, namespace=UNIT_NAMESPACE)


async def test_adopted_pod_keeps_running_and_the_unit_is_like_any_other(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    replica = platform.shared_replicas[0]
    await create_pool(api_client, "adopt", replicas=2)
    before = {pod["metadata"]["uid"]: pod for pod in await pool_pods(api_client, "adopt")}
    created = await create_prepared(api_client, replica, "adopt", "adopted")
    source = created["sourceStock"]
    assert (source["grade"], source["pool"]) == ("prepared", "adopt")
    assert source["uid"] in before
    assert (created["memory"], created["gpu"]) == ("1Gi", 1)

    unit = await wait_unit(api_client, "adopted", is_ready)
    (pod,) = await unit_pods(api_client, "adopted")
    assert pod["metadata"]["uid"] == source["uid"]
    assert pod["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) == 0
    assert Label.POOL not in pod["metadata"]["labels"]
    assert Label.PREPARED_BY not in pod["metadata"]["labels"]
    owner = pod["metadata"]["ownerReferences"][0]
    replica_set = await get(api_client, ReplicaSet, owner["name"])
    deployment, service = await get(api_client, Deployment, "adopted"), await get(api_client, Service, "adopted")
    owners = {each["kind"]: each["uid"] for each in replica_set["metadata"]["ownerReferences"]}
    assert owners == {"Deployment": deployment["metadata"]["uid"], "GPUUnit": unit["metadata"]["uid"]}
    assert replica_set["metadata"]["name"].startswith("adopted-")
    operation_uid = unit["metadata"]["annotations"][Annotation.OPERATION_UID]
    assert service["spec"]["selector"] == {Label.UNIT: "adopted", Label.OPERATION_UID: operation_uid}
    note = f"created from pod {source['name']} of pool adopt (grade prepared)"
    await until(partial(_has_event, api_client, "CreatedFromStock", note), "the Event names the pod")

    await wait_full(api_client, "adopt")
    after = {pod["metadata"]["uid"] for pod in await pool_pods(api_client, "adopt")}
    assert len(after) == 2
    assert source["uid"] not in after

    # Drift, stop, start, update and delete work as on any unit.
    drift = {"spec": {"replicas": 3}}
    await api_client.kube.patch(Deployment, "adopted", drift, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)
    await until(partial(_has_replicas, api_client, "adopted", 1), "the drift is corrected")
    assert (await api_client.request(replica, "POST", "/api/v1/gpu-units/adopted/stop")).status == 200
    await wait_unit(api_client, "adopted", lambda found: found["status"].get("phase") == "Empty")
    assert not await unit_pods(api_client, "adopted")
    assert (await api_client.request(replica, "POST", "/api/v1/gpu-units/adopted/start")).status == 200
    await wait_unit(api_client, "adopted", is_ready)
    (pod,) = await unit_pods(api_client, "adopted")
    assert pod["metadata"]["uid"] != source["uid"]
    assert pod["spec"]["priorityClassName"] == "gpu-runtime-active"
    update = {"image": "model:2"}
    assert (await api_client.request(replica, "PUT", "/api/v1/gpu-units/adopted", update)).status == 200
    await wait_unit(api_client, "adopted", is_ready)
    assert [each["spec"]["containers"][0]["image"] for each in await unit_pods(api_client, "adopted")] == ["model:2"]
    assert (await api_client.delete_unit(replica, "adopted")).status == 204
    for kind in (Deployment, Service):
        await wait_gone(api_client, kind, "adopted")
    await until(partial(_has_no_pods, api_client, "adopted"), "the pod is deleted")
    await delete_pool(api_client, "adopt")


async def _has_event(client: ApiCaller, reason: str, note: str) -> bool:
    """Whether the Event exists. The controller manager writes Events once per second."""
    events = await client.list_objects(Event, UNIT_NAMESPACE)
    return note in [each.get("message", each.get("note")) for each in events if each["reason"] == reason]


async def _has_replicas(client: ApiCaller, name: str, count: int) -> bool:
    return bool((await get(client, Deployment, name))["spec"]["replicas"] == count)


async def _has_no_pods(client: ApiCaller, name: str) -> bool:
    return not await unit_pods(client, name)


async def test_two_creates_race_for_the_last_prepared_pod(platform: LivePlatform, api_client: ApiCaller) -> None:
    """One create gets the pod. The other one gets the stock unit, or 409 if there is none."""
    await create_pool(api_client, "last")
    outcomes: Counter[tuple[str, ...]] = Counter()
    for number in range(RACES):
        await wait_full(api_client, "last")
        has_stock = number % 2 == 0
        if has_stock:
            await api_client.seed_stock(platform.shared_replicas[0], "last", 1, f"seed-last-{number}")
            await asyncio.gather(
                *(api_client.wait_stock_visible(each, {"last": 1}) for each in platform.shared_replicas)
            )
        await asyncio.gather(
            *(wait_pod_visible(api_client, replica, "last") for replica in platform.shared_replicas[:2])
        )
        names = [f"last-{number}-{index}" for index in range(2)]
        responses = await asyncio.gather(
            *(
                create(api_client, platform.shared_replicas[index], "last", name, stock=None)
                for index, name in enumerate(names)
            )
        )
        grades = sorted(_grade(response) for response in responses)
        outcomes[tuple(grades)] += 1
        # The pool replaces the pod at once, so a slow second create can get the next pod.
        expected = {("prepared", "reserved" if has_stock else "no_stock"), ("prepared", "prepared")}
        assert tuple(sorted(grades)) in {tuple(sorted(each)) for each in expected}, responses
        uids = [each.body["data"]["sourceStock"]["uid"] for each in responses if each.status == 201]
        assert len(set(uids)) == len(uids), "two units were created from the same stock"
        for name, response in zip(names, responses, strict=True):
            if response.status == 201:
                await wait_unit(api_client, name, is_ready)
                (pod,) = await unit_pods(api_client, name)
                if _grade(response) == "prepared":
                    assert pod["metadata"]["uid"] == response.body["data"]["sourceStock"]["uid"]
                assert (await api_client.delete_unit(platform.shared_replicas[0], name)).status == 204
        await clear_stock(api_client, "last")
    print(f"outcomes of {RACES} races: {dict(outcomes)}")
    assert outcomes[("prepared", "prepared")] < RACES, "no race took place"
    await delete_pool(api_client, "last")


def _grade(response: ApiResponse) -> str:
    return str(response.body["data"]["sourceStock"]["grade"]) if response.status == 201 else response.code


async def wait_pod_visible(client: ApiCaller, replica: Any, flavor: str) -> None:
    """Wait until the cache of the replica shows a prepared pod: a create with a wrong image then names the image."""

    async def is_visible() -> bool:
        text = (
            await client.request(replica, "GET", f"/api/v1/operator/stockpools/{flavor}?namespace={UNIT_NAMESPACE}")
        ).body
        return bool(text["data"]["prepared"] >= 1)

    await until(is_visible, "the prepared pod is visible")


async def clear_stock(client: ApiCaller, flavor: str) -> None:
    for unit in (await client.snapshot()).stock_of(flavor):
        await client.kube.delete(UNIT, unit["metadata"]["name"], namespace="runtime-stock")


DIFFERENT: dict[str, tuple[Object, str]] = {
    "image": ({"image": "model:2"}, "image differs"),
    "arguments": ({"template": TEMPLATE | {"args": ["--fast"]}}, "template differs"),
    "probes": ({"probes": {"readiness": {"disabled": True}}}, "template differs"),
    "function": ({"serverless": {"enabled": True, "requestID": "prepared-f"}}, "function"),
}


async def test_answer_says_why_no_prepared_pod_was_used(platform: LivePlatform, api_client: ApiCaller) -> None:
    replica = platform.shared_replicas[0]
    await create_pool(api_client, "why")
    await wait_pod_visible(api_client, replica, "why")
    await api_client.seed_and_wait({"why": len(DIFFERENT)})
    for name, (fields, reason) in DIFFERENT.items():
        response = await create(api_client, replica, "why", f"why-{name}", **fields)
        assert response.status == 201, response
        source = response.body["data"]["sourceStock"]
        assert (source["grade"], source["missed"]) == ("reserved", reason)
        unit = await get(api_client, UNIT, f"why-{name}")
        assert unit["metadata"]["annotations"][Annotation.SOURCE_STOCK_MISSED] == reason
        assert (await api_client.delete_unit(replica, f"why-{name}")).status == 204
    refused = await create(api_client, replica, "why", "why-none", image="model:3", stock={"grades": ["prepared"]})
    assert (refused.status, refused.code) == (409, "no_stock")
    assert "prepared: image differs" in refused.body["error"]["message"]
    await delete_pool(api_client, "why")


async def test_pods_of_an_earlier_template_of_the_pool_are_not_taken(
    platform: LivePlatform, api_client: ApiCaller
) -> None:
    replica = platform.shared_replicas[0]
    await create_pool(api_client, "changed", replicas=2)
    await wait_pod_visible(api_client, replica, "changed")
    old = {pod["metadata"]["uid"] for pod in await pool_pods(api_client, "changed")}
    newer = TEMPLATE | {"args": ["--new"]}
    patch = {"spec": {"template": newer}}
    await api_client.kube.patch(POOL, "changed", patch, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)
    created = await create_prepared(api_client, replica, "changed", "changed", template=newer)
    assert created["sourceStock"]["uid"] not in old
    await wait_unit(api_client, "changed", is_ready)
    (pod,) = await unit_pods(api_client, "changed")
    assert pod["spec"]["containers"][0]["args"] == ["--new"]
    assert (await api_client.delete_unit(replica, "changed")).status == 204
    await delete_pool(api_client, "changed")


async def test_forged_unit_takes_no_pod(platform: LivePlatform, api_client: ApiCaller) -> None:
    """A user who can write GPUUnits copies the annotations of a handoff, and names a pod of the pool or of a worker."""
    replica = platform.shared_replicas[0]
    await create_pool(api_client, "forged", replicas=2)
    await create_prepared(api_client, replica, "forged", "victim")
    victim = await wait_unit(api_client, "victim", is_ready)
    (taken,) = await unit_pods(api_client, "victim")
    free = next(
        each for each in await pool_pods(api_client, "forged") if each["metadata"]["uid"] != taken["metadata"]["uid"]
    )
    for index, pod in enumerate((taken, free)):
        source = {
            Annotation.SOURCE_STOCK_NAME: pod["metadata"]["name"],
            Annotation.SOURCE_STOCK_NAMESPACE: UNIT_NAMESPACE,
            Annotation.SOURCE_STOCK_UID: pod["metadata"]["uid"],
            Annotation.SOURCE_STOCK_POOL: "forged",
        }
        annotations = victim["metadata"]["annotations"] | source
        metadata = ObjectMeta(name=f"thief-{index}", namespace=UNIT_NAMESPACE, annotations=annotations)
        await api_client.kube.create(UNIT(metadata=metadata, spec=victim["spec"]))
        await wait_unit(api_client, f"thief-{index}", is_ready)
        (own,) = await unit_pods(api_client, f"thief-{index}")
        assert own["metadata"]["uid"] != pod["metadata"]["uid"]
        now = await get(api_client, Pod, pod["metadata"]["name"])
        assert now["metadata"]["labels"] == pod["metadata"]["labels"]
        assert "deletionTimestamp" not in now["metadata"]
    for name in ("victim", "thief-0", "thief-1"):
        await api_client.kube.delete(UNIT, name, namespace=UNIT_NAMESPACE)
    await delete_pool(api_client, "forged")


async def test_claimed_pod_without_a_unit_is_deleted(platform: LivePlatform, api_client: ApiCaller) -> None:
    """A claim whose operation does not exist, and a unit that is deleted before its pod is adopted."""
    replica = platform.shared_replicas[0]
    await create_pool(api_client, "sweep")
    (pod,) = await pool_pods(api_client, "sweep")
    claim = {"annotations": {Annotation.CLAIMED_BY: "never-recorded", Annotation.OPERATION_UID: "none"}}
    name = pod["metadata"]["name"]
    await api_client.kube.patch(Pod, name, {"metadata": claim}, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)
    await wait_gone(api_client, Pod, name)
    platform.manager.stop()
    try:
        created = await create_prepared(api_client, replica, "sweep", "swept")
        assert (await api_client.delete_unit(replica, "swept")).status == 204
        await wait_gone(api_client, Pod, created["sourceStock"]["name"])
    finally:
        platform.manager.start().wait_ready().wait_leading()
    await wait_full(api_client, "sweep")
    await delete_pool(api_client, "sweep")


@pytest.mark.parametrize("step", ["claimed", "deleted pod"])
async def test_unit_gets_a_pod_although_the_controller_manager_was_down(
    platform: LivePlatform, api_client: ApiCaller, step: str
) -> None:
    name = f"down-{step.replace(' ', '-')}"
    await create_pool(api_client, name)
    platform.manager.stop()
    try:
        created = await create_prepared(api_client, platform.shared_replicas[0], name, name)
        source = created["sourceStock"]
        if step == "deleted pod":
            await api_client.kube.delete(Pod, source["name"], namespace=UNIT_NAMESPACE, grace_period=0)
    finally:
        platform.manager.start().wait_ready().wait_leading()
    await wait_unit(api_client, name, is_ready)
    (pod,) = await unit_pods(api_client, name)
    assert (pod["metadata"]["uid"] == source["uid"]) is (step == "claimed")
    operation = next(
        each
        for each in await api_client.list_objects(OPERATION, "runtime-system")
        if each["spec"]["operationID"] == f"make-{name}"
    )
    assert operation["status"]["state"] == "Succeeded"
    assert (await api_client.delete_unit(platform.shared_replicas[0], name)).status == 204
    await delete_pool(api_client, name)
