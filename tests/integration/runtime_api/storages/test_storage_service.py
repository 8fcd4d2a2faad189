"""What callers do with storages holds on the real API server, for several replicas, whoever else writes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.contract.crd.conditions import StoragePhase
from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, StorageInUse, Unavailable
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, UpdateStorage
from tests.integration.kube.waiting import eventually
from tests.integration.runtime_api.storages.conftest import STORAGE, Cluster, Object, Replica, Replicas

HELD = {"spec": {"attachedTo": {"unit": "web"}}}
PROTECTED = {"metadata": {"finalizers": ["runtime.lokiwager.io/storage-protection"]}}
UNPROTECTED: Object = {"metadata": {"finalizers": None}}


class NoWrites:
    """A fence that no write passes."""

    def remaining(self) -> float:
        return 0


def read_only(replica: Replica) -> Any:
    return replace(replica.storages, client=replica.client.fenced(NoWrites()))


def data(**changes: Any) -> CreateStorage:
    return CreateStorage(**({"name": "data", "size": "1Gi"} | changes))


async def known(replica: Replica, cluster: Cluster, *names: str) -> None:
    store = replica.caches.storages.store
    await eventually(lambda: all(store.get(Key(cluster.namespace, name)) for name in names), f"{names} are known")


async def test_a_storage_is_made_once_and_the_same_request_finds_it(replicas: Replicas, cluster: Cluster) -> None:
    one, other = await replicas(), await replicas(idle=True)
    made, first = await one.storages.create(data())
    assert first
    assert (made.spec.size, made.spec.storage_class_name) == ("1Gi", "rook-ceph-block")
    for spelling in ("1Gi", "1024Mi", "1073741824"):
        found, first = await other.storages.create(data(size=spelling))
        assert (found.metadata.uid, first) == (made.metadata.uid, False)
    assert (await one.storages.get("", "data")).metadata.uid == made.metadata.uid


@pytest.mark.parametrize("other", [{"size": "2Gi"}, {"storage_class_name": "fast"}])
async def test_another_request_of_the_name_is_a_conflict(replica: Replica, cluster: Cluster, other: Object) -> None:
    await replica.storages.create(data())
    before = cluster.look(STORAGE, "data")
    with pytest.raises(Conflict, match="name: there is already another storage data"):
        await replica.storages.create(data(**other))
    assert cluster.look(STORAGE, "data") == before


async def test_the_first_request_is_still_the_same_after_growth(replica: Replica) -> None:
    await replica.storages.create(data())
    await replica.storages.update("", "data", UpdateStorage(size="3Gi"))
    found, first = await replica.storages.create(data())
    assert (found.spec.size, first) == ("3Gi", False)
    with pytest.raises(Conflict):  # nobody has asked for this one yet
        await replica.storages.create(data(size="3Gi"))


@pytest.mark.parametrize(("size", "is_same"), [("1Gi", True), ("1024Mi", True), ("2Gi", False)])
async def test_a_storage_made_by_hand_is_the_one_that_is_asked_for_if_it_is_alike(
    idle: Replica, cluster: Cluster, size: str, is_same: bool
) -> None:
    cluster.storage("data", size=size)
    if is_same:
        assert (await idle.storages.create(data()))[1] is False
        return
    with pytest.raises(Conflict, match="another storage data"):
        await idle.storages.create(data())


async def test_replicas_that_create_at_once_make_one(replicas: Replicas, cluster: Cluster) -> None:
    there = [await replicas(idle=True) for _ in range(3)]
    for number in range(10):
        asked = [data(name=f"data-{number}", size="1Gi") for _ in there]
        answers = await asyncio.gather(*(each.storages.create(one) for each, one in zip(there, asked, strict=True)))
        assert sorted(first for _, first in answers) == [False, False, True]
        assert len({made.metadata.uid for made, _ in answers}) == 1


async def test_of_two_different_requests_at_once_one_is_refused(replicas: Replicas) -> None:
    one, other = await replicas(idle=True), await replicas(idle=True)
    for number in range(10):
        answers = await asyncio.gather(
            one.storages.create(data(name=f"data-{number}")),
            other.storages.create(data(name=f"data-{number}", size="2Gi")),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [Conflict]


async def test_a_storage_can_be_read_elsewhere_at_once(replicas: Replicas) -> None:
    one, other = await replicas(), await replicas(idle=True)
    made, _ = await one.storages.create(data())
    assert (await other.storages.get("", "data")).metadata.uid == made.metadata.uid
    with pytest.raises(NotFound, match="there is no storage none"):
        await other.storages.get("", "none")


@pytest.mark.parametrize("name", ["Not_A_Name", ".", "..", "a/b", "a" * 64, ""])
async def test_what_no_storage_can_be_called_is_not_found(idle: Replica, name: str) -> None:
    with pytest.raises(NotFound, match="there is no storage"):
        await idle.storages.get("", name)


async def test_other_namespaces_are_refused_everywhere(idle: Replica, cluster: Cluster) -> None:
    said = "namespace: 'default' holds no storages here"
    for refused in (
        idle.storages.create(data(namespace="default")),
        idle.storages.get("default", "data"),
        idle.storages.update("default", "data", UpdateStorage(size="2Gi")),
        idle.storages.delete("default", "data"),
    ):
        with pytest.raises(Invalid, match=said):
            await refused
    with pytest.raises(Invalid, match=said):
        idle.storages.list(ListStorages(namespace="default"))


async def test_a_namespace_that_is_not_there_makes_nothing(idle: Replica) -> None:
    with pytest.raises(Exception, match="elsewhere") as refused:
        await idle.storages.create(data(namespace="elsewhere"))
    assert "not found" in str(refused.value)


async def test_a_list_comes_in_pages_and_only_with_what_is_asked_for(replica: Replica, cluster: Cluster) -> None:
    names = [f"data-{number}" for number in range(5)]
    for name in names:
        cluster.storage(name)
    cluster.patch(STORAGE, "data-1", HELD)
    cluster.report("data-2", phase="Ready")
    await known(replica, cluster, *names)
    await eventually(lambda: len(replica.storages.list(ListStorages(mounted=True))[0]) == 1, "one is held")
    await eventually(lambda: replica.storages.list(ListStorages(phase=StoragePhase.READY))[0] != [], "one is Ready")
    pages, after = [], ""
    while True:
        found, continuation = replica.storages.list(ListStorages(limit=2, after=after))
        pages.append([each.metadata.name for each in found])
        if continuation is None:
            break
        after = continuation
    assert pages == [names[:2], names[2:4], names[4:]]
    for query, expected in (
        (ListStorages(mounted=True), ["data-1"]),
        (ListStorages(mounted=False), ["data-0", "data-2", "data-3", "data-4"]),
        (ListStorages(phase=StoragePhase.READY), ["data-2"]),
        (ListStorages(phase=StoragePhase.PENDING, mounted=True), ["data-1"]),
        (ListStorages(namespace="elsewhere"), []),
    ):
        assert [each.metadata.name for each in replica.storages.list(query)[0]] == expected


async def test_a_replica_that_has_not_read_the_storages_gives_no_list(idle: Replica) -> None:
    with pytest.raises(Unavailable, match="still being read"):
        idle.storages.list(ListStorages())


async def test_a_storage_grows_and_everything_else_stays(replica: Replica, cluster: Cluster) -> None:
    before = cluster.storage("data", attachedTo={"unit": "web", "operationID": "make-web", "attempt": 1})
    cluster.report("data", phase="Ready", capacity="1Gi")
    written = await replica.storages.update("", "data", UpdateStorage(size="2048Mi"))
    after = cluster.look(STORAGE, "data")
    assert after["spec"] == before["spec"] | {"size": "2Gi"}
    assert (after["status"]["phase"], after["status"]["capacity"]) == ("Ready", "1Gi")
    assert (await replica.storages.get("", "data")) == written


@pytest.mark.parametrize("size", ["1023Mi", "1G", "", "many"])
async def test_a_storage_does_not_shrink(idle: Replica, cluster: Cluster, size: str) -> None:
    before = cluster.storage("data")
    with pytest.raises(Invalid, match="size: "):
        await idle.storages.update("", "data", UpdateStorage(size=size))
    assert cluster.look(STORAGE, "data") == before


async def test_an_update_to_what_it_is_writes_nothing(idle: Replica, cluster: Cluster) -> None:
    before = cluster.storage("data", size="1024Mi")
    for size in ("1Gi", "1024Mi", "1073741824"):
        await read_only(idle).update("", "data", UpdateStorage(size=size))
    assert cluster.look(STORAGE, "data") == before


async def test_an_update_wins_against_reports(idle: Replica, cluster: Cluster) -> None:
    cluster.storage("data")
    over = asyncio.Event()

    async def report() -> int:
        number = 0
        while not over.is_set():
            number += 1
            await asyncio.to_thread(cluster.report, "data", capacity=f"{number}Gi")
        return number

    reports = asyncio.create_task(report())
    for size in range(2, 8):
        written = await idle.storages.update("", "data", UpdateStorage(size=f"{size}Gi"))
        assert written.spec.size == f"{size}Gi"
    over.set()
    assert await reports > 6
    assert cluster.look(STORAGE, "data")["spec"]["size"] == "7Gi"


async def test_updates_at_once_leave_the_largest(replicas: Replicas, cluster: Cluster) -> None:
    cluster.storage("data")
    there = [await replicas(idle=True) for _ in range(3)]
    sizes = [f"{size}Gi" for size in range(2, 14)]
    answers = await asyncio.gather(
        *(there[n % 3].storages.update("", "data", UpdateStorage(size=size)) for n, size in enumerate(sizes)),
        return_exceptions=True,
    )
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} <= {Invalid}
    assert cluster.look(STORAGE, "data")["spec"]["size"] == "13Gi"


async def test_what_is_not_there_is_neither_grown_nor_deleted(idle: Replica) -> None:
    with pytest.raises(NotFound):
        await idle.storages.update("", "none", UpdateStorage(size="1Gi"))
    with pytest.raises(NotFound):
        await idle.storages.delete("", "none")


async def test_a_delete_ends_a_free_storage_and_the_next_one_finds_none(replica: Replica, cluster: Cluster) -> None:
    await replica.storages.create(data())
    await replica.storages.delete("", "data")
    assert cluster.gone(STORAGE, "data")
    with pytest.raises(NotFound):
        await replica.storages.delete("", "data")
    assert (await replica.storages.create(data()))[1], "its name is free again"


async def test_a_storage_that_a_unit_holds_is_not_deleted(replica: Replica, cluster: Cluster) -> None:
    cluster.storage("data")
    await known(replica, cluster, "data")
    cluster.patch(STORAGE, "data", HELD)  # and the cache may not know it yet
    with pytest.raises(StorageInUse, match="storage data is mounted by unit web; delete that unit, or take the mount"):
        await replica.storages.delete("", "data")
    assert "deletionTimestamp" not in cluster.look(STORAGE, "data")["metadata"]
    cluster.patch(STORAGE, "data", {"spec": {"attachedTo": None}})
    await replica.storages.delete("", "data")
    assert cluster.gone(STORAGE, "data")


async def test_a_storage_that_is_being_deleted(idle: Replica, cluster: Cluster) -> None:
    cluster.storage("data")
    cluster.patch(STORAGE, "data", PROTECTED)
    await idle.storages.delete("", "data")
    before = cluster.look(STORAGE, "data")
    await read_only(idle).delete("", "data")
    assert (await idle.storages.get("", "data")).metadata.deletion_timestamp
    with pytest.raises(Conflict, match="storage data is being deleted"):
        await idle.storages.update("", "data", UpdateStorage(size="2Gi"))
    with pytest.raises(Conflict, match="name: storage data is being deleted; choose another name, or wait"):
        await idle.storages.create(data())
    assert cluster.look(STORAGE, "data") == before
    cluster.patch(STORAGE, "data", UNPROTECTED)


async def test_a_delete_ends_only_what_it_looked_at(idle: Replica, cluster: Cluster) -> None:
    """Somebody attaches it between the look and the delete."""
    cluster.storage("data")

    class Attaching(type(idle.client)):  # type: ignore[misc]
        async def delete(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.to_thread(cluster.patch, STORAGE, "data", HELD)
            return await super().delete(*args, **kwargs)

    attaching = Attaching(idle.client._transport, field_manager="test")
    with pytest.raises(StorageInUse):
        await replace(idle.storages, client=attaching).delete("", "data")
    assert "deletionTimestamp" not in cluster.look(STORAGE, "data")["metadata"]
