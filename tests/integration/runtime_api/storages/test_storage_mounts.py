"""A storage is attached to one unit only, before the unit mounts it."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import BeingDeleted, Gone, Invalid, NoStock, StorageInUse
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.storages.conftest import (
    OPERATION,
    STORAGE,
    UNIT,
    Object,
    StartStorageReplica,
    StorageCluster,
    StorageReplica,
)

PROTECTED = {"metadata": {"finalizers": ["runtime.lokiwager.io/storage-protection"]}}
UNPROTECTED: Object = {"metadata": {"finalizers": None}}


def mounting(*storages: str) -> list[Object]:
    return [{"name": name, "mountPath": f"/{name}"} for name in storages]


def create_request(*storages: str, name: str = "web") -> CreateUnit:
    fields = {"operationID": f"make-{name}", "name": name, "specName": "g1.1", "image": "python"}
    return msgspec.convert({**fields, "storageMounts": mounting(*storages)}, CreateUnit)


def update(*storages: str, **body: Any) -> UpdateUnit:
    return msgspec.convert({"storageMounts": mounting(*storages), **body}, UpdateUnit)


async def create_stock(cluster: StorageCluster, replica: StorageReplica, *names: str) -> None:
    cluster.create_stock(*names)
    store, stock = replica.informers.units.store, cluster.namespaces.stock

    def is_ready(name: str) -> bool:
        unit = store.get(ObjectKey(stock, name))
        return unit is not None and unit.status.phase == "Ready"

    await eventually(lambda: all(map(is_ready, names)), "the stock is cached")


async def test_created_unit_attaches_its_storages(replica: StorageReplica, cluster: StorageCluster) -> None:
    await create_stock(cluster, replica, "s")
    for name in ("b", "a", "spare"):
        cluster.create_storage(name)
    unit, first = await replica.create_unit(create_request("b", "a"))
    assert first
    assert [mount.name for mount in unit.spec.storage_mounts] == ["b", "a"]
    assert [cluster.attached_unit(name) for name in ("a", "b", "spare")] == ["web", "web", None]
    assert (await replica.create_unit(create_request("b", "a")))[1] is False


async def test_missing_storage_is_reported_without_an_operation(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    with pytest.raises(Invalid) as raised:
        await replica.create_unit(create_request("a", "none"))
    assert [error.path for error in raised.value.errors] == ["storageMounts[1].name"]
    assert "storage none does not exist" in raised.value.message
    assert (cluster.list_objects(OPERATION), cluster.list_objects(UNIT), cluster.attached_unit("a")) == ([], [], None)
    cluster.create_storage("none")
    assert (await replica.create_unit(create_request("a", "none")))[1], (
        "the same request must succeed after the storage exists"
    )


async def test_storage_missing_in_the_cache_can_be_mounted(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    one, other = await start_replica(), await start_replica()
    await create_stock(cluster, other, "s")
    other.informers.storages.store.replace([], [])
    cluster.create_storage("a")
    assert (await other.create_unit(create_request("a")))[1]
    assert (await one.units.get("", "web")).spec.storage_mounts


async def test_replay_of_a_create_whose_storage_was_deleted_returns_the_unit(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    await replica.create_unit(create_request("a"))
    cluster.delete(STORAGE, "a")
    store = replica.informers.storages.store
    await eventually(lambda: store.get(ObjectKey(cluster.namespace, "a")) is None, "the storage is deleted")
    assert (await replica.create_unit(create_request("a")))[1] is False
    await replica.units.delete("", "web")
    with pytest.raises(Gone):
        await replica.create_unit(create_request("a"))
    assert cluster.is_deleted(STORAGE, "a")


async def test_storage_that_is_being_deleted_is_not_attached(replica: StorageReplica, cluster: StorageCluster) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    cluster.patch(STORAGE, "a", PROTECTED)
    cluster.delete(STORAGE, "a")
    cluster.create(UNIT, "manual", {"specName": "g1.1", "image": "python"})
    with pytest.raises(BeingDeleted, match="storage a is being deleted"):
        await replica.create_unit(create_request("a"))
    with pytest.raises(BeingDeleted, match="storage a is being deleted"):
        await replica.units.update("", "manual", update("a"))
    assert (cluster.attached_unit("a"), cluster.remaining_stock()) == (None, ["s"])
    cluster.patch(STORAGE, "a", UNPROTECTED)


async def test_second_unit_is_rejected_until_the_storage_is_detached(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await create_stock(cluster, replica, "s", "t")
    cluster.create_storage("a")
    await replica.create_unit(create_request("a"))
    with pytest.raises(StorageInUse, match="storage a is attached to unit web; only one unit at a time can mount it"):
        await replica.create_unit(create_request("a", name="other"))
    await eventually(lambda: len(cluster.remaining_stock()) == 1, "the consumed stock is deleted")
    await replica.units.delete("", "web")
    with pytest.raises(StorageInUse):  # its pod may still exist
        await replica.create_unit(create_request("a", name="other"))
    cluster.patch(
        STORAGE, "a", {"spec": {"attachedTo": None}}
    )  # as the controller manager does after the pod is deleted
    assert (await replica.create_unit(create_request("a", name="other")))[1], "the same request must succeed later"
    assert cluster.attached_unit("a") == "other"


async def test_create_without_all_storages_attaches_none(replica: StorageReplica, cluster: StorageCluster) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    cluster.create_storage("b", attachedTo={"unit": "other"})
    with pytest.raises(StorageInUse):
        await replica.create_unit(create_request("a", "b"))
    assert (cluster.attached_unit("a"), cluster.remaining_stock()) == (None, ["s"])


async def test_create_that_loses_its_second_storage_releases_the_first(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    """The cache is stale: it shows a storage as free that is attached to another unit."""
    await create_stock(cluster, replica, "s")
    for name in ("a", "b"):
        cluster.create_storage(name)
    store = replica.informers.storages.store
    await eventually(lambda: store.get(ObjectKey(cluster.namespace, "b")) is not None, "b is cached as free")
    free = store.get(ObjectKey(cluster.namespace, "b"))
    assert free
    cluster.patch(STORAGE, "b", {"spec": {"attachedTo": {"unit": "other"}}})
    await eventually(lambda: store.get(ObjectKey(cluster.namespace, "b")) != free, "b is cached as attached")
    # Restore the stale state of the cache.
    store.remove(free.metadata.key, free.metadata.uid)
    store.put(free)
    with pytest.raises(StorageInUse, match="storage b is attached to unit other"):
        await replica.create_unit(create_request("a", "b"))
    assert [cluster.attached_unit(name) for name in ("a", "b")] == [None, "other"]
    assert cluster.remaining_stock() == ["s"]
    assert not cluster.list_objects(UNIT)


async def test_create_that_waits_for_stock_attaches_nothing(replica: StorageReplica, cluster: StorageCluster) -> None:
    cluster.create_storage("a")
    with pytest.raises(NoStock):
        await replica.create_unit(create_request("a"))
    assert cluster.attached_unit("a") is None
    await create_stock(cluster, replica, "s")
    assert (await replica.create_unit(create_request("a")))[1]
    assert cluster.attached_unit("a") == "web"


async def test_update_attaches_added_storages_and_does_not_release_dropped_ones(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    cluster.create(UNIT, "web", {"specName": "g1.1", "image": "python"})
    for name in ("a", "b"):
        cluster.create_storage(name)
    await replica.units.update("", "web", update("a"))
    assert (cluster.attached_unit("a"), cluster.attached_unit("b")) == ("web", None)
    written = await replica.units.update("", "web", update("b"))
    assert [mount.name for mount in written.spec.storage_mounts] == ["b"]
    assert (cluster.attached_unit("a"), cluster.attached_unit("b")) == ("web", "web"), "the pod still mounts a"


async def test_update_without_all_storages_attaches_none(replica: StorageReplica, cluster: StorageCluster) -> None:
    before = cluster.create(UNIT, "web", {"specName": "g1.1", "image": "python"})
    cluster.create_storage("a")
    cluster.create_storage("b", attachedTo={"unit": "other"})
    with pytest.raises(StorageInUse, match="storage b is attached to unit other"):
        await replica.units.update("", "web", update("a", "b", image="new"))
    with pytest.raises(Invalid, match=r"storageMounts\[1\].name: storage none does not exist"):
        await replica.units.update("", "web", update("a", "none", image="new"))
    assert cluster.attached_unit("a") is None
    assert cluster.get(UNIT, "web") == before


async def test_update_of_a_missing_unit_attaches_nothing(replica: StorageReplica, cluster: StorageCluster) -> None:
    cluster.create_storage("a")
    with pytest.raises(Exception, match="unit 'web' does not exist"):
        await replica.units.update("", "web", update("a"))
    assert cluster.attached_unit("a") is None


async def test_one_of_two_concurrent_updates_attaches_the_storage(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    replicas = [await start_replica(idle=True) for _ in range(2)]
    for name in ("one", "other"):
        cluster.create(UNIT, name, {"specName": "g1.1", "image": "python"})
    for number in range(10):
        storage = f"data-{number}"
        cluster.create_storage(storage)
        outcomes = await asyncio.gather(
            replicas[0].units.update("", "one", update(storage)),
            replicas[1].units.update("", "other", update(storage)),
            return_exceptions=True,
        )
        rejections = [outcome for outcome in outcomes if isinstance(outcome, StorageInUse)]
        assert len(rejections) == 1, outcomes
        winner = next(outcome for outcome in outcomes if not isinstance(outcome, BaseException))
        assert cluster.attached_unit(storage) == winner.metadata.name
