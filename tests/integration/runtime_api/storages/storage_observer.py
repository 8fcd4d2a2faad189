"""Observes which unit each storage is attached to, and which pods mount it, without the code of the product."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod

from gpu_runtime.contract.crd.well_known import Label
from tests.integration.controller_manager.conftest import STORAGE, ControllerCluster, Object, as_dict, ready_condition
from tests.integration.runtime_api.edge.conftest import ApiProcess
from tests.integration.runtime_api.live_platform import (
    UNIT_NAMESPACE,
    ApiCaller,
    ApiResponse,
    ClusterSnapshot,
    operation_state,
    unit_request,
    until,
)

CONTROLLER_MANAGER_LEASE = ("lease", "controller-manager", "--namespace=runtime-system")


async def create_storages(client: ApiCaller, names: Sequence[str], *, with_volumes: bool = True) -> None:
    """Create storages over HTTP and wait for the controller manager. They become Ready if they have volumes."""
    if with_volumes:
        with client.platform.control_plane.client() as kube:
            cluster = ControllerCluster(client.platform.control_plane, kube, client.platform.folder)
            for name in names:
                cluster.create_volume(UNIT_NAMESPACE, name)
    replicas, path = client.platform.shared_replicas, "/api/v1/gpu-storages"
    responses = await asyncio.gather(
        *(client.request(replicas[n % 3], "POST", path, {"name": name, "size": "1Gi"}) for n, name in enumerate(names))
    )
    assert {response.status for response in responses} == {201}, responses
    expected = "StorageReady" if with_volumes else "ClaimPending"

    async def are_reported() -> bool:
        storages = await list_storages(client)
        return all(ready_condition(storages[name]).get("reason") == expected for name in names)

    await until(are_reported, f"{len(names)} storages have the reason {expected}")


async def list_storages(client: ApiCaller) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in await client.list_objects(STORAGE, UNIT_NAMESPACE)}


async def list_pvcs(client: ApiCaller) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in await client.list_objects(PersistentVolumeClaim, UNIT_NAMESPACE)}


def attached_unit(storage: Object) -> str | None:
    attached = storage["spec"].get("attachedTo")
    return attached and str(attached["unit"])


def storage_mounts(*names: str) -> Object:
    return {"storageMounts": [{"name": name, "mountPath": f"/{name}"} for name in names]}


async def create_unit_with_mounts(
    client: ApiCaller, replica: ApiProcess, flavor: str, name: str, *storages: str
) -> ApiResponse:
    return await client.request(
        replica, "POST", "/api/v1/gpu-units", unit_request(flavor, name) | storage_mounts(*storages)
    )


async def orphaned_attachments(client: ApiCaller) -> list[str]:
    """Return storages that are attached to no unit that mounts them and by no operation in progress."""
    # Read storages first, so that the later snapshot contains the unit and the operation of every attachment.
    storages = await list_storages(client)
    return find_orphaned_attachments(storages, await client.snapshot())


def find_orphaned_attachments(storages: Mapping[str, Object], snapshot: ClusterSnapshot) -> list[str]:
    return [
        name for name, each in storages.items() if attached_unit(each) and not _is_attached_correctly(each, snapshot)
    ]


def _is_attached_correctly(storage: Object, snapshot: ClusterSnapshot) -> bool:
    name, attached = storage["metadata"]["name"], storage["spec"]["attachedTo"]
    units = {unit["metadata"]["name"]: unit for unit in snapshot.units}
    mounted = [mount["name"] for mount in units.get(attached["unit"], {"spec": {}})["spec"].get("storageMounts", ())]
    operation = snapshot.operations.get(attached.get("operationID", ""), {})
    in_progress = operation_state(operation) in ("Running", "RollingBack") and bool(operation)
    return name in mounted or in_progress


@dataclass
class MountObserver:
    """Records from watch events which pods mount which PVCs, and to which units storages are attached."""

    attached_units: dict[str, str | None] = field(default_factory=dict)
    """The unit that each existing storage is attached to."""

    mounts_by_pod: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """The unit and the mounted PVCs of each existing pod, by pod UID."""
    seen_mounts: set[tuple[str, str]] = field(default_factory=set)
    """PVC and unit of every observed mount."""
    violations: list[str] = field(default_factory=list)
    """Descriptions of PVCs that pods of two units mounted at the same time."""

    def observe_storage(self, event: str, storage: Object) -> None:
        name = storage["metadata"]["name"]
        self.attached_units[name] = attached_unit(storage)
        if event == "DELETED":
            del self.attached_units[name]

    def observe_pod(self, event: str, pod: Object) -> None:
        metadata = pod["metadata"]
        if event == "DELETED":
            self.mounts_by_pod.pop(metadata["uid"], None)
            return
        unit, pvcs = metadata.get("labels", {}).get(Label.UNIT_UID, "no unit"), frozenset(_pvc_names(pod))
        for other, other_pvcs in self.mounts_by_pod.values():
            self.violations += [f"{each} in pods of {unit} and {other}" for each in pvcs & other_pvcs if unit != other]
        self.mounts_by_pod[metadata["uid"]] = unit, pvcs
        self.seen_mounts |= {(each, metadata.get("labels", {}).get(Label.UNIT, "")) for each in pvcs}


def _pvc_names(pod: Object) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", ()):
        if pvc := volume.get("persistentVolumeClaim"):
            yield pvc["claimName"]


async def mounting_pods(client: ApiCaller, storage: str) -> list[str]:
    pods = await client.list_objects(Pod, UNIT_NAMESPACE)
    return [pod["metadata"]["name"] for pod in pods if storage in _pvc_names(pod)]


@asynccontextmanager
async def observing_mounts(client: ApiCaller) -> AsyncIterator[MountObserver]:
    """Observe mounts in the block, and check at its end that pods of two units never mounted the same PVC."""
    observer = MountObserver()

    async def watch(kind: Any, observe: Callable[[str, Object], None]) -> None:
        async for event, resource in client.kube.watch(kind, namespace=UNIT_NAMESPACE):
            observe(event, as_dict(resource))

    watching = [
        asyncio.create_task(watch(Pod, observer.observe_pod)),
        asyncio.create_task(watch(STORAGE, observer.observe_storage)),
    ]
    try:
        yield observer
        assert not any(each.done() for each in watching), "a watch ended early"
        assert observer.violations == []
    finally:
        for each in watching:
            each.cancel()


async def kill_manager(client: ApiCaller) -> None:
    """Kill the controller manager and delete its lease, so that the next one becomes leader immediately."""
    client.platform.manager.stop()
    await asyncio.to_thread(
        client.platform.control_plane.kubectl, "delete", *CONTROLLER_MANAGER_LEASE, "--ignore-not-found"
    )


async def start_manager(client: ApiCaller) -> None:
    manager = client.platform.manager.start()
    await asyncio.to_thread(lambda: manager.wait_ready().wait_leading())
