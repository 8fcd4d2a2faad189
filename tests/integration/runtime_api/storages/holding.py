"""Who holds which storage in the running platform, seen with other eyes than the product's."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod

from gpu_runtime.contract.crd.well_known import Label
from tests.integration.controller_manager.conftest import STORAGE, Cluster, Object, as_dict, ready
from tests.integration.runtime_api.edge.conftest import Replica
from tests.integration.runtime_api.live import UNITS, Answer, Caller, Seen, state_of, unit_request, until

LEASE = ("lease", "controller-manager", "--namespace=runtime-system")


async def make_storages(client: Caller, names: Sequence[str], *, with_volumes: bool = True) -> None:
    """Made over HTTP, and looked at by the controller manager; Ready where there are volumes for them."""
    if with_volumes:
        with client.platform.plane.client() as kube:
            cluster = Cluster(client.platform.plane, kube, client.platform.folder)
            for name in names:
                cluster.volume(UNITS, name)
    standing, path = client.platform.standing, "/api/v1/gpu-storages"
    answers = await asyncio.gather(
        *(client.ask(standing[n % 3], "POST", path, {"name": name, "size": "1Gi"}) for n, name in enumerate(names))
    )
    assert {answer.status for answer in answers} == {201}, answers
    expected = "StorageReady" if with_volumes else "ClaimPending"

    async def are_reported() -> bool:
        found = await storages(client)
        return all(ready(found[name]).get("reason") == expected for name in names)

    await until(are_reported, f"{expected} of {len(names)} storages")


async def storages(client: Caller) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in await client.all(STORAGE, UNITS)}


async def claims(client: Caller) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in await client.all(PersistentVolumeClaim, UNITS)}


def held_by(storage: Object) -> str | None:
    attached = storage["spec"].get("attachedTo")
    return attached and str(attached["unit"])


def mounts(*names: str) -> Object:
    return {"storageMounts": [{"name": name, "mountPath": f"/{name}"} for name in names]}


async def create(client: Caller, replica: Replica, flavour: str, name: str, *mounted: str) -> Answer:
    return await client.ask(replica, "POST", "/api/v1/gpu-units", unit_request(flavour, name) | mounts(*mounted))


async def strays(client: Caller) -> list[str]:
    """Storages that are attached to nothing: to no unit that names them, by no operation that is under way."""
    found = await storages(client)  # first, so that what is attached by now has its unit and record in what follows
    return strays_in(found, await client.look())


def strays_in(found: Mapping[str, Object], seen: Seen) -> list[str]:
    return [name for name, each in found.items() if held_by(each) and not _is_right(each, seen)]


def _is_right(storage: Object, seen: Seen) -> bool:
    name, attached = storage["metadata"]["name"], storage["spec"]["attachedTo"]
    units = {unit["metadata"]["name"]: unit for unit in seen.units}
    named = [mount["name"] for mount in units.get(attached["unit"], {"spec": {}})["spec"].get("storageMounts", ())]
    operation = seen.operations.get(attached.get("operationID", ""), {})
    under_way = state_of(operation) in ("Running", "GivingUp") and bool(operation)
    return name in named or under_way


@dataclass
class Mounted:
    """Which pods mount which claims, and which units hold which storages, event by event."""

    holders: dict[str, str | None] = field(default_factory=dict)
    """Of every storage that is there: the unit that holds it."""

    pods: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    """Of every pod that is there: the unit that it belongs to, and the claims that it mounts."""
    ever: set[tuple[str, str]] = field(default_factory=set)
    """Claim and unit, for every mount that was seen."""
    shared: list[str] = field(default_factory=list)
    """What must never be: a claim in the pods of two units."""

    def take_note_of_storage(self, event: str, storage: Object) -> None:
        name = storage["metadata"]["name"]
        self.holders[name] = held_by(storage)
        if event == "DELETED":
            del self.holders[name]

    def take_note_of_pod(self, event: str, pod: Object) -> None:
        about = pod["metadata"]
        if event == "DELETED":
            self.pods.pop(about["uid"], None)
            return
        unit, used = about.get("labels", {}).get(Label.UNIT_UID, "nobody"), frozenset(_claims_of(pod))
        for other, theirs in self.pods.values():
            self.shared += [f"{each} in pods of {unit} and {other}" for each in used & theirs if unit != other]
        self.pods[about["uid"]] = unit, used
        self.ever |= {(each, about.get("labels", {}).get(Label.UNIT, "")) for each in used}


def _claims_of(pod: Object) -> Iterator[str]:
    for volume in pod["spec"].get("volumes", ()):
        if claim := volume.get("persistentVolumeClaim"):
            yield claim["claimName"]


async def pods_that_mount(client: Caller, storage: str) -> list[str]:
    pods = await client.all(Pod, UNITS)
    return [pod["metadata"]["name"] for pod in pods if storage in _claims_of(pod)]


@asynccontextmanager
async def watched(client: Caller) -> AsyncIterator[Mounted]:
    """Whoever leaves has seen that no two units' pods mounted one claim."""
    mounted = Mounted()

    async def watch(kind: Any, take_note: Callable[[str, Object], None]) -> None:
        async for event, found in client.kube.watch(kind, namespace=UNITS):
            take_note(event, as_dict(found))

    watching = [
        asyncio.create_task(watch(Pod, mounted.take_note_of_pod)),
        asyncio.create_task(watch(STORAGE, mounted.take_note_of_storage)),
    ]
    try:
        yield mounted
        assert not any(each.done() for each in watching), "nobody was watching"
        assert mounted.shared == []
    finally:
        for each in watching:
            each.cancel()


async def manager_killed(client: Caller) -> None:
    """Killed, and its lease run out at once."""
    client.platform.manager.end()
    await asyncio.to_thread(client.platform.plane.kubectl, "delete", *LEASE, "--ignore-not-found")


async def manager_started(client: Caller) -> None:
    manager = client.platform.manager.start()
    await asyncio.to_thread(lambda: manager.wait_ready().wait_leading())
