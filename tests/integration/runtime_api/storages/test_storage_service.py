"""What callers do with storages holds on the real API server, for several replicas, whoever else writes."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.contract.crd.conditions import StoragePhase
from gpu_runtime.contract.errors import Conflict, Invalid, NotFound, StorageInUse, Unavailable
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, UpdateStorage
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.storages.conftest import (
    STORAGE,
    Object,
    StartStorageReplica,
    StorageCluster,
    StorageReplica,
)

HELD = {"spec": {"attachedTo": {"unit": "web"}}}
PROTECTED = {"metadata": {"finalizers": ["runtime.lokiwager.io/storage-protection"]}}
UNPROTECTED: Object = {"metadata": {"finalizers": None}}


class NoWrites:
    """A fence that no write passes."""

    def remaining(self) -> float:
        return 0


def read_only(replica: StorageReplica) -> Any:
    return replace(replica.storages, client=replica.client.fenced(NoWrites()))


def storage_request(**changes: Any) -> CreateStorage:
    return CreateStorage(**({"name": "data", "size": "1Gi"} | changes))


async def wait_cached(replica: StorageReplica, cluster: StorageCluster, *names: str) -> None:
    store = replica.caches.storages.store
    await eventually(lambda: all(store.get(ObjectKey(cluster.namespace, name)) for name in names), f"{names} are known")


async def test_storage_is_created_once_and_its_replay_returns_it(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    one, other = await start_replica(), await start_replica(idle=True)
    made, first = await one.storages.create(storage_request())
    assert first
    assert (made.spec.size, made.spec.storage_class_name) == ("1Gi", "rook-ceph-block")
    for spelling in ("1Gi", "1024Mi", "1073741824"):
        found, first = await other.storages.create(storage_request(size=spelling))
        assert (found.metadata.uid, first) == (made.metadata.uid, False)
    assert (await one.storages.get("", "data")).metadata.uid == made.metadata.uid


@pytest.mark.parametrize("other", [{"size": "2Gi"}, {"storage_class_name": "fast"}])
async def test_other_request_with_the_same_name_is_a_conflict(
    replica: StorageReplica, cluster: StorageCluster, other: Object
) -> None:
    await replica.storages.create(storage_request())
    before = cluster.get(STORAGE, "data")
    with pytest.raises(Conflict, match="name: there is already another storage data"):
        await replica.storages.create(storage_request(**other))
    assert cluster.get(STORAGE, "data") == before


async def test_replay_after_growth_is_still_the_same_request(replica: StorageReplica) -> None:
    await replica.storages.create(storage_request())
    await replica.storages.update("", "data", UpdateStorage(size="3Gi"))
    found, first = await replica.storages.create(storage_request())
    assert (found.spec.size, first) == ("3Gi", False)
    with pytest.raises(Conflict):  # nobody has asked for this one yet
        await replica.storages.create(storage_request(size="3Gi"))


@pytest.mark.parametrize(("size", "is_same"), [("1Gi", True), ("1024Mi", True), ("2Gi", False)])
async def test_storage_created_with_kubectl_is_a_replay_if_equivalent(
    stale_replica: StorageReplica, cluster: StorageCluster, size: str, is_same: bool
) -> None:
    cluster.create_storage("data", size=size)
    if is_same:
        assert (await stale_replica.storages.create(storage_request()))[1] is False
        return
    with pytest.raises(Conflict, match="another storage data"):
        await stale_replica.storages.create(storage_request())


async def test_concurrent_creates_on_replicas_create_one_storage(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    there = [await start_replica(idle=True) for _ in range(3)]
    for number in range(10):
        asked = [storage_request(name=f"data-{number}", size="1Gi") for _ in there]
        answers = await asyncio.gather(*(each.storages.create(one) for each, one in zip(there, asked, strict=True)))
        assert sorted(first for _, first in answers) == [False, False, True]
        assert len({made.metadata.uid for made, _ in answers}) == 1


async def test_one_of_two_concurrent_different_creates_is_rejected(start_replica: StartStorageReplica) -> None:
    one, other = await start_replica(idle=True), await start_replica(idle=True)
    for number in range(10):
        answers = await asyncio.gather(
            one.storages.create(storage_request(name=f"data-{number}")),
            other.storages.create(storage_request(name=f"data-{number}", size="2Gi")),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [Conflict]


async def test_new_storage_is_readable_on_another_replica(start_replica: StartStorageReplica) -> None:
    one, other = await start_replica(), await start_replica(idle=True)
    made, _ = await one.storages.create(storage_request())
    assert (await other.storages.get("", "data")).metadata.uid == made.metadata.uid
    with pytest.raises(NotFound, match="there is no storage none"):
        await other.storages.get("", "none")


@pytest.mark.parametrize("name", ["Not_A_Name", ".", "..", "a/b", "a" * 64, ""])
async def test_invalid_storage_name_is_not_found(stale_replica: StorageReplica, name: str) -> None:
    with pytest.raises(NotFound, match="there is no storage"):
        await stale_replica.storages.get("", name)


async def test_other_namespaces_are_refused_everywhere(stale_replica: StorageReplica, cluster: StorageCluster) -> None:
    said = "namespace: 'default' holds no storages here"
    for refused in (
        stale_replica.storages.create(storage_request(namespace="default")),
        stale_replica.storages.get("default", "data"),
        stale_replica.storages.update("default", "data", UpdateStorage(size="2Gi")),
        stale_replica.storages.delete("default", "data"),
    ):
        with pytest.raises(Invalid, match=said):
            await refused
    with pytest.raises(Invalid, match=said):
        stale_replica.storages.list(ListStorages(namespace="default"))


async def test_create_in_a_missing_namespace_fails(stale_replica: StorageReplica) -> None:
    with pytest.raises(Exception, match="elsewhere") as refused:
        await stale_replica.storages.create(storage_request(namespace="elsewhere"))
    assert "not found" in str(refused.value)


async def test_storage_list_has_pages_and_filters(replica: StorageReplica, cluster: StorageCluster) -> None:
    names = [f"data-{number}" for number in range(5)]
    for name in names:
        cluster.create_storage(name)
    cluster.patch(STORAGE, "data-1", HELD)
    cluster.patch_storage_status("data-2", phase="Ready")
    await wait_cached(replica, cluster, *names)
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


async def test_list_before_the_cache_synced_is_unavailable(stale_replica: StorageReplica) -> None:
    with pytest.raises(Unavailable, match="still being read"):
        stale_replica.storages.list(ListStorages())


async def test_a_storage_grows_and_everything_else_stays(replica: StorageReplica, cluster: StorageCluster) -> None:
    before = cluster.create_storage("data", attachedTo={"unit": "web", "operationID": "make-web", "attempt": 1})
    cluster.patch_storage_status("data", phase="Ready", capacity="1Gi")
    written = await replica.storages.update("", "data", UpdateStorage(size="2048Mi"))
    after = cluster.get(STORAGE, "data")
    assert after["spec"] == before["spec"] | {"size": "2Gi"}
    assert (after["status"]["phase"], after["status"]["capacity"]) == ("Ready", "1Gi")
    assert (await replica.storages.get("", "data")) == written


@pytest.mark.parametrize("size", ["1023Mi", "1G", "", "many"])
async def test_a_storage_does_not_shrink(stale_replica: StorageReplica, cluster: StorageCluster, size: str) -> None:
    before = cluster.create_storage("data")
    with pytest.raises(Invalid, match="size: "):
        await stale_replica.storages.update("", "data", UpdateStorage(size=size))
    assert cluster.get(STORAGE, "data") == before


async def test_update_to_the_current_size_writes_nothing(
    stale_replica: StorageReplica, cluster: StorageCluster
) -> None:
    before = cluster.create_storage("data", size="1024Mi")
    for size in ("1Gi", "1024Mi", "1073741824"):
        await read_only(stale_replica).update("", "data", UpdateStorage(size=size))
    assert cluster.get(STORAGE, "data") == before


async def test_update_succeeds_despite_concurrent_status_writes(
    stale_replica: StorageReplica, cluster: StorageCluster
) -> None:
    cluster.create_storage("data")
    over = asyncio.Event()

    async def report() -> int:
        number = 0
        while not over.is_set():
            number += 1
            await asyncio.to_thread(cluster.patch_storage_status, "data", capacity=f"{number}Gi")
        return number

    reports = asyncio.create_task(report())
    for size in range(2, 8):
        written = await stale_replica.storages.update("", "data", UpdateStorage(size=f"{size}Gi"))
        assert written.spec.size == f"{size}Gi"
    over.set()
    assert await reports > 6
    assert cluster.get(STORAGE, "data")["spec"]["size"] == "7Gi"


async def test_concurrent_updates_end_with_the_largest_size(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    cluster.create_storage("data")
    there = [await start_replica(idle=True) for _ in range(3)]
    sizes = [f"{size}Gi" for size in range(2, 14)]
    answers = await asyncio.gather(
        *(there[n % 3].storages.update("", "data", UpdateStorage(size=size)) for n, size in enumerate(sizes)),
        return_exceptions=True,
    )
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} <= {Invalid}
    assert cluster.get(STORAGE, "data")["spec"]["size"] == "13Gi"


async def test_update_and_delete_of_a_missing_storage_are_404(stale_replica: StorageReplica) -> None:
    with pytest.raises(NotFound):
        await stale_replica.storages.update("", "none", UpdateStorage(size="1Gi"))
    with pytest.raises(NotFound):
        await stale_replica.storages.delete("", "none")


async def test_delete_of_a_free_storage_succeeds_and_the_next_is_404(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await replica.storages.create(storage_request())
    await replica.storages.delete("", "data")
    assert cluster.is_deleted(STORAGE, "data")
    with pytest.raises(NotFound):
        await replica.storages.delete("", "data")
    assert (await replica.storages.create(storage_request()))[1], "its name is free again"


async def test_delete_of_an_attached_storage_is_rejected(replica: StorageReplica, cluster: StorageCluster) -> None:
    cluster.create_storage("data")
    await wait_cached(replica, cluster, "data")
    cluster.patch(STORAGE, "data", HELD)  # and the cache may not know it yet
    with pytest.raises(StorageInUse, match="storage data is mounted by unit web; delete that unit, or take the mount"):
        await replica.storages.delete("", "data")
    assert "deletionTimestamp" not in cluster.get(STORAGE, "data")["metadata"]
    cluster.patch(STORAGE, "data", {"spec": {"attachedTo": None}})
    await replica.storages.delete("", "data")
    assert cluster.is_deleted(STORAGE, "data")


async def test_terminating_storage_is_shown_and_not_updated(
    stale_replica: StorageReplica, cluster: StorageCluster
) -> None:
    cluster.create_storage("data")
    cluster.patch(STORAGE, "data", PROTECTED)
    await stale_replica.storages.delete("", "data")
    before = cluster.get(STORAGE, "data")
    await read_only(stale_replica).delete("", "data")
    assert (await stale_replica.storages.get("", "data")).metadata.deletion_timestamp
    with pytest.raises(Conflict, match="storage data is being deleted"):
        await stale_replica.storages.update("", "data", UpdateStorage(size="2Gi"))
    with pytest.raises(Conflict, match="name: storage data is being deleted; choose another name, or wait"):
        await stale_replica.storages.create(storage_request())
    assert cluster.get(STORAGE, "data") == before
    cluster.patch(STORAGE, "data", UNPROTECTED)


async def test_delete_is_conditional_on_the_resource_version(
    stale_replica: StorageReplica, cluster: StorageCluster
) -> None:
    """Somebody attaches it between the look and the delete."""
    cluster.create_storage("data")

    class Attaching(type(stale_replica.client)):  # type: ignore[misc]
        async def delete(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.to_thread(cluster.patch, STORAGE, "data", HELD)
            return await super().delete(*args, **kwargs)

    attaching = Attaching(stale_replica.client._transport, field_manager="test")
    with pytest.raises(StorageInUse):
        await replace(stale_replica.storages, client=attaching).delete("", "data")
    assert "deletionTimestamp" not in cluster.get(STORAGE, "data")["metadata"]
