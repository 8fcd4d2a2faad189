"""Stock handoffs and units without stock on a full node, and prepared pods on a lost node. The nodes are simulated."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from signal import Signals

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.core_v1 import Node, Pod
from lightkube.types import PatchType

from gpu_runtime.contract.crd.well_known import ACTIVE_PRIORITY_CLASS, HANDOFF_PRIORITY_CLASS, Annotation, Label
from localcluster import simulated_nodes
from tests.integration.controller_manager.conftest import POOL, UNIT, Object, ready_condition
from tests.integration.runtime_api.live_platform import (
    STOCK_NAMESPACE,
    UNIT_NAMESPACE,
    ApiCaller,
    LivePlatform,
    operation_state,
    until,
)
from tests.integration.runtime_api.stock.pod_log import PodLog
from tests.integration.runtime_api.stock.test_live_prepared_pods import (
    TEMPLATE,
    create_pool,
    create_prepared,
    get,
    is_ready,
    pool_pods,
    unit_pods,
    wait_full,
    wait_unit,
)

NODE_GPUS = 40
FLAVOR_PREFIX = "full-node-"
"""The flavors of this file begin with it. The fixture deletes all objects of these flavors."""
ADOPTED_COUNT = 5
HANDOFF_COUNT = 20
REFILL_HANDOFF_COUNT = 5
GIVE_WAY_SECONDS = 10
"""How long the pod of a unit waits until a pool deletes a pod for it (docs/stock.md)."""
PREEMPTION_DELAY_SECONDS = 10
POOL_RECONCILES = 'controller_runtime_reconcile_total{controller="stock-pool"'
KEEP_TERMINATING = "example.com/keep-terminating"
"""A finalizer. While a deleted pod has it, the pod still exists and uses its GPUs, like a pod that takes long to end,
or the pod of a lost node."""


@pytest.fixture
async def only_node(platform: LivePlatform, api_client: ApiCaller) -> AsyncIterator[str]:
    """A node with 40 GPUs. The scheduler uses no other node during the test."""
    others = await node_names(api_client)
    for each in others:
        await set_unschedulable(api_client, each, unschedulable=True)
    yield add_node(platform)
    await remove_finalizers(api_client)
    await delete_objects(api_client)
    await until(partial(has_no_pods, api_client), "the pods of the test are deleted")
    for each in await node_names(api_client):
        if each in others:
            await set_unschedulable(api_client, each, unschedulable=False)
        else:
            await api_client.kube.delete(Node, each)


async def node_names(client: ApiCaller) -> list[str]:
    return [str(each.to_dict()["metadata"]["name"]) async for each in client.kube.list(Node)]


async def set_unschedulable(client: ApiCaller, node: str, *, unschedulable: bool) -> None:
    patch = {"spec": {"unschedulable": unschedulable}}
    await client.kube.patch(Node, node, patch, patch_type=PatchType.MERGE)


def add_node(platform: LivePlatform) -> str:
    name = f"full-{uuid.uuid4().hex[:6]}"
    with platform.control_plane.client() as kube:
        simulated_nodes.add_node(kube, name, NODE_GPUS)
    return name


async def delete_objects(client: ApiCaller) -> None:
    for kind, namespace in ((POOL, UNIT_NAMESPACE), (UNIT, UNIT_NAMESPACE), (UNIT, STOCK_NAMESPACE)):
        for each in await client.list_objects(kind, namespace):
            if each["spec"]["specName"].startswith(FLAVOR_PREFIX):
                await client.kube.delete(kind, each["metadata"]["name"], namespace=namespace)


async def pods_of_test(client: ApiCaller) -> list[Object]:
    pods = [*await client.list_objects(Pod, UNIT_NAMESPACE), *await client.list_objects(Pod, STOCK_NAMESPACE)]
    return [each for each in pods if each["metadata"]["labels"].get(Label.SPEC_NAME, "").startswith(FLAVOR_PREFIX)]


async def patch_finalizers(client: ApiCaller, pod: str, finalizers: list[str]) -> None:
    patch = {"metadata": {"finalizers": finalizers}}
    await client.kube.patch(Pod, pod, patch, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)


async def remove_finalizers(client: ApiCaller) -> None:
    kept = [each["metadata"] for each in await pods_of_test(client) if each["metadata"].get("finalizers")]
    await asyncio.gather(*(patch_finalizers(client, each["name"], []) for each in kept))


async def has_no_pods(client: ApiCaller) -> bool:
    return not await pods_of_test(client)


async def create_cold(client: ApiCaller, flavor: str, name: str, gpu: int = 1) -> None:
    """Create a unit with kubectl, so that it uses no stock."""
    spec = {"specName": flavor, "image": "model:2", "memory": "1Gi", "gpu": gpu}
    await client.kube.create(UNIT(metadata=ObjectMeta(name=name, namespace=UNIT_NAMESPACE), spec=spec))


async def delete_unit(client: ApiCaller, name: str) -> None:
    await client.kube.delete(UNIT, name, namespace=UNIT_NAMESPACE)


def waits_for_gpus(unit: Object) -> bool:
    """Whether the unit reports that no node has enough GPUs, and that the scheduler has tried to preempt."""
    condition = ready_condition(unit)
    texts = ("Insufficient nvidia.com/gpu", "preemption:")
    return condition.get("reason") == "PodStartupFailed" and all(each in condition["message"] for each in texts)


def waits_for_node(unit: Object) -> bool:
    condition = ready_condition(unit)
    return (
        condition.get("reason") == "PodStartupFailed"
        and "the scheduler found no node for the pod" in condition["message"]
    )


def uids(pods: list[Object]) -> set[str]:
    return {each["metadata"]["uid"] for each in pods}


def created_at(pod: Object) -> datetime:
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"])


@contextmanager
def stopped_manager(platform: LivePlatform) -> Iterator[None]:
    platform.manager.stop(Signals.SIGTERM)
    try:
        yield
    finally:
        platform.manager.start().wait_ready().wait_leading()


async def test_cold_unit_never_ends_adopted_pods(platform: LivePlatform, api_client: ApiCaller, only_node: str) -> None:
    """The cold unit waits until a unit is deleted. Neither the scheduler nor the pool ends an adopted pod for it."""
    flavor = f"{FLAVOR_PREFIX}adopted"
    others = [f"{flavor}-other-{number}" for number in range(5)]
    for name in others:
        await create_cold(api_client, flavor, name, gpu=(NODE_GPUS - ADOPTED_COUNT) // len(others))
    await create_pool(api_client, flavor, replicas=ADOPTED_COUNT)
    adopted = [f"{flavor}-{number}" for number in range(ADOPTED_COUNT)]
    async with PodLog.watching(api_client) as log:
        created = await asyncio.gather(
            *(
                create_prepared(api_client, platform.shared_replicas[number % 2], flavor, name)
                for number, name in enumerate(adopted)
            )
        )
        adopted_uids = {each["sourceStock"]["uid"] for each in created}
        assert len(adopted_uids) == ADOPTED_COUNT
        for name in (*adopted, *others):
            await wait_unit(api_client, name, is_ready)
        (released,) = await unit_pods(api_client, others[0])

        cold = f"{flavor}-cold"
        await create_cold(api_client, flavor, cold)
        await wait_unit(api_client, cold, waits_for_gpus)
        # After 10 s, the pool gives way. It has only pods without a node, and must not end the adopted ones instead.
        await until(partial(has_replicas, api_client, flavor, 0), "the pool gives way", GIVE_WAY_SECONDS + 20)
        await log.catch_up()
        assert log.ended() == {}
        assert waits_for_gpus(await get(api_client, UNIT, cold))

        await delete_unit(api_client, others[0])
        await wait_unit(api_client, cold, is_ready)
        await log.catch_up()
        assert log.ended().keys() == {released["metadata"]["uid"]}
        running = [await unit_pods(api_client, name) for name in adopted]
        assert [len(pods) for pods in running] == [1] * ADOPTED_COUNT
        assert {uid for pods in running for uid in uids(pods)} == adopted_uids


async def has_replicas(client: ApiCaller, pool: str, count: int) -> bool:
    return bool((await get(client, Deployment, f"pool-{pool}"))["spec"]["replicas"] == count)


async def test_concurrent_handoffs_end_only_the_consumed_stock_pods(
    platform: LivePlatform, api_client: ApiCaller, only_node: str
) -> None:
    flavor = f"{FLAVOR_PREFIX}handoff"
    await api_client.seed_and_wait({flavor: NODE_GPUS})
    pods = {each["metadata"]["labels"][Label.UNIT_UID]: each for each in await pods_of_test(api_client)}
    assert len(pods) == NODE_GPUS
    names = [f"{flavor}-{number}" for number in range(HANDOFF_COUNT)]
    async with PodLog.watching(api_client) as log:
        responses = await asyncio.gather(
            *(
                api_client.create_unit(platform.shared_replicas[number % 2], flavor, name)
                for number, name in enumerate(names)
            )
        )
        assert {each.status for each in responses} == {201}, responses
        consumed = {each.body["data"]["sourceStock"]["uid"] for each in responses}
        assert len(consumed) == HANDOFF_COUNT
        for name in names:
            await wait_unit(api_client, name, is_ready)
        await until(partial(has_stock, api_client, flavor, NODE_GPUS - HANDOFF_COUNT), "consumed stock is deleted")
        await log.catch_up()
    assert log.ended().keys() == {pods[each]["metadata"]["uid"] for each in consumed}
    unconsumed = {each["metadata"]["uid"] for each in (await api_client.snapshot()).stock_of(flavor)}
    assert unconsumed == pods.keys() - consumed
    running = [each for each in await pods_of_test(api_client) if is_stock(each)]
    assert uids(running) == {pods[each]["metadata"]["uid"] for each in unconsumed}
    in_stock = {uid for uid, each in log.pods.items() if each.labels.get(Label.UNIT_UID) in pods}
    print(f"additional pods of consumed stock units: {len(in_stock) - NODE_GPUS}")


async def has_stock(client: ApiCaller, flavor: str, count: int) -> bool:
    return len((await client.snapshot()).stock_of(flavor)) == count


async def test_refill_of_a_pool_does_not_take_the_gpus_of_a_handoff(
    platform: LivePlatform, api_client: ApiCaller, only_node: str
) -> None:
    """The pool waits for a GPU, because a unit has taken its pod. Then handoffs release GPUs for their own units."""
    flavor, pool = f"{FLAVOR_PREFIX}refill", f"{FLAVOR_PREFIX}refill-pool"
    await create_pool(api_client, pool)
    await api_client.seed_and_wait({flavor: NODE_GPUS - 1})
    pods = {
        each["metadata"]["labels"][Label.UNIT_UID]: each for each in await pods_of_test(api_client) if is_stock(each)
    }
    await create_prepared(api_client, platform.shared_replicas[0], pool, f"{pool}-unit")
    await wait_unit(api_client, f"{pool}-unit", is_ready)
    await until(partial(has_waiting_pod, api_client, pool), "the pool waits for a GPU")
    names = [f"{flavor}-{number}" for number in range(REFILL_HANDOFF_COUNT)]
    async with PodLog.watching(api_client) as log:
        consumed = set()
        for number, name in enumerate(names):
            response = await api_client.create_unit(platform.shared_replicas[number % 2], flavor, name)
            assert response.status == 201, response
            consumed.add(response.body["data"]["sourceStock"]["uid"])
            await wait_unit(api_client, name, is_ready)
        await until(
            partial(has_stock, api_client, flavor, NODE_GPUS - 1 - REFILL_HANDOFF_COUNT), "consumed stock is deleted"
        )
        await log.catch_up()
    expected = {pods[each]["metadata"]["uid"] for each in consumed}
    assert {uid: each.labels for uid, each in log.ended().items() if uid not in expected} == {}
    assert expected <= log.ended().keys()
    for name in names:
        (pod,) = await unit_pods(api_client, name)
        assert pod["spec"]["priorityClassName"] == HANDOFF_PRIORITY_CLASS, "the unit has not lost its GPU"


def is_stock(pod: Object) -> bool:
    return bool(pod["metadata"]["namespace"] == STOCK_NAMESPACE)


async def has_waiting_pod(client: ApiCaller, pool: str) -> bool:
    return any(not each["spec"].get("nodeName") for each in await pool_pods(client, pool))


async def test_pool_deletes_one_pod_for_a_cold_unit_and_is_full_again_afterwards(
    platform: LivePlatform, api_client: ApiCaller, only_node: str
) -> None:
    flavor = f"{FLAVOR_PREFIX}pool"
    await create_pool(api_client, flavor, replicas=NODE_GPUS)
    pods = await pool_pods(api_client, flavor)
    prepared = uids(pods)
    await asyncio.gather(*(patch_finalizers(api_client, each["metadata"]["name"], [KEEP_TERMINATING]) for each in pods))
    cold = f"{flavor}-cold"
    async with PodLog.watching(api_client) as log:
        await create_cold(api_client, flavor, cold)
        await wait_unit(api_client, cold, waits_for_gpus)
        await until(partial(has_ended_pods, log), "the pool deletes a pod")
        # The deleted pod still uses its GPU. In this time, the pool neither starts nor deletes a further pod.
        for _ in range(3):
            await reconcile_pool(platform, api_client, flavor)
            assert await has_replicas(api_client, flavor, NODE_GPUS - 1)
        await remove_finalizers(api_client)
        await wait_unit(api_client, cold, is_ready)
        await log.catch_up()
        (pod,) = await unit_pods(api_client, cold)
        ((deleted_uid, deleted),) = log.ended().items()
        assert deleted_uid in prepared
        assert deleted.ended
        waited = (deleted.ended.time - created_at(pod)).total_seconds()
        print(f"the pool deleted a pod {waited:.1f} s after the creation of the unit's pod")
        assert GIVE_WAY_SECONDS <= waited < GIVE_WAY_SECONDS + 20
        bound = log.pods[pod["metadata"]["uid"]].bound
        assert bound
        early = [each for uid, each in log.pods.items() if uid not in prepared and each.created < bound]
        assert [each.pod["metadata"]["uid"] for each in early if flavor in each.labels.values()] == [
            pod["metadata"]["uid"]
        ]

        await delete_unit(api_client, cold)
        await wait_full(api_client, flavor)
        await log.catch_up()
        assert log.ended().keys() == {deleted_uid, pod["metadata"]["uid"]}
    remaining = uids(await pool_pods(api_client, flavor))
    assert len(remaining) == NODE_GPUS
    assert prepared - remaining == {deleted_uid}


async def has_ended_pods(log: PodLog) -> bool:
    return bool(log.ended())


async def reconcile_pool(platform: LivePlatform, client: ApiCaller, pool: str) -> None:
    """Trigger a reconcile of the pool with an unrelated annotation, and wait for the reconcile."""
    before = platform.manager.metric(POOL_RECONCILES)
    patch = {"metadata": {"annotations": {"example.com/touched": uuid.uuid4().hex}}}
    await client.kube.patch(POOL, pool, patch, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)

    async def is_reconciled() -> bool:
        return platform.manager.metric(POOL_RECONCILES) > before

    await until(is_reconciled, f"pool {pool} is reconciled")


@pytest.mark.parametrize("step", ["claimed", "adopted"])
async def test_unit_gets_another_pod_when_the_node_of_its_prepared_pod_is_lost(
    platform: LivePlatform, api_client: ApiCaller, only_node: str, step: str
) -> None:
    """The object of the lost pod remains until the Node is deleted. The unit does not wait for that."""
    flavor = name = f"{FLAVOR_PREFIX}lost-{step}"
    await create_pool(api_client, flavor, replicas=2)
    replica = platform.shared_replicas[0]
    if step == "claimed":
        with stopped_manager(platform):
            source = (await create_prepared(api_client, replica, flavor, name))["sourceStock"]
            await lose_node(api_client, only_node, source["name"])
    else:
        source = (await create_prepared(api_client, replica, flavor, name))["sourceStock"]
        await wait_unit(api_client, name, is_ready)
        await lose_node(api_client, only_node, source["name"])
    await wait_unit(api_client, name, waits_for_node)
    if step == "adopted":  # then the unit gets a pod that may preempt
        await until(partial(has_preempting_pod, api_client, name), "the pod may preempt", PREEMPTION_DELAY_SECONDS + 20)
    spare = add_node(platform)
    await wait_unit(api_client, name, is_ready)
    (pod,) = [each for each in await unit_pods(api_client, name) if each["metadata"]["uid"] != source["uid"]]
    assert pod["spec"]["nodeName"] == spare
    assert "deletionTimestamp" in (await get(api_client, Pod, source["name"]))["metadata"]

    await delete_lost_node(api_client, only_node)
    await wait_full(api_client, flavor)
    await until(partial(has_no_problems, api_client), "every pod has an owner, and none waits for a unit")
    assert uids(await unit_pods(api_client, name)) == {pod["metadata"]["uid"]}
    assert {each["spec"]["nodeName"] for each in await pods_of_test(api_client)} == {spare}
    assert len(await pods_of_test(api_client)) == 3
    operation = (await api_client.snapshot()).operations[f"make-{name}"]
    assert operation_state(operation) == "Succeeded"


async def has_preempting_pod(client: ApiCaller, unit: str) -> bool:
    pods = await unit_pods(client, unit)
    return any(each["spec"]["priorityClassName"] == ACTIVE_PRIORITY_CLASS for each in pods)


async def lose_node(client: ApiCaller, node: str, pod: str) -> None:
    """Report the node as unreachable, as the node controller does, and wait until Kubernetes has deleted its pod."""
    await patch_finalizers(client, pod, [KEEP_TERMINATING])
    unmanaged = {"metadata": {"annotations": {simulated_nodes.KWOK_NODE_ANNOTATION: None}}}
    await client.kube.patch(Node, node, unmanaged, patch_type=PatchType.MERGE)
    condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "no heartbeat"}
    status = {"status": {"conditions": [condition]}}
    await client.kube.patch(Node.Status, node, status, patch_type=PatchType.STRATEGIC)

    async def is_deleted() -> bool:
        return "deletionTimestamp" in (await get(client, Pod, pod))["metadata"]

    await until(is_deleted, f"the pod {pod} of the lost node is deleted")


async def delete_lost_node(client: ApiCaller, node: str) -> None:
    """Delete the Node. Kubernetes then removes its pods after a minute, so remove them here."""
    await client.kube.delete(Node, node)
    await remove_finalizers(client)


async def has_no_problems(client: ApiCaller) -> bool:
    """Whether a ReplicaSet owns each pod, and no pod is claimed without being the pod of a unit."""
    replica_sets = uids(await client.list_objects(ReplicaSet, UNIT_NAMESPACE))
    pods = await pods_of_test(client)
    owners = [each["metadata"].get("ownerReferences", [{}])[0].get("uid") for each in pods]
    return all(each in replica_sets for each in owners) and not any(map(is_still_claimed, pods))


def is_still_claimed(pod: Object) -> bool:
    metadata = pod["metadata"]
    is_claimed = Annotation.CLAIMED_BY in metadata.get("annotations", {})
    return is_claimed and (Label.POOL in metadata["labels"] or Label.UNIT_UID not in metadata["labels"])


@pytest.mark.parametrize("full", [False, True], ids=["free-gpus", "full-node"])
async def test_template_of_the_pool_changes_between_claim_and_adoption(
    platform: LivePlatform, api_client: ApiCaller, only_node: str, full: bool
) -> None:
    """The unit gets one pod with its own template, and the pool only has pods with the new template.

    If GPUs are free, the pool may delete the claimed pod first. On a full node, the pool must wait for GPUs, so the
    unit adopts the pod.
    """
    flavor = name = f"{FLAVOR_PREFIX}changed-{'full' if full else 'free'}"
    other = f"{flavor}-other"
    await create_cold(api_client, flavor, other, gpu=NODE_GPUS - 2 if full else 1)
    await wait_unit(api_client, other, is_ready)
    await create_pool(api_client, flavor, replicas=2)
    newer: Object = TEMPLATE | {"args": ["--new"]}
    async with PodLog.watching(api_client) as log:
        with stopped_manager(platform):
            source = (await create_prepared(api_client, platform.shared_replicas[0], flavor, name))["sourceStock"]
            patch = {"spec": {"template": newer}}
            await api_client.kube.patch(POOL, flavor, patch, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)
            unclaimed = [each for each in await pool_pods(api_client, flavor) if not is_still_claimed(each)]
            assert len(unclaimed) == 1
            await patch_finalizers(api_client, unclaimed[0]["metadata"]["name"], [KEEP_TERMINATING] if full else [])
        await wait_unit(api_client, name, is_ready)
        await remove_finalizers(api_client)
        stop = {"spec": {"running": False}}
        await api_client.kube.patch(UNIT, other, stop, namespace=UNIT_NAMESPACE, patch_type=PatchType.MERGE)
        await wait_full(api_client, flavor)
        await until(partial(has_no_problems, api_client), "every pod has an owner, and none waits for a unit")
        await until(partial(has_pod_count, api_client, 3), "the unit has one pod, and the pool has two")
        await log.catch_up()
    (pod,) = await unit_pods(api_client, name)
    assert arguments(pod) == []
    assert [arguments(each) for each in await pool_pods(api_client, flavor)] == [["--new"]] * 2
    is_adopted = pod["metadata"]["uid"] == source["uid"]
    print(f"the unit {'has adopted the claimed pod' if is_adopted else 'has a new pod'}")
    assert is_adopted or (not full and source["uid"] in log.ended())


def arguments(pod: Object) -> list[str]:
    return list(pod["spec"]["containers"][0].get("args", []))


async def has_pod_count(client: ApiCaller, count: int) -> bool:
    return len(await pods_of_test(client)) == count
