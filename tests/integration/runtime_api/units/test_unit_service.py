"""The unit service on a real API server, with several replicas and other concurrent writers."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from lightkube import ApiError

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import Operation, OperationTarget
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import BeingDeleted, Invalid, NotFound, Unavailable
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.kube.meta import KubeObject, ObjectKey
from gpu_runtime.kube.retry import NO_RETRY
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.units.requests import ListUnits, UpdateUnit
from localcluster.control_plane import ControlPlane
from localcluster.free_ports import free_port
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
    """A write fence that rejects every write."""

    def remaining(self) -> float:
        return 0


def update(**body: Any) -> UpdateUnit:
    return msgspec.convert(body, UpdateUnit)


def version(unit: dict[str, Any]) -> str:
    return str(unit["metadata"]["resourceVersion"])


async def wait_cached(replica: UnitReplica, namespace: str, *names: str) -> None:
    store = replica.informers.units.store
    await eventually(lambda: all(store.get(ObjectKey(namespace, name)) for name in names), f"{names} are cached")


async def create_cached_unit(replica: UnitReplica, cluster: UnitCluster, name: str) -> None:
    """Create a unit and put it into the cache. The cache does not see later changes."""
    cluster.create(name)
    replica.informers.units.store.put(await replica.client.get(GPU_UNITS, ObjectKey(cluster.namespace, name)))


async def test_unit_missing_in_the_cache_is_read_live(stale_replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    assert (await stale_replica.units.get("", "web")).spec.image == "python:3.12"


async def test_cached_unit_is_read_from_the_cache(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    await wait_cached(replica, cluster.namespace, "web")
    unit = await replica.units.get(cluster.namespace, "web")
    assert unit is replica.informers.units.store.get(unit.metadata.key)


@pytest.mark.parametrize("name", ["none-such", "Not_A_Name", ".", "..", "a/b", "a" * 64, ""])
async def test_missing_unit_or_invalid_name_is_not_found(stale_replica: UnitReplica, name: str) -> None:
    with pytest.raises(NotFound, match=f"unit '{re.escape(name)}' does not exist"):
        await stale_replica.units.get("", name)


async def test_namespace_that_is_not_allowed_is_rejected_by_every_method(
    stale_replica: UnitReplica, namespaces: Any
) -> None:
    for namespace in ("default", namespaces.stock):
        for method in (
            stale_replica.units.get,
            stale_replica.units.stop,
            stale_replica.units.start,
            stale_replica.units.delete,
        ):
            with pytest.raises(Invalid, match=f"namespace: '{namespace}' is not allowed for units"):
                await method(namespace, "web")
        with pytest.raises(Invalid, match="is not allowed for units"):
            await stale_replica.units.update(namespace, "web", update())
        with pytest.raises(Invalid, match="is not allowed for units"):
            stale_replica.units.list(ListUnits(namespace=namespace))


async def test_update_preserves_omitted_fields(replica: UnitReplica, cluster: UnitCluster) -> None:
    before = cluster.create("web", {"example.com/note": "mine"}, **WEB)
    cluster.patch_status("web", phase="Ready", serviceName="web")
    written = await replica.units.update("", "web", update(image="python:3.13"))
    after = cluster.get("web")
    assert after["spec"] == before["spec"] | {"image": "python:3.13"}
    assert after["status"] == {"phase": "Ready", "serviceName": "web"} | after["status"]
    assert after["metadata"]["annotations"] == {"example.com/note": "mine"}
    assert (written.spec.image, written.metadata.generation) == ("python:3.13", 2)


async def test_replica_reads_its_own_writes(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    await wait_cached(replica, cluster.namespace, "web")
    for number in range(20):
        await replica.units.update("", "web", update(image=f"python:{number}"))
        assert (await replica.units.get("", "web")).spec.image == f"python:{number}"


async def test_update_without_changes_writes_nothing(replica: UnitReplica, cluster: UnitCluster) -> None:
    units = replace(replica.units, client=replica.client.fenced(NoWrites()))
    before = cluster.create("web", **WEB)
    unchanged = {name: before["spec"][name] for name in ("image", "template", "access", "memory", "gpu", "specName")}
    for body in ({}, unchanged):
        unit = await units.update("", "web", update(**body))
        assert unit.metadata.resource_version == version(before)
    assert (await units.start("", "web")).metadata.resource_version == version(before)
    assert version(cluster.get("web")) == version(before)


async def test_update_replaces_given_parts_completely(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web", storageMounts=[{"name": "data", "mountPath": "/data"}], **WEB)
    await replica.units.update("", "web", update(template={"ports": [HTTP]}, access={}, storageMounts=[]))
    spec = cluster.get("web")["spec"]
    assert spec["template"] == {"ports": [HTTP]}
    assert "access" not in spec
    assert "storageMounts" not in spec


async def test_unit_becomes_a_function_and_its_request_id_is_immutable(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    cluster.create("web")
    await replica.units.update(
        "", "web", update(serverless={"enabled": True, "requestID": "becomes-a-function", "maxWorkers": 3})
    )
    before = cluster.get("web")
    assert before["spec"]["serverless"]["maxWorkers"] == 3
    with pytest.raises(Invalid, match=r"serverless\.requestID: cannot be changed from 'becomes-a-function'"):
        await replica.units.update("", "web", update(serverless={"enabled": True, "requestID": "g"}))
    assert version(cluster.get("web")) == version(before)
    await replica.units.update("", "web", update(serverless={"requestID": "becomes-a-function"}))
    after = cluster.get("web")["spec"]["serverless"]
    assert (after["enabled"], after["maxWorkers"], after["requestID"]) == (False, 1, "becomes-a-function")


async def test_rejected_update_writes_nothing(replica: UnitReplica, cluster: UnitCluster) -> None:
    before = cluster.create("web", **WEB)
    with pytest.raises(Invalid) as raised:
        await replica.units.update("", "web", update(image="", gpu=2, template={}))
    assert [error.path for error in raised.value.errors] == ["gpu", "image", "access.primaryPort"]
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
    unit = cluster.get("web")
    assert unit["metadata"]["generation"] == 1 + len(bodies), "every update must be written once"
    spec = unit["spec"]
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
        updates = [
            tasks.create_task((one, other)[index % 2].units.update("", "web", update(template=part)))
            for index, part in enumerate(parts)
        ]
    assert [task.result().spec.template for task in updates] == [msgspec.convert(part, Template) for part in parts]


async def test_updates_succeed_during_status_writes(
    replica: UnitReplica, start_replica: StartUnitReplica, cluster: UnitCluster
) -> None:
    cluster.create("web")
    controller = (await start_replica()).client
    key, written = ObjectKey(cluster.namespace, "web"), 0

    async def write_status() -> None:
        nonlocal written
        while True:
            await controller.merge_patch(
                GPU_UNITS, key, {"status": {"observedGeneration": written + 1}}, subresource="status"
            )
            written += 1
            await asyncio.sleep(0.01)  # 100 writes per second are far more than a controller makes

    async with asyncio.TaskGroup() as tasks:
        status_writes = tasks.create_task(write_status())
        await eventually(lambda: written > 0, "the status was written")
        for number in range(30):
            await replica.units.update("", "web", update(image=f"python:{number}"))
        status_writes.cancel()
    unit = cluster.get("web")
    assert (unit["spec"]["image"], unit["metadata"]["generation"]) == ("python:29", 31)
    assert unit["status"]["observedGeneration"] >= written, "no status write must be lost"


async def test_stop_and_start_are_idempotent(replica: UnitReplica, cluster: UnitCluster) -> None:
    before = cluster.create("web", **WEB)
    for method, running in ((replica.units.stop, False), (replica.units.start, True)):
        first = await method("", "web")
        second = await method(cluster.namespace, "web")
        assert first.spec.running is running
        assert second.metadata.resource_version == first.metadata.resource_version
        assert cluster.get("web")["spec"] == before["spec"] | {"running": running}
    assert cluster.get("web")["metadata"]["generation"] == 3


async def test_start_with_a_stale_cache_starts_the_unit(stale_replica: UnitReplica, cluster: UnitCluster) -> None:
    await create_cached_unit(stale_replica, cluster, "web")
    cluster.patch("web", {"spec": {"running": False}})
    await stale_replica.units.start("", "web")
    assert cluster.get("web")["spec"]["running"] is True


async def test_unit_with_an_invalid_spec_can_be_stopped(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web", memory="not-a-quantity")
    assert (await replica.units.stop("", "web")).spec.running is False


async def test_deleted_unit_is_404_immediately(stale_replica: UnitReplica, cluster: UnitCluster) -> None:
    await create_cached_unit(stale_replica, cluster, "web")
    await stale_replica.units.delete("", "web")
    with pytest.raises(ApiError, match="not found"):
        cluster.get("web")
    for method in (stale_replica.units.get, stale_replica.units.delete, stale_replica.units.stop):
        with pytest.raises(NotFound, match="unit 'web' does not exist"):
            await method("", "web")
    with pytest.raises(NotFound):
        await stale_replica.units.update("", "web", update(image="new"))
    assert stale_replica.finished_operations == []


async def test_unit_with_a_finalizer_is_shown_as_deleting(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("web")
    cluster.patch("web", {"metadata": {"finalizers": ["example.com/wait"]}})
    await replica.units.delete("", "web")
    await replica.units.delete("", "web")
    store, key = replica.informers.units.store, ObjectKey(cluster.namespace, "web")
    await eventually(
        lambda: (unit := store.get(key)) is not None and unit.metadata.deletion_timestamp is not None,
        "the unit is deleting",
    )
    with pytest.raises(BeingDeleted, match="is being deleted"):
        await replica.units.stop("", "web")
    cluster.patch("web", {"metadata": {"finalizers": None}})
    await eventually(lambda: store.get(key) is None, "the unit is deleted")


async def test_unfinished_create_is_finished_before_its_unit_is_deleted(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    await record_create(replica, cluster.namespace)
    finished = []

    async def finish(created: KubeObject) -> list[str]:
        operation_id = created.metadata.annotations[Annotation.OPERATION_ID]
        finished.append((operation_id, cluster.get("web")["metadata"]["name"]))
        return [created.metadata.uid]

    cluster.create("web", {Annotation.OPERATION_ID: "unit-1"})
    await replace(replica.units, operations=runner_with(finish)).delete("", "web")
    assert finished == [("unit-1", "web")], "the unit must still exist when the operation is finished"


async def test_delete_succeeds_if_finishing_the_create_removed_the_unit(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    await record_create(replica, cluster.namespace)

    async def finish(created: KubeObject) -> list[str]:
        cluster.delete("web")
        cluster.create("web", image="of-another-unit")
        return [created.metadata.uid]

    cluster.create("web", {Annotation.OPERATION_ID: "unit-1"})
    await replace(replica.units, operations=runner_with(finish)).delete("", "web")
    assert cluster.get("web")["spec"]["image"] == "of-another-unit"


async def test_pages_are_consistent_while_other_units_are_created_and_deleted(
    replica: UnitReplica, cluster: UnitCluster
) -> None:
    permanent = [f"stay-{number:02}" for number in range(12)]
    temporary = [f"stay-{number:02}-temporary" for number in range(12)]
    for name in permanent + temporary:
        cluster.create(name)
    await wait_cached(replica, cluster.namespace, *permanent, *temporary)

    listed: list[str] = []
    after, page_number = None, 0
    while True:
        page, after = replica.units.list(ListUnits(namespace=cluster.namespace, limit=4, after=after))
        assert len(page) <= 4
        listed += [unit.metadata.name for unit in page]
        if after is None:
            break
        for name in (temporary.pop(0), temporary.pop()) if len(temporary) > 1 else ():
            await replica.units.delete("", name)
        before_page, after_page = f"aaa-{page_number}", f"stay-11-z{page_number}"
        cluster.create(before_page)
        cluster.create(after_page)
        await wait_cached(replica, cluster.namespace, before_page, after_page)
        page_number += 1
    assert page_number > 2
    assert [name for name in listed if name in permanent] == permanent
    assert len(listed) == len(set(listed))
    assert listed == sorted(listed)


async def test_unit_list_filters(replica: UnitReplica, cluster: UnitCluster) -> None:
    cluster.create("plain")
    cluster.create("large", specName="g8")
    cluster.create("function", serverless={"enabled": True, "requestID": "f"})
    cluster.create("resting", serverless={"requestID": "g"})
    cluster.patch_status("large", phase="Ready")
    await wait_cached(replica, cluster.namespace, "plain", "large", "function", "resting")
    large, store = ObjectKey(cluster.namespace, "large"), replica.informers.units.store
    await eventually(
        lambda: (unit := store.get(large)) is not None and unit.status.phase == "Ready", "the unit is Ready"
    )

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
    with pytest.raises(Unavailable, match="still loading"):
        stale_replica.units.list(ListUnits())


async def test_unreachable_kubernetes_is_unavailable(control_plane: ControlPlane, stale_replica: UnitReplica) -> None:
    unreachable = replace(load_cluster_config(control_plane.kubeconfig), server=f"https://127.0.0.1:{free_port()}")
    async with open_kube_client(unreachable, field_manager="test") as client:
        units = replace(stale_replica.units, client=client.with_options(timeout=1, retries=NO_RETRY))
        for method in (units.get, units.stop, units.delete):
            with pytest.raises(KubeUnreachable) as raised:
                await method("", "web")
            assert isinstance(fault_from_kube_error(raised.value), Unavailable)


def runner_with(finish_creator: Callable[[KubeObject], Awaitable[list[str]]]) -> OperationRunner:
    """A runner that only finishes the operations of objects, with this function."""
    return cast(OperationRunner, SimpleNamespace(finish_creator=finish_creator))


async def record_create(replica: UnitReplica, namespace: str) -> tuple[OperationStore, Operation]:
    """Record an unfinished create operation and wait until the replica has it in its cache."""
    operation_store = OperationStore(replica.client, namespace, SystemClock())
    request = RecordedUnitRequest(operation_id="unit-1", name="web", spec_name="g1.1", image="python")
    target = OperationTarget(kind="GPUUnit", namespace=namespace, name="web")
    operation = (await operation_store.record(request, target)).operation
    store = replica.informers.unfinished_operations.store
    await eventually(lambda: store.get(operation.metadata.key) is not None, "the operation is cached")
    return operation_store, operation
