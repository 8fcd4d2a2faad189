"""The storage service on a real API server, with several replicas and other concurrent writers."""

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.contract.crd.conditions import StoragePhase
from gpu_runtime.contract.errors import AlreadyExists, BeingDeleted, Invalid, NotFound, StorageInUse, Unavailable
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

ATTACHED = {"spec": {"attachedTo": {"unit": "web"}}}
PROTECTED = {"metadata": {"finalizers": ["runtime.lokiwager.io/storage-protection"]}}
UNPROTECTED: Object = {"metadata": {"finalizers": None}}


class NoWrites:
    """A write fence that rejects every write."""

    def remaining(self) -> float:
        return 0


def read_only(replica: StorageReplica) -> Any:
    return replace(replica.storages, client=replica.client.fenced(NoWrites()))


def storage_request(**changes: Any) -> CreateStorage:
    return CreateStorage(**({"name": "data", "size": "1Gi"} | changes))


async def wait_cached(replica: StorageReplica, cluster: StorageCluster, *names: str) -> None:
    store = replica.informers.storages.store
    await eventually(
        lambda: all(store.get(ObjectKey(cluster.namespace, name)) for name in names), f"{names} are cached"
    )


async def test_storage_is_created_once_and_its_replay_returns_it(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    one, other = await start_replica(), await start_replica(idle=True)
    created, first = await one.storages.create(storage_request())
    assert first
    assert (created.spec.size, created.spec.storage_class_name) == ("1Gi", "rook-ceph-block")
    for size in ("1Gi", "1024Mi", "1073741824"):
        replayed, first = await other.storages.create(storage_request(size=size))
        assert (replayed.metadata.uid, first) == (created.metadata.uid, False)
    assert (await one.storages.get("", "data")).metadata.uid == created.metadata.uid


@pytest.mark.parametrize("other", [{"size": "2Gi"}, {"storage_class_name": "fast"}])
async def test_other_request_with_the_same_name_is_rejected(
    replica: StorageReplica, cluster: StorageCluster, other: Object
) -> None:
    await replica.storages.create(storage_request())
    before = cluster.get(STORAGE, "data")
    with pytest.raises(AlreadyExists, match="name: another storage data already exists"):
        await replica.storages.create(storage_request(**other))
    assert cluster.get(STORAGE, "data") == before


async def test_replay_after_growth_is_still_the_same_request(replica: StorageReplica) -> None:
    await replica.storages.create(storage_request())
    await replica.storages.update("", "data", UpdateStorage(size="3Gi"))
    replayed, first = await replica.storages.create(storage_request())
    assert (replayed.spec.size, first) == ("3Gi", False)
    with pytest.raises(AlreadyExists):  # a create with the new size is another request
        await replica.storages.create(storage_request(size="3Gi"))


@pytest.mark.parametrize(("size", "is_same"), [("1Gi", True), ("1024Mi", True), ("2Gi", False)])
async def test_storage_created_with_kubectl_is_a_replay_if_equivalent(
    stale_replica: StorageReplica, cluster: StorageCluster, size: str, is_same: bool
) -> None:
    cluster.create_storage("data", size=size)
    if is_same:
        assert (await stale_replica.storages.create(storage_request()))[1] is False
        return
    with pytest.raises(AlreadyExists, match="another storage data"):
        await stale_replica.storages.create(storage_request())


async def test_concurrent_creates_on_replicas_create_one_storage(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    replicas = [await start_replica(idle=True) for _ in range(3)]
    for number in range(10):
        request = storage_request(name=f"data-{number}", size="1Gi")
        results = await asyncio.gather(*(replica.storages.create(request) for replica in replicas))
        assert sorted(first for _, first in results) == [False, False, True]
        assert len({storage.metadata.uid for storage, _ in results}) == 1


async def test_one_of_two_concurrent_different_creates_is_rejected(start_replica: StartStorageReplica) -> None:
    one, other = await start_replica(idle=True), await start_replica(idle=True)
    for number in range(10):
        outcomes = await asyncio.gather(
            one.storages.create(storage_request(name=f"data-{number}")),
            other.storages.create(storage_request(name=f"data-{number}", size="2Gi")),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes if isinstance(each, BaseException)] == [AlreadyExists]


async def test_new_storage_is_readable_on_another_replica(start_replica: StartStorageReplica) -> None:
    one, other = await start_replica(), await start_replica(idle=True)
    created, _ = await one.storages.create(storage_request())
    assert (await other.storages.get("", "data")).metadata.uid == created.metadata.uid
    with pytest.raises(NotFound, match="storage none does not exist"):
        await other.storages.get("", "none")


@pytest.mark.parametrize("name", ["Not_A_Name", ".", "..", "a/b", "a" * 64, ""])
async def test_invalid_storage_name_is_not_found(stale_replica: StorageReplica, name: str) -> None:
    with pytest.raises(NotFound, match=f"storage {re.escape(name)} does not exist"):
        await stale_replica.storages.get("", name)


async def test_namespace_that_is_not_allowed_is_rejected_by_every_method(
    stale_replica: StorageReplica, cluster: StorageCluster
) -> None:
    message = "namespace: 'default' is not allowed for storages"
    for call in (
        stale_replica.storages.create(storage_request(namespace="default")),
        stale_replica.storages.get("default", "data"),
        stale_replica.storages.update("default", "data", UpdateStorage(size="2Gi")),
        stale_replica.storages.delete("default", "data"),
    ):
        with pytest.raises(Invalid, match=message):
            await call
    with pytest.raises(Invalid, match=message):
        stale_replica.storages.list(ListStorages(namespace="default"))


async def test_create_in_a_missing_namespace_fails(stale_replica: StorageReplica) -> None:
    with pytest.raises(Exception, match="elsewhere") as raised:
        await stale_replica.storages.create(storage_request(namespace="elsewhere"))
    assert "not found" in str(raised.value)


async def test_storage_list_has_pages_and_filters(replica: StorageReplica, cluster: StorageCluster) -> None:
    names = [f"data-{number}" for number in range(5)]
    for name in names:
        cluster.create_storage(name)
    cluster.patch(STORAGE, "data-1", ATTACHED)
    cluster.patch_storage_status("data-2", phase="Ready")
    await wait_cached(replica, cluster, *names)
    await eventually(lambda: len(replica.storages.list(ListStorages(mounted=True))[0]) == 1, "one storage is attached")
    await eventually(
        lambda: replica.storages.list(ListStorages(phase=StoragePhase.READY))[0] != [], "one storage is Ready"
    )
    pages, after = [], ""
    while True:
        page, continuation = replica.storages.list(ListStorages(limit=2, after=after))
        pages.append([each.metadata.name for each in page])
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
    with pytest.raises(Unavailable, match="still loading"):
        stale_replica.storages.list(ListStorages())


async def test_resize_changes_only_the_size(replica: StorageReplica, cluster: StorageCluster) -> None:
    before = cluster.create_storage(
        "data", attachedTo={"unit": "web", "operationID": "make-web", "operationUID": "u", "attempt": 1}
    )
    cluster.patch_storage_status("data", phase="Ready", capacity="1Gi")
    written = await replica.storages.update("", "data", UpdateStorage(size="2048Mi"))
    after = cluster.get(STORAGE, "data")
    assert after["spec"] == before["spec"] | {"size": "2Gi"}
    assert (after["status"]["phase"], after["status"]["capacity"]) == ("Ready", "1Gi")
    assert (await replica.storages.get("", "data")) == written


@pytest.mark.parametrize("size", ["1023Mi", "1G", "", "many"])
async def test_smaller_or_invalid_size_is_rejected_without_a_write(
    stale_replica: StorageReplica, cluster: StorageCluster, size: str
) -> None:
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
    stopping = asyncio.Event()

    async def write_status() -> int:
        number = 0
        while not stopping.is_set():
            number += 1
            await asyncio.to_thread(cluster.patch_storage_status, "data", capacity=f"{number}Gi")
        return number

    status_writes = asyncio.create_task(write_status())
    for size in range(2, 8):
        written = await stale_replica.storages.update("", "data", UpdateStorage(size=f"{size}Gi"))
        assert written.spec.size == f"{size}Gi"
    stopping.set()
    assert await status_writes > 6
    assert cluster.get(STORAGE, "data")["spec"]["size"] == "7Gi"


async def test_concurrent_updates_end_with_the_largest_size(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    cluster.create_storage("data")
    replicas = [await start_replica(idle=True) for _ in range(3)]
    sizes = [f"{size}Gi" for size in range(2, 14)]
    outcomes = await asyncio.gather(
        *(replicas[n % 3].storages.update("", "data", UpdateStorage(size=size)) for n, size in enumerate(sizes)),
        return_exceptions=True,
    )
    assert {type(each) for each in outcomes if isinstance(each, BaseException)} <= {Invalid}
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
    assert (await replica.storages.create(storage_request()))[1], "the name must be available again"


async def test_delete_of_an_attached_storage_is_rejected(replica: StorageReplica, cluster: StorageCluster) -> None:
    cluster.create_storage("data")
    await wait_cached(replica, cluster, "data")
    cluster.patch(STORAGE, "data", ATTACHED)  # the cache may be stale
    with pytest.raises(
        StorageInUse, match="storage data is attached to unit web; delete the unit or remove the mount first"
    ):
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
    with pytest.raises(BeingDeleted, match="storage data is being deleted"):
        await stale_replica.storages.update("", "data", UpdateStorage(size="2Gi"))
    with pytest.raises(BeingDeleted, match="name: storage data is being deleted; choose another name, or wait"):
        await stale_replica.storages.create(storage_request())
    assert cluster.get(STORAGE, "data") == before
    cluster.patch(STORAGE, "data", UNPROTECTED)


async def test_delete_is_conditional_on_the_resource_version(
    stale_replica: StorageReplica, cluster: StorageCluster
) -> None:
    """Another replica attaches the storage between the read and the delete."""
    cluster.create_storage("data")

    class AttachBeforeDelete(type(stale_replica.client)):  # type: ignore[misc]
        async def delete(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.to_thread(cluster.patch, STORAGE, "data", ATTACHED)
            return await super().delete(*args, **kwargs)

    client = AttachBeforeDelete(stale_replica.client._transport, field_manager="test")
    with pytest.raises(StorageInUse):
        await replace(stale_replica.storages, client=client).delete("", "data")
    assert "deletionTimestamp" not in cluster.get(STORAGE, "data")["metadata"]
