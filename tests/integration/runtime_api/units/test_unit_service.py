"""What callers do with units holds on the real API server, for several replicas, whoever else writes."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from lightkube import ApiError

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import Operation, OperationTarget, OperationType
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, Unavailable
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.retry import NO_RETRY
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UpdateUnit
from localcluster.control_plane import ControlPlane, free_port
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.units.conftest import StartUnitReplica, UnitCluster, UnitReplica

HTTP = {"name": "http", "port": 8080, "protocol": "TCP"}
WEB: dict[str, Any] = {
    "template": {"command": ["python"], "args": ["-V"], "envs": [{"name": "A", "value": "1"}], "ports": [HTTP]},
    "access": {"primaryPort": "http", "scheme": "https"},
    "memory": "1Gi",
    "gpu": 1,
}


class NoWrites:
    """A fence that no write passes."""

    def remaining(self) -> float:
        return 0


def update(**body: Any) -> UpdateUnit:
    return msgspec.convert(body, UpdateUnit)


def version(found: dict[str, Any]) -> str:
    return str(found["metadata"]["resourceVersion"])


async def wait_cached(replica: UnitReplica, namespace: str, *names: str) -> None:
    store = replica.caches.units.store
    await eventually(lambda: all(store.get(ObjectKey(namespace, name)) for name in names), f"{names} are known")


async def create_cached_unit(idle: UnitReplica, cluster: UnitCluster, name: str) -> None:
    """A new unit that the cache knows; it will not hear of what becomes of it."""
    cluster.create(name)
    idle.caches.units.store.put(await idle.client.get(GPU_UNITS, ObjectKey(cluster.namespace, name)))


async def test_unit_missing_in_the_cache_is_read_live(stale_replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    assert (await stale_replica.units.get("", "web")).spec.image == "python:3.12"


async def test_cached_unit_is_read_from_the_cache(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    await wait_cached(replica, cluster.namespace, "web")
    found = await replica.units.get(cluster.namespace, "web")
    assert found is replica.caches.units.store.get(found.metadata.key)


@pytest.mark.parametrize("name", ["none-such", "Not_A_Name", ".", "..", "a/b", "a" * 64, ""])
async def test_a_unit_that_is_not_there_is_not_found(stale_replica: UnitReplica, name: str) -> None:
    with pytest.raises(NotFound, match="there is no unit"):
        await stale_replica.units.get("", name)


async def test_other_namespaces_are_refused_everywhere(stale_replica: UnitReplica, namespaces: Any) -> None:
    for namespace in ("default", namespaces.stock):
        for refused in (
            stale_replica.units.get,
            stale_replica.units.stop,
            stale_replica.units.start,
            stale_replica.units.delete,
        ):
            with pytest.raises(Invalid, match=f"namespace: '{namespace}' holds no units here"):
                await refused(namespace, "web")
        with pytest.raises(Invalid, match="holds no units here"):
            await stale_replica.units.update(namespace, "web", update())
        with pytest.raises(Invalid, match="holds no units here"):
            stale_replica.units.list(ListUnits(namespace=namespace))


async def test_update_preserves_unnamed_fields(replica: UnitReplica, cluster: UnitCluster) -> None:
    before = cluster.create("web", {"example.com/note": "mine"}, **WEB)
    cluster.patch_status("web", phase="Ready", serviceName="web")
    written = await replica.units.update("", "web", update(image="python:3.13"))
    after = cluster.get("web")
    assert after["spec"] == before["spec"] | {"image": "python:3.13"}
    assert after["status"] == {"phase": "Ready", "serviceName": "web"} | after["status"]
    assert after["metadata"]["annotations"] == {"example.com/note": "mine"}
    assert (written.spec.image, written.metadata.generation) == ("python:3.13", 2)


async def test_a_replica_reads_what_it_wrote(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    await wait_cached(replica, cluster.namespace, "web")
    for number in range(20):
        await replica.units.update("", "web", update(image=f"python:{number}"))
        assert (await replica.units.get("", "web")).spec.image == f"python:{number}"


async def test_an_update_that_changes_nothing_writes_nothing(replica: UnitReplica, cluster: UnitCluster) -> None:
    units = replace(replica.units, client=replica.client.fenced(NoWrites()))
    before = cluster.create("web", **WEB)
    same = {name: before["spec"][name] for name in ("image", "template", "access", "memory", "gpu", "specName")}
    for body in ({}, same):
        found = await units.update("", "web", update(**body))
        assert found.metadata.resource_version == version(before)
    assert (await units.start("", "web")).metadata.resource_version == version(before)
    assert version(cluster.get("web")) == version(before)


async def test_update_replaces_named_parts_completely(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web", storageMounts=[{"name": "data", "mountPath": "/data"}], **WEB)
    await replica.units.update("", "web", update(template={"ports": [HTTP]}, access={}, storageMounts=[]))
    spec = cluster.get("web")["spec"]
    assert spec["template"] == {"ports": [HTTP]}
    assert spec["access"] == {"scheme": "http"}
    assert "storageMounts" not in spec


async def test_unit_becomes_a_function_and_its_request_id_is_immutable(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    cluster.create("web")
    await replica.units.update("", "web", update(serverless={"enabled": True, "requestID": "f", "maxWorkers": 3}))
    before = cluster.get("web")
    assert before["spec"]["serverless"]["maxWorkers"] == 3
    with pytest.raises(Invalid, match=r"serverless\.requestID: never changes from 'f'"):
        await replica.units.update("", "web", update(serverless={"enabled": True, "requestID": "g"}))
    assert version(cluster.get("web")) == version(before)
    await replica.units.update("", "web", update(serverless={"requestID": "f"}))
    after = cluster.get("web")["spec"]["serverless"]
    assert (after["enabled"], after["maxWorkers"], after["requestID"]) == (False, 1, "f")


async def test_a_refused_update_writes_nothing(replica: UnitReplica, cluster: UnitCluster) -> None:
    before = cluster.create("web", **WEB)
    with pytest.raises(Invalid) as refused:
        await replica.units.update("", "web", update(image="", gpu=2, template={}))
    assert [problem.path for problem in refused.value.errors] == ["gpu", "image", "access.primaryPort"]
    assert version(cluster.get("web")) == version(before)


async def test_concurrent_updates_of_different_fields_are_all_applied(
    start_replica: StartUnitReplica, cluster: UnitCluster
) -> None:
    ports = [{"name": f"p{number}", "port": 80 + number} for number in range(4)]
    cluster.create("web", template={"ports": ports})
    cluster.create_storage("data")
    one, other = await start_replica(), await start_replica()
    bodies = [
        body
        for n in range(4)
        for body in (
            {"image": f"python:{n}"},
            {"template": {"args": [str(n)], "ports": ports}},
            {"access": {"primaryPort": f"p{n}"}},
            {"storageMounts": [{"name": "data", "mountPath": f"/data-{n}"}]},
            {"serverless": {"requestID": "f", "idleTimeoutSeconds": n + 1}},
        )
    ]
    async with asyncio.TaskGroup() as tasks:
        for index, body in enumerate(bodies):
            tasks.create_task((one, other)[index % 2].units.update("", "web", update(**body)))
    found = cluster.get("web")
    assert found["metadata"]["generation"] == 1 + len(bodies), "every update was written, and once"
    spec = found["spec"]
    assert spec["image"] in {f"python:{n}" for n in range(4)}
    assert spec["template"]["args"][0] in "0123"
    assert spec["access"]["primaryPort"] in {f"p{n}" for n in range(4)}
    assert spec["storageMounts"][0]["mountPath"] in {f"/data-{n}" for n in range(4)}
    assert spec["serverless"]["idleTimeoutSeconds"] in {1, 2, 3, 4}


async def test_concurrent_replacements_of_one_part_do_not_mix(
    start_replica: StartUnitReplica, cluster: UnitCluster
) -> None:
    cluster.create("web", template={"ports": [HTTP]})
    one, other = await start_replica(), await start_replica()
    parts = [{field: [str(n)], "ports": [HTTP]} for n in range(10) for field in ("command", "args")]
    async with asyncio.TaskGroup() as tasks:
        writing = [
            tasks.create_task((one, other)[index % 2].units.update("", "web", update(template=part)))
            for index, part in enumerate(parts)
        ]
    assert [task.result().spec.template for task in writing] == [msgspec.convert(part, Template) for part in parts]


async def test_updates_succeed_during_status_writes(
    replica: UnitReplica, start_replica: StartUnitReplica, cluster: UnitCluster
) -> None:
    cluster.create("web")
    controller = (await start_replica()).client
    key, written = ObjectKey(cluster.namespace, "web"), 0

    async def report() -> None:
        nonlocal written
        while True:
            await controller.merge_patch(
                GPU_UNITS, key, {"status": {"observedGeneration": written + 1}}, subresource="status"
            )
            written += 1
            await asyncio.sleep(0.01)  # a hundred writes a second are far more than a controller makes

    async with asyncio.TaskGroup() as tasks:
        reporting = tasks.create_task(report())
        await eventually(lambda: written > 0, "the status is being written")
        for number in range(30):
            await replica.units.update("", "web", update(image=f"python:{number}"))
        reporting.cancel()
    found = cluster.get("web")
    assert (found["spec"]["image"], found["metadata"]["generation"]) == ("python:29", 31)
    assert found["status"]["observedGeneration"] >= written, "no status was lost"


async def test_stop_and_start_are_idempotent(replica: UnitReplica, cluster: UnitCluster) -> None:
    before = cluster.create("web", **WEB)
    for switch, running in ((replica.units.stop, False), (replica.units.start, True)):
        first = await switch("", "web")
        again = await switch(cluster.namespace, "web")
        assert first.spec.running is running
        assert again.metadata.resource_version == first.metadata.resource_version
        assert cluster.get("web")["spec"] == before["spec"] | {"running": running}
    assert cluster.get("web")["metadata"]["generation"] == 3


async def test_start_with_a_stale_cache_starts_the_unit(stale_replica: UnitReplica, cluster: UnitCluster) -> None:
    await create_cached_unit(stale_replica, cluster, "web")
    cluster.patch("web", {"spec": {"running": False}})
    await stale_replica.units.start("", "web")
    assert cluster.get("web")["spec"]["running"] is True


async def test_a_unit_with_a_bad_spec_can_be_stopped(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web", memory="not-a-quantity")
    assert (await replica.units.stop("", "web")).spec.running is False


async def test_deleted_unit_is_404_immediately(stale_replica: UnitReplica, cluster: UnitCluster) -> None:
    await create_cached_unit(stale_replica, cluster, "web")
    await stale_replica.units.delete("", "web")
    with pytest.raises(ApiError, match="not found"):
        cluster.get("web")
    for refused in (stale_replica.units.get, stale_replica.units.delete, stale_replica.units.stop):
        with pytest.raises(NotFound, match="there is no unit 'web'"):
            await refused("", "web")
    with pytest.raises(NotFound):
        await stale_replica.units.update("", "web", update(image="new"))
    assert stale_replica.finished_operations == []


async def test_unit_with_a_finalizer_is_shown_as_deleting(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    cluster.patch("web", {"metadata": {"finalizers": ["example.com/wait"]}})
    await replica.units.delete("", "web")
    await replica.units.delete("", "web")
    store, key = replica.caches.units.store, ObjectKey(cluster.namespace, "web")
    await eventually(
        lambda: (unit := store.get(key)) is not None and unit.metadata.deletion_timestamp is not None, "it is deleting"
    )
    with pytest.raises(Conflict, match="is being deleted"):
        await replica.units.stop("", "web")
    cluster.patch("web", {"metadata": {"finalizers": None}})
    await eventually(lambda: store.get(key) is None, "it is gone")


async def test_unfinished_create_is_finished_before_its_unit_is_deleted(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    await begin_create(replica, cluster.namespace)
    seen = []

    async def settle(operation_id: str) -> None:
        seen.append((operation_id, cluster.get("web")["metadata"]["name"]))

    cluster.create("web", {Annotation.OPERATION_ID: "unit-1"})
    await replace(replica.units, finish_operation=settle).delete("", "web")
    assert seen == [("unit-1", "web")], "it was still there"


async def test_delete_succeeds_if_finishing_the_create_removed_the_unit(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    await begin_create(replica, cluster.namespace)

    async def settle(_: str) -> None:
        cluster.delete("web")
        cluster.create("web", image="of-another-unit")

    cluster.create("web", {Annotation.OPERATION_ID: "unit-1"})
    await replace(replica.units, finish_operation=settle).delete("", "web")
    assert cluster.get("web")["spec"]["image"] == "of-another-unit"


async def test_pages_neither_repeat_nor_hide_units_while_others_come_and_go(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    staying = [f"stay-{number:02}" for number in range(12)]
    going = [f"stay-{number:02}-gone" for number in range(12)]
    for name in staying + going:
        cluster.create(name)
    await wait_cached(replica, cluster.namespace, *staying, *going)

    seen: list[str] = []
    after, turn = None, 0
    while True:
        found, after = replica.units.list(ListUnits(namespace=cluster.namespace, limit=4, after=after))
        assert len(found) <= 4
        seen += [unit.metadata.name for unit in found]
        if after is None:
            break
        for gone in (going.pop(0), going.pop()) if len(going) > 1 else ():
            await replica.units.delete("", gone)
        cluster.create(f"aaa-{turn}")
        cluster.create(f"stay-11-z{turn}")
        await wait_cached(replica, cluster.namespace, f"aaa-{turn}", f"stay-11-z{turn}")
        turn += 1
    assert turn > 2
    assert [name for name in seen if name in staying] == staying
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


async def test_unit_list_filters(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("plain")
    cluster.create("large", specName="g8")
    cluster.create("function", serverless={"enabled": True, "requestID": "f"})
    cluster.create("resting", serverless={"requestID": "g"})
    cluster.patch_status("large", phase="Ready")
    await wait_cached(replica, cluster.namespace, "plain", "large", "function", "resting")
    large, store = ObjectKey(cluster.namespace, "large"), replica.caches.units.store
    await eventually(lambda: (unit := store.get(large)) is not None and unit.status.phase == "Ready", "it is Ready")

    def names(**query: Any) -> list[str]:
        return [unit.metadata.name for unit in replica.units.list(ListUnits(**query))[0]]

    assert names() == ["function", "large", "plain", "resting"]
    assert names(namespace=cluster.namespace) == names()
    assert names(namespace="elsewhere") == []
    assert names(spec_name="g8") == ["large"]
    assert names(phase=UnitPhase.READY) == ["large"]
    assert names(phase=UnitPhase.PROGRESSING) == ["function", "plain", "resting"]
    assert names(serverless=True) == ["function"]
    assert names(serverless=False, spec_name="g1.1") == ["plain", "resting"]


async def test_incomplete_unit_list_is_unavailable(stale_replica: UnitReplica) -> None:
    with pytest.raises(Unavailable, match="still being read"):
        stale_replica.units.list(ListUnits())


async def test_unreachable_kubernetes_is_unavailable(control_plane: ControlPlane, stale_replica: UnitReplica) -> None:
    away = replace(load_cluster_config(control_plane.kubeconfig), server=f"https://127.0.0.1:{free_port()}")
    async with open_kube_client(away, field_manager="test") as client:
        units = replace(stale_replica.units, client=client.with_options(timeout=1, retries=NO_RETRY))
        for refused in (units.get, units.stop, units.delete):
            with pytest.raises(Unavailable, match="Kubernetes cannot be reached"):
                await refused("", "web")


async def begin_create(replica: UnitReplica, namespace: str) -> tuple[OperationStore, Operation]:
    """A create that is not finished, and of which the replica knows."""
    ledger = OperationStore(replica.client, namespace, SystemClock())
    request = CreateUnit(operation_id="unit-1", name="web", spec_name="g1.1", image="python")
    target = OperationTarget(kind="GPUUnit", namespace=namespace, name="web")
    operation = (await ledger.record(OperationType.CREATE_UNIT, "unit-1", request, target)).operation
    store = replica.caches.unfinished_operations.store
    await eventually(lambda: store.get(operation.metadata.key) is not None, "the operation is known")
    return ledger, operation
