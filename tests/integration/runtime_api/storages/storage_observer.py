"""Who holds which storage in the running platform, seen with other eyes than the product's."""

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
    """Made over HTTP, and looked at by the controller manager; Ready where there are volumes for them."""
    if with_volumes:
        with client.platform.control_plane.client() as kube:
            cluster = ControllerCluster(client.platform.control_plane, kube, client.platform.folder)
            for name in names:
                cluster.create_volume(UNIT_NAMESPACE, name)
    standing, path = client.platform.shared_replicas, "/api/v1/gpu-storages"
    answers = await asyncio.gather(
        *(client.request(standing[n % 3], "POST", path, {"name": name, "size": "1Gi"}) for n, name in enumerate(names))
    )
    assert {answer.status for answer in answers} == {201}, answers
    expected = "StorageReady" if with_volumes else "ClaimPending"

    async def are_reported() -> bool:
        found = await list_storages(client)
        return all(ready_condition(found[name]).get("reason") == expected for name in names)

    await until(are_reported, f"{expected} of {len(names)} storages")


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
    client: ApiCaller, replica: ApiProcess, flavor: str, name: str, *mounted: str
) -> ApiResponse:
    return await client.request(
        replica, "POST", "/api/v1/gpu-units", unit_request(flavor, name) | storage_mounts(*mounted)
    )


async def orphaned_attachments(client: ApiCaller) -> list[str]:
    """Storages that are attached to nothing: to no unit that names them, by no operation that is under way."""
    found = await list_storages(
        client
    )  # first, so that what is attached by now has its unit and record in what follows
    return find_orphaned_attachments(found, await client.snapshot())


def find_orphaned_attachments(found: Mapping[str, Object], seen: ClusterSnapshot) -> list[str]:
    return [name for name, each in found.items() if attached_unit(each) and not _is_attached_correctly(each, seen)]


def _is_attached_correctly(storage: Object, seen: ClusterSnapshot) -> bool:
    name, attached = storage["metadata"]["name"], storage["spec"]["attachedTo"]
    units = {unit["metadata"]["name"]: unit for unit in seen.units}
    named = [mount["name"] for mount in units.get(attached["unit"], {"spec": {}})["spec"].get("storageMounts", ())]
    operation = seen.operations.get(attached.get("operationID", ""), {})
    under_way = operation_state(operation) in ("Running", "RollingBack") and bool(operation)
    return name in named or under_way


@dataclass
class MountObserver:
    """Which pods mount which claims, and which units hold which storages, event by event."""

    attached_units: dict[str, str | None] = field(default_factory=dict)
    """Of every storage that is there: the unit that holds it."""

    mounts_by_pod: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """Of every pod that is there: the unit that it belongs to, and the claims that it mounts."""
    seen_mounts: set[tuple[str, str]] = field(default_factory=set)
    """Claim and unit, for every mount that was seen."""
    violations: list[str] = field(default_factory=list)
    """What must never be: a claim in the pods of two units."""

    def observe_storage(self, event: str, storage: Object) -> None:
        name = storage["metadata"]["name"]
        self.attached_units[name] = attached_unit(storage)
        if event == "DELETED":
            del self.attached_units[name]

    def observe_pod(self, event: str, pod: Object) -> None:
        about = pod["metadata"]
        if event == "DELETED":
            self.mounts_by_pod.pop(about["uid"], None)
            return
        unit, used = about.get("labels", {}).get(Label.UNIT_UID, "nobody"), frozenset(_pvc_names(pod))
        for other, theirs in self.mounts_by_pod.values():
            self.violations += [f"{each} in pods of {unit} and {other}" for each in used & theirs if unit != other]
        self.mounts_by_pod[about["uid"]] = unit, used
        self.seen_mounts |= {(each, about.get("labels", {}).get(Label.UNIT, "")) for each in used}


def _pvc_names(pod: Object) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", ()):
        if claim := volume.get("persistentVolumeClaim"):
            yield claim["claimName"]


async def mounting_pods(client: ApiCaller, storage: str) -> list[str]:
    pods = await client.list_objects(Pod, UNIT_NAMESPACE)
    return [pod["metadata"]["name"] for pod in pods if storage in _pvc_names(pod)]


@asynccontextmanager
async def observing_mounts(client: ApiCaller) -> AsyncIterator[MountObserver]:
    """Whoever leaves has seen that no two units' pods mounted one claim."""
    mounted = MountObserver()

    async def watch(kind: Any, take_note: Callable[[str, Object], None]) -> None:
        async for event, found in client.kube.watch(kind, namespace=UNIT_NAMESPACE):
            take_note(event, as_dict(found))

    watching = [
        asyncio.create_task(watch(Pod, mounted.observe_pod)),
        asyncio.create_task(watch(STORAGE, mounted.observe_storage)),
    ]
    try:
        yield mounted
        assert not any(each.done() for each in watching), "nobody was watching"
        assert mounted.violations == []
    finally:
        for each in watching:
            each.cancel()


async def kill_manager(client: ApiCaller) -> None:
    """Killed, and its lease run out at once."""
    client.platform.manager.stop()
    await asyncio.to_thread(
        client.platform.control_plane.kubectl, "delete", *CONTROLLER_MANAGER_LEASE, "--ignore-not-found"
    )


async def start_manager(client: ApiCaller) -> None:
    manager = client.platform.manager.start()
    await asyncio.to_thread(lambda: manager.wait_ready().wait_leading())
