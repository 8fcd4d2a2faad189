"""What callers do with units holds on the real API server, for several replicas, whoever else writes."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from lightkube import ApiError

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import Operation, OperationType, Target
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, Unavailable
from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.retry import IMPATIENT
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UpdateUnit
from localcluster.control_plane import ControlPlane, free_port
from tests.integration.kube.waiting import eventually
from tests.integration.runtime_api.units.conftest import Cluster, Replica, Replicas

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


async def known(replica: Replica, namespace: str, *names: str) -> None:
    store = replica.caches.units.store
    await eventually(lambda: all(store.get(Key(namespace, name)) for name in names), f"{names} are known")


async def known_from_before(idle: Replica, cluster: Cluster, name: str) -> None:
    """A new unit that the cache knows; it will not hear of what becomes of it."""
    cluster.make(name)
    idle.caches.units.store.put(await idle.client.get(GPU_UNITS, Key(cluster.namespace, name)))


async def test_a_unit_is_found_before_the_cache_knows_it(idle: Replica, cluster: Cluster) -> None:
    cluster.make("web")
    assert (await idle.units.get("", "web")).spec.image == "python:3.12"


async def test_a_unit_is_read_from_the_cache_once_it_knows_it(replica: Replica, cluster: Cluster) -> None:
    cluster.make("web")
    await known(replica, cluster.namespace, "web")
    found = await replica.units.get(cluster.namespace, "web")
    assert found is replica.caches.units.store.get(found.metadata.key)


@pytest.mark.parametrize("name", ["none-such", "Not_A_Name", ".", "..", "a/b", "a" * 64, ""])
async def test_a_unit_that_is_not_there_is_not_found(idle: Replica, name: str) -> None:
    with pytest.raises(NotFound, match="there is no unit"):
        await idle.units.get("", name)


async def test_other_namespaces_are_refused_everywhere(idle: Replica, namespaces: Any) -> None:
    for namespace in ("default", namespaces.stock):
        for refused in (idle.units.get, idle.units.stop, idle.units.start, idle.units.delete):
            with pytest.raises(Invalid, match=f"namespace: '{namespace}' holds no units here"):
                await refused(namespace, "web")
        with pytest.raises(Invalid, match="holds no units here"):
            await idle.units.update(namespace, "web", update())
        with pytest.raises(Invalid, match="holds no units here"):
            idle.units.list(ListUnits(namespace=namespace))


async def test_an_update_keeps_what_it_does_not_name(replica: Replica, cluster: Cluster) -> None:
    before = cluster.make("web", {"example.com/note": "mine"}, **WEB)
    cluster.report("web", phase="Ready", serviceName="web")
    written = await replica.units.update("", "web", update(image="python:3.13"))
    after = cluster.look("web")
    assert after["spec"] == before["spec"] | {"image": "python:3.13"}
    assert after["status"] == {"phase": "Ready", "serviceName": "web"} | after["status"]
    assert after["metadata"]["annotations"] == {"example.com/note": "mine"}
    assert (written.spec.image, written.metadata.generation) == ("python:3.13", 2)


async def test_a_replica_reads_what_it_wrote(replica: Replica, cluster: Cluster) -> None:
    cluster.make("web")
    await known(replica, cluster.namespace, "web")
    for number in range(20):
        await replica.units.update("", "web", update(image=f"python:{number}"))
        assert (await replica.units.get("", "web")).spec.image == f"python:{number}"


async def test_an_update_that_changes_nothing_writes_nothing(replica: Replica, cluster: Cluster) -> None:
    units = replace(replica.units, client=replica.client.fenced(NoWrites()))
    before = cluster.make("web", **WEB)
    same = {name: before["spec"][name] for name in ("image", "template", "access", "memory", "gpu", "specName")}
    for body in ({}, same):
        found = await units.update("", "web", update(**body))
        assert found.metadata.resource_version == version(before)
    assert (await units.start("", "web")).metadata.resource_version == version(before)
    assert version(cluster.look("web")) == version(before)


async def test_what_a_named_part_does_not_repeat_goes_away(replica: Replica, cluster: Cluster) -> None:
    cluster.make("web", storageMounts=[{"name": "data", "mountPath": "/data"}], **WEB)
    await replica.units.update("", "web", update(template={"ports": [HTTP]}, access={}, storageMounts=[]))
    spec = cluster.look("web")["spec"]
    assert spec["template"] == {"ports": [HTTP]}
    assert spec["access"] == {"scheme": "http"}
    assert "storageMounts" not in spec


async def test_a_unit_becomes_a_function_and_keeps_its_queue(replica: Replica, cluster: Cluster) -> None:
    cluster.make("web")
    await replica.units.update("", "web", update(serverless={"enabled": True, "requestID": "f", "maxWorkers": 3}))
    before = cluster.look("web")
    assert before["spec"]["serverless"]["maxWorkers"] == 3
    with pytest.raises(Invalid, match=r"serverless\.requestID: never changes from 'f'"):
        await replica.units.update("", "web", update(serverless={"enabled": True, "requestID": "g"}))
    assert version(cluster.look("web")) == version(before)
    await replica.units.update("", "web", update(serverless={"requestID": "f"}))
    after = cluster.look("web")["spec"]["serverless"]
    assert (after["enabled"], after["maxWorkers"], after["requestID"]) == (False, 1, "f")


async def test_a_refused_update_writes_nothing(replica: Replica, cluster: Cluster) -> None:
    before = cluster.make("web", **WEB)
    with pytest.raises(Invalid) as refused:
        await replica.units.update("", "web", update(image="", gpu=2, template={}))
    assert [problem.path for problem in refused.value.problems] == ["gpu", "image", "access.primaryPort"]
    assert version(cluster.look("web")) == version(before)


async def test_updates_of_different_fields_at_once_all_survive(replicas: Replicas, cluster: Cluster) -> None:
    ports = [{"name": f"p{number}", "port": 80 + number} for number in range(4)]
    cluster.make("web", template={"ports": ports})
    cluster.make_storage("data")
    one, other = await replicas(), await replicas()
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
    found = cluster.look("web")
    assert found["metadata"]["generation"] == 1 + len(bodies), "every update was written, and once"
    spec = found["spec"]
    assert spec["image"] in {f"python:{n}" for n in range(4)}
    assert spec["template"]["args"][0] in "0123"
    assert spec["access"]["primaryPort"] in {f"p{n}" for n in range(4)}
    assert spec["storageMounts"][0]["mountPath"] in {f"/data-{n}" for n in range(4)}
    assert spec["serverless"]["idleTimeoutSeconds"] in {1, 2, 3, 4}


async def test_parts_that_are_replaced_at_once_do_not_mix(replicas: Replicas, cluster: Cluster) -> None:
    cluster.make("web", template={"ports": [HTTP]})
    one, other = await replicas(), await replicas()
    parts = [{field: [str(n)], "ports": [HTTP]} for n in range(10) for field in ("command", "args")]
    async with asyncio.TaskGroup() as tasks:
        writing = [
            tasks.create_task((one, other)[index % 2].units.update("", "web", update(template=part)))
            for index, part in enumerate(parts)
        ]
    assert [task.result().spec.template for task in writing] == [msgspec.convert(part, Template) for part in parts]


async def test_updates_get_through_while_the_status_is_written(
    replica: Replica, replicas: Replicas, cluster: Cluster
) -> None:
    cluster.make("web")
    controller = (await replicas()).client
    key, written = Key(cluster.namespace, "web"), 0

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
    found = cluster.look("web")
    assert (found["spec"]["image"], found["metadata"]["generation"]) == ("python:29", 31)
    assert found["status"]["observedGeneration"] >= written, "no status was lost"


async def test_stop_and_start_are_as_good_once_as_twice(replica: Replica, cluster: Cluster) -> None:
    before = cluster.make("web", **WEB)
    for switch, running in ((replica.units.stop, False), (replica.units.start, True)):
        first = await switch("", "web")
        again = await switch(cluster.namespace, "web")
        assert first.spec.running is running
        assert again.metadata.resource_version == first.metadata.resource_version
        assert cluster.look("web")["spec"] == before["spec"] | {"running": running}
    assert cluster.look("web")["metadata"]["generation"] == 3


async def test_a_unit_that_was_stopped_elsewhere_is_started_though_the_cache_lags(
    idle: Replica, cluster: Cluster
) -> None:
    await known_from_before(idle, cluster, "web")
    cluster.patch("web", {"spec": {"running": False}})
    await idle.units.start("", "web")
    assert cluster.look("web")["spec"]["running"] is True


async def test_a_unit_with_a_bad_spec_can_be_stopped(replica: Replica, cluster: Cluster) -> None:
    cluster.make("web", memory="not-a-quantity")
    assert (await replica.units.stop("", "web")).spec.running is False


async def test_a_deleted_unit_is_gone_at_once_and_cannot_be_deleted_twice(idle: Replica, cluster: Cluster) -> None:
    await known_from_before(idle, cluster, "web")
    await idle.units.delete("", "web")
    with pytest.raises(ApiError, match="not found"):
        cluster.look("web")
    for refused in (idle.units.get, idle.units.delete, idle.units.stop):
        with pytest.raises(NotFound, match="there is no unit 'web'"):
            await refused("", "web")
    with pytest.raises(NotFound):
        await idle.units.update("", "web", update(image="new"))
    assert idle.settled == []


async def test_a_unit_that_lives_on_for_a_finalizer_is_shown_as_deleting(replica: Replica, cluster: Cluster) -> None:
    cluster.make("web")
    cluster.patch("web", {"metadata": {"finalizers": ["example.com/wait"]}})
    await replica.units.delete("", "web")
    await replica.units.delete("", "web")
    store, key = replica.caches.units.store, Key(cluster.namespace, "web")
    await eventually(
        lambda: (unit := store.get(key)) is not None and unit.metadata.deletion_timestamp is not None, "it is deleting"
    )
    with pytest.raises(Conflict, match="is being deleted"):
        await replica.units.stop("", "web")
    cluster.patch("web", {"metadata": {"finalizers": None}})
    await eventually(lambda: store.get(key) is None, "it is gone")


async def test_an_unfinished_create_is_settled_before_its_unit_is_deleted(replica: Replica, cluster: Cluster) -> None:
    await begun(replica, cluster.namespace)
    seen = []

    async def settle(operation_id: str) -> None:
        seen.append((operation_id, cluster.look("web")["metadata"]["name"]))

    cluster.make("web", {Annotation.OPERATION_ID: "unit-1"})
    await replace(replica.units, settle=settle).delete("", "web")
    assert seen == [("unit-1", "web")], "it was still there"


async def test_a_unit_that_the_settling_took_away_is_deleted(replica: Replica, cluster: Cluster) -> None:
    await begun(replica, cluster.namespace)

    async def settle(_: str) -> None:
        cluster.end("web")
        cluster.make("web", image="of-another-unit")

    cluster.make("web", {Annotation.OPERATION_ID: "unit-1"})
    await replace(replica.units, settle=settle).delete("", "web")
    assert cluster.look("web")["spec"]["image"] == "of-another-unit"


async def test_pages_neither_repeat_nor_hide_units_while_others_come_and_go(replica: Replica, cluster: Cluster) -> None:
    staying = [f"stay-{number:02}" for number in range(12)]
    going = [f"stay-{number:02}-gone" for number in range(12)]
    for name in staying + going:
        cluster.make(name)
    await known(replica, cluster.namespace, *staying, *going)

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
        cluster.make(f"aaa-{turn}")
        cluster.make(f"stay-11-z{turn}")
        await known(replica, cluster.namespace, f"aaa-{turn}", f"stay-11-z{turn}")
        turn += 1
    assert turn > 2
    assert [name for name in seen if name in staying] == staying
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)


async def test_a_list_shows_what_is_asked_for(replica: Replica, cluster: Cluster) -> None:
    cluster.make("plain")
    cluster.make("large", specName="g8")
    cluster.make("function", serverless={"enabled": True, "requestID": "f"})
    cluster.make("resting", serverless={"requestID": "g"})
    cluster.report("large", phase="Ready")
    await known(replica, cluster.namespace, "plain", "large", "function", "resting")
    large, store = Key(cluster.namespace, "large"), replica.caches.units.store
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


async def test_a_list_that_cannot_be_complete_is_refused(idle: Replica) -> None:
    with pytest.raises(Unavailable, match="still being read"):
        idle.units.list(ListUnits())


async def test_what_cannot_be_asked_is_unavailable(control_plane: ControlPlane, idle: Replica) -> None:
    away = replace(load_config(control_plane.kubeconfig), server=f"https://127.0.0.1:{free_port()}")
    async with connect(away, field_manager="test") as client:
        units = replace(idle.units, client=client.patient(timeout=1, retries=IMPATIENT))
        for refused in (units.get, units.stop, units.delete):
            with pytest.raises(Unavailable, match="Kubernetes cannot be reached"):
                await refused("", "web")


async def begun(replica: Replica, namespace: str) -> tuple[Ledger, Operation]:
    """A create that is not finished, and of which the replica knows."""
    ledger = Ledger(replica.client, namespace, SystemClock())
    request = CreateUnit(operation_id="unit-1", name="web", spec_name="g1.1", image="python")
    target = Target(kind="GPUUnit", namespace=namespace, name="web")
    operation = (await ledger.record(OperationType.CREATE_UNIT, "unit-1", request, target)).operation
    store = replica.caches.pending.store
    await eventually(lambda: store.get(operation.metadata.key) is not None, "the operation is known")
    return ledger, operation
