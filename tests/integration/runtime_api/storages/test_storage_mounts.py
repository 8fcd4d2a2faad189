"""Units and the storages that they mount: attached before the unit names them, and to nobody else."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import Conflict, Gone, Invalid, NoStock, StorageInUse
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


def web(*storages: str, name: str = "web") -> CreateUnit:
    asked = {"operationID": f"make-{name}", "name": name, "specName": "g1.1", "image": "python"}
    return msgspec.convert({**asked, "storageMounts": mounting(*storages)}, CreateUnit)


def update(*storages: str, **body: Any) -> UpdateUnit:
    return msgspec.convert({"storageMounts": mounting(*storages), **body}, UpdateUnit)


async def create_stock(cluster: StorageCluster, replica: StorageReplica, *names: str) -> None:
    cluster.create_stock(*names)
    store, stock = replica.caches.units.store, cluster.namespaces.stock

    def is_ready(name: str) -> bool:
        found = store.get(ObjectKey(stock, name))
        return found is not None and found.status.phase == "Ready"

    await eventually(lambda: all(map(is_ready, names)), "the stock is known")


async def test_created_unit_attaches_its_storages(replica: StorageReplica, cluster: StorageCluster) -> None:
    await create_stock(cluster, replica, "s")
    for name in ("b", "a", "spare"):
        cluster.create_storage(name)
    unit, first = await replica.units.create(web("b", "a"))
    assert first
    assert [mount.name for mount in unit.spec.storage_mounts] == ["b", "a"]
    assert [cluster.attached_unit(name) for name in ("a", "b", "spare")] == ["web", "web", None]
    assert (await replica.units.create(web("b", "a")))[1] is False


async def test_missing_storage_is_reported_without_an_operation(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    with pytest.raises(Invalid) as refused:
        await replica.units.create(web("a", "none"))
    assert [problem.path for problem in refused.value.errors] == ["storageMounts[1].name"]
    assert "there is no storage none" in refused.value.message
    assert (cluster.list_objects(OPERATION), cluster.list_objects(UNIT), cluster.attached_unit("a")) == ([], [], None)
    cluster.create_storage("none")
    assert (await replica.units.create(web("a", "none")))[1], "the same request, once it is there"


async def test_storage_missing_in_the_cache_can_be_mounted(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    one, other = await start_replica(), await start_replica()
    await create_stock(cluster, other, "s")
    other.caches.storages.store.replace([], [])
    cluster.create_storage("a")
    assert (await other.units.create(web("a")))[1]
    assert (await one.units.get("", "web")).spec.storage_mounts


async def test_replay_of_a_create_whose_storage_was_deleted_returns_the_unit(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    await replica.units.create(web("a"))
    cluster.delete(STORAGE, "a")
    store = replica.caches.storages.store
    await eventually(lambda: store.get(ObjectKey(cluster.namespace, "a")) is None, "the storage is gone")
    assert (await replica.units.create(web("a")))[1] is False
    await replica.units.delete("", "web")
    with pytest.raises(Gone):
        await replica.units.create(web("a"))
    assert cluster.is_deleted(STORAGE, "a")


async def test_a_storage_that_is_being_deleted_is_not_mounted(replica: StorageReplica, cluster: StorageCluster) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    cluster.patch(STORAGE, "a", PROTECTED)
    cluster.delete(STORAGE, "a")
    cluster.create(UNIT, "by-hand", {"specName": "g1.1", "image": "python"})
    with pytest.raises(StorageInUse, match="storage a is being deleted"):
        await replica.units.create(web("a"))
    with pytest.raises(StorageInUse, match="storage a is being deleted"):
        await replica.units.update("", "by-hand", update("a"))
    assert (cluster.attached_unit("a"), cluster.remaining_stock()) == (None, ["s"])
    cluster.patch(STORAGE, "a", UNPROTECTED)


async def test_a_second_unit_is_refused_until_the_first_one_has_released_it(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    await create_stock(cluster, replica, "s", "t")
    cluster.create_storage("a")
    await replica.units.create(web("a"))
    with pytest.raises(StorageInUse, match="storage a is attached to unit web; one unit mounts it at a time"):
        await replica.units.create(web("a", name="other"))
    await eventually(lambda: len(cluster.remaining_stock()) == 1, "the consumed stock is gone")
    await replica.units.delete("", "web")
    with pytest.raises(StorageInUse):  # its pod may still be there
        await replica.units.create(web("a", name="other"))
    cluster.patch(STORAGE, "a", {"spec": {"attachedTo": None}})  # as the controller manager does when it is gone
    assert (await replica.units.create(web("a", name="other")))[1], "the same request, later"
    assert cluster.attached_unit("a") == "other"


async def test_create_without_all_storages_attaches_none(replica: StorageReplica, cluster: StorageCluster) -> None:
    await create_stock(cluster, replica, "s")
    cluster.create_storage("a")
    cluster.create_storage("b", attachedTo={"unit": "other"})
    with pytest.raises(StorageInUse):
        await replica.units.create(web("a", "b"))
    assert (cluster.attached_unit("a"), cluster.remaining_stock()) == (None, ["s"])


async def test_create_that_loses_its_second_storage_releases_the_first(
    replica: StorageReplica, cluster: StorageCluster
) -> None:
    """What the cache calls free was taken a moment ago."""
    await create_stock(cluster, replica, "s")
    for name in ("a", "b"):
        cluster.create_storage(name)
    store = replica.caches.storages.store
    await eventually(lambda: store.get(ObjectKey(cluster.namespace, "b")) is not None, "b is known as free")
    free = store.get(ObjectKey(cluster.namespace, "b"))
    assert free
    cluster.patch(STORAGE, "b", {"spec": {"attachedTo": {"unit": "other"}}})
    await eventually(lambda: store.get(ObjectKey(cluster.namespace, "b")) != free, "b is known as taken")
    # The cache as it was a moment before.
    store.remove(free.metadata.key, free.metadata.uid)
    store.put(free)
    with pytest.raises(StorageInUse, match="storage b is attached to unit other"):
        await replica.units.create(web("a", "b"))
    assert [cluster.attached_unit(name) for name in ("a", "b")] == [None, "other"]
    assert cluster.remaining_stock() == ["s"]
    assert not cluster.list_objects(UNIT)


async def test_create_that_waits_for_stock_attaches_nothing(replica: StorageReplica, cluster: StorageCluster) -> None:
    cluster.create_storage("a")
    with pytest.raises(NoStock):
        await replica.units.create(web("a"))
    assert cluster.attached_unit("a") is None
    await create_stock(cluster, replica, "s")
    assert (await replica.units.create(web("a")))[1]
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
    assert (cluster.attached_unit("a"), cluster.attached_unit("b")) == ("web", "web"), "its pod still has a mounted"


async def test_update_without_all_storages_attaches_none(replica: StorageReplica, cluster: StorageCluster) -> None:
    before = cluster.create(UNIT, "web", {"specName": "g1.1", "image": "python"})
    cluster.create_storage("a")
    cluster.create_storage("b", attachedTo={"unit": "other"})
    with pytest.raises(StorageInUse, match="storage b is attached to unit other"):
        await replica.units.update("", "web", update("a", "b", image="new"))
    with pytest.raises(Invalid, match=r"storageMounts\[1\].name: there is no storage none"):
        await replica.units.update("", "web", update("a", "none", image="new"))
    assert cluster.attached_unit("a") is None
    assert cluster.get(UNIT, "web") == before


async def test_update_of_a_missing_unit_attaches_nothing(replica: StorageReplica, cluster: StorageCluster) -> None:
    cluster.create_storage("a")
    with pytest.raises(Exception, match="there is no unit"):
        await replica.units.update("", "web", update("a"))
    assert cluster.attached_unit("a") is None


async def test_one_of_two_concurrent_updates_attaches_the_storage(
    start_replica: StartStorageReplica, cluster: StorageCluster
) -> None:
    there = [await start_replica(idle=True) for _ in range(2)]
    for name in ("one", "other"):
        cluster.create(UNIT, name, {"specName": "g1.1", "image": "python"})
    for number in range(10):
        storage = f"data-{number}"
        cluster.create_storage(storage)
        answers = await asyncio.gather(
            there[0].units.update("", "one", update(storage)),
            there[1].units.update("", "other", update(storage)),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, Conflict)]
        assert len(refused) == 1, answers
        winner = next(answer for answer in answers if not isinstance(answer, BaseException))
        assert cluster.attached_unit(storage) == winner.metadata.name
