"""Units and the storages that they mount: attached before the unit names them, and to nobody else."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.errors import Conflict, Gone, Invalid, NoStock, StorageInUse
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit
from tests.integration.kube.waiting import eventually
from tests.integration.runtime_api.storages.conftest import OPERATION, STORAGE, UNIT, Cluster, Object, Replica, Replicas

PROTECTED = {"metadata": {"finalizers": ["runtime.lokiwager.io/storage-protection"]}}
UNPROTECTED: Object = {"metadata": {"finalizers": None}}


def mounting(*storages: str) -> list[Object]:
    return [{"name": name, "mountPath": f"/{name}"} for name in storages]


def web(*storages: str, name: str = "web") -> CreateUnit:
    asked = {"operationID": f"make-{name}", "name": name, "specName": "g1.1", "image": "python"}
    return msgspec.convert({**asked, "storageMounts": mounting(*storages)}, CreateUnit)


def update(*storages: str, **body: Any) -> UpdateUnit:
    return msgspec.convert({"storageMounts": mounting(*storages), **body}, UpdateUnit)


async def stocked(cluster: Cluster, replica: Replica, *names: str) -> None:
    cluster.stock(*names)
    store, stock = replica.caches.units.store, cluster.namespaces.stock

    def is_ready(name: str) -> bool:
        found = store.get(Key(stock, name))
        return found is not None and found.status.phase == "Ready"

    await eventually(lambda: all(map(is_ready, names)), "the stock is known")


async def test_a_unit_holds_what_it_mounts(replica: Replica, cluster: Cluster) -> None:
    await stocked(cluster, replica, "s")
    for name in ("b", "a", "spare"):
        cluster.storage(name)
    unit, first = await replica.units.create(web("b", "a"))
    assert first
    assert [mount.name for mount in unit.spec.storage_mounts] == ["b", "a"]
    assert [cluster.held_by(name) for name in ("a", "b", "spare")] == ["web", "web", None]
    assert (await replica.units.create(web("b", "a")))[1] is False


async def test_a_storage_that_is_not_there_is_named_and_nothing_is_recorded(replica: Replica, cluster: Cluster) -> None:
    await stocked(cluster, replica, "s")
    cluster.storage("a")
    with pytest.raises(Invalid) as refused:
        await replica.units.create(web("a", "none"))
    assert [problem.path for problem in refused.value.problems] == ["storageMounts[1].name"]
    assert "there is no storage none" in refused.value.message
    assert (cluster.all(OPERATION), cluster.all(UNIT), cluster.held_by("a")) == ([], [], None)
    cluster.storage("none")
    assert (await replica.units.create(web("a", "none")))[1], "the same request, once it is there"


async def test_a_storage_of_another_replica_can_be_mounted_at_once(replicas: Replicas, cluster: Cluster) -> None:
    one, other = await replicas(), await replicas()
    await stocked(cluster, other, "s")
    other.caches.storages.store.replace([], [])
    cluster.storage("a")
    assert (await other.units.create(web("a")))[1]
    assert (await one.units.get("", "web")).spec.storage_mounts


async def test_the_replay_of_a_create_whose_storage_is_gone_has_its_answer(replica: Replica, cluster: Cluster) -> None:
    await stocked(cluster, replica, "s")
    cluster.storage("a")
    await replica.units.create(web("a"))
    cluster.end(STORAGE, "a")
    store = replica.caches.storages.store
    await eventually(lambda: store.get(Key(cluster.namespace, "a")) is None, "the storage is gone")
    assert (await replica.units.create(web("a")))[1] is False
    await replica.units.delete("", "web")
    with pytest.raises(Gone):
        await replica.units.create(web("a"))
    assert cluster.gone(STORAGE, "a")


async def test_a_storage_that_is_being_deleted_is_not_mounted(replica: Replica, cluster: Cluster) -> None:
    await stocked(cluster, replica, "s")
    cluster.storage("a")
    cluster.patch(STORAGE, "a", PROTECTED)
    cluster.end(STORAGE, "a")
    cluster.make(UNIT, "by-hand", {"specName": "g1.1", "image": "python"})
    with pytest.raises(StorageInUse, match="storage a is being deleted"):
        await replica.units.create(web("a"))
    with pytest.raises(StorageInUse, match="storage a is being deleted"):
        await replica.units.update("", "by-hand", update("a"))
    assert (cluster.held_by("a"), cluster.stock_left()) == (None, ["s"])
    cluster.patch(STORAGE, "a", UNPROTECTED)


async def test_a_second_unit_is_refused_until_the_first_one_has_released_it(replica: Replica, cluster: Cluster) -> None:
    await stocked(cluster, replica, "s", "t")
    cluster.storage("a")
    await replica.units.create(web("a"))
    with pytest.raises(StorageInUse, match="storage a is attached to unit web; one unit mounts it at a time"):
        await replica.units.create(web("a", name="other"))
    await eventually(lambda: len(cluster.stock_left()) == 1, "the consumed stock is gone")
    await replica.units.delete("", "web")
    with pytest.raises(StorageInUse):  # its pod may still be there
        await replica.units.create(web("a", name="other"))
    cluster.patch(STORAGE, "a", {"spec": {"attachedTo": None}})  # as the controller manager does when it is gone
    assert (await replica.units.create(web("a", name="other")))[1], "the same request, later"
    assert cluster.held_by("a") == "other"


async def test_a_create_that_cannot_have_everything_keeps_nothing(replica: Replica, cluster: Cluster) -> None:
    await stocked(cluster, replica, "s")
    cluster.storage("a")
    cluster.storage("b", attachedTo={"unit": "other"})
    with pytest.raises(StorageInUse):
        await replica.units.create(web("a", "b"))
    assert (cluster.held_by("a"), cluster.stock_left()) == (None, ["s"])


async def test_a_create_that_loses_its_second_storage_gives_the_first_back(replica: Replica, cluster: Cluster) -> None:
    """What the cache calls free was taken a moment ago."""
    await stocked(cluster, replica, "s")
    for name in ("a", "b"):
        cluster.storage(name)
    store = replica.caches.storages.store
    await eventually(lambda: store.get(Key(cluster.namespace, "b")) is not None, "b is known as free")
    free = store.get(Key(cluster.namespace, "b"))
    assert free
    cluster.patch(STORAGE, "b", {"spec": {"attachedTo": {"unit": "other"}}})
    await eventually(lambda: store.get(Key(cluster.namespace, "b")) != free, "b is known as taken")
    # The cache as it was a moment before.
    store.remove(free.metadata.key, free.metadata.uid)
    store.put(free)
    with pytest.raises(StorageInUse, match="storage b is attached to unit other"):
        await replica.units.create(web("a", "b"))
    assert [cluster.held_by(name) for name in ("a", "b")] == [None, "other"]
    assert cluster.stock_left() == ["s"]
    assert not cluster.all(UNIT)


async def test_a_create_that_waits_for_stock_holds_nothing(replica: Replica, cluster: Cluster) -> None:
    cluster.storage("a")
    with pytest.raises(NoStock):
        await replica.units.create(web("a"))
    assert cluster.held_by("a") is None
    await stocked(cluster, replica, "s")
    assert (await replica.units.create(web("a")))[1]
    assert cluster.held_by("a") == "web"


async def test_an_update_attaches_what_it_gains_and_leaves_what_it_drops_to_others(
    replica: Replica, cluster: Cluster
) -> None:
    cluster.make(UNIT, "web", {"specName": "g1.1", "image": "python"})
    for name in ("a", "b"):
        cluster.storage(name)
    await replica.units.update("", "web", update("a"))
    assert (cluster.held_by("a"), cluster.held_by("b")) == ("web", None)
    written = await replica.units.update("", "web", update("b"))
    assert [mount.name for mount in written.spec.storage_mounts] == ["b"]
    assert (cluster.held_by("a"), cluster.held_by("b")) == ("web", "web"), "its pod still has a mounted"


async def test_an_update_that_cannot_have_everything_takes_nothing(replica: Replica, cluster: Cluster) -> None:
    before = cluster.make(UNIT, "web", {"specName": "g1.1", "image": "python"})
    cluster.storage("a")
    cluster.storage("b", attachedTo={"unit": "other"})
    with pytest.raises(StorageInUse, match="storage b is attached to unit other"):
        await replica.units.update("", "web", update("a", "b", image="new"))
    with pytest.raises(Invalid, match=r"storageMounts\[1\].name: there is no storage none"):
        await replica.units.update("", "web", update("a", "none", image="new"))
    assert cluster.held_by("a") is None
    assert cluster.look(UNIT, "web") == before


async def test_an_update_of_a_unit_that_is_not_there_attaches_nothing(replica: Replica, cluster: Cluster) -> None:
    cluster.storage("a")
    with pytest.raises(Exception, match="there is no unit"):
        await replica.units.update("", "web", update("a"))
    assert cluster.held_by("a") is None


async def test_of_updates_at_once_one_unit_gets_it(replicas: Replicas, cluster: Cluster) -> None:
    there = [await replicas(idle=True) for _ in range(2)]
    for name in ("one", "other"):
        cluster.make(UNIT, name, {"specName": "g1.1", "image": "python"})
    for number in range(10):
        storage = f"data-{number}"
        cluster.storage(storage)
        answers = await asyncio.gather(
            there[0].units.update("", "one", update(storage)),
            there[1].units.update("", "other", update(storage)),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, Conflict)]
        assert len(refused) == 1, answers
        winner = next(answer for answer in answers if not isinstance(answer, BaseException))
        assert cluster.held_by(storage) == winner.metadata.name
