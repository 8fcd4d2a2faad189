"""Who may mount a storage: one conditionally written field of the GPUStorage decides, on any number of replicas.

The API attaches before a unit names the storage, and takes back only what an operation attached that made no unit.
Whatever a unit has held, the controller manager releases when the unit's pod is gone.
"""

from collections.abc import Iterable, Sequence

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.errors import Conflict, StorageInUse
from gpu_runtime.contract.validation import Problem
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.api_informers import Caches, read_live
from gpu_runtime.runtime_api.operations.operation_store import Outdated


class Attachments:
    def __init__(self, client: Client, caches: Caches) -> None:
        self._client = client
        self._caches = caches

    async def missing(self, namespace: str, mounts: Sequence[StorageMount]) -> tuple[Problem, ...]:
        """What is wrong with mounts of storages that do not exist."""
        return tuple(
            [
                Problem(f"storageMounts[{index}].name", f"there is no storage {mount.name} in {namespace}")
                for index, mount in enumerate(mounts)
                if await self._known(Key(namespace, mount.name)) is None
            ]
        )

    async def check(self, namespace: str, names: Iterable[str], holder: Attachment) -> None:
        """Raise StorageInUse where one of them cannot be had now. Nothing is written."""
        for name in names:
            known = self._caches.storages.store.get(Key(namespace, name))
            if known is None or not _is_free_for(known, holder):
                _refuse_if_taken(await self._live(Key(namespace, name)), name, holder)

    async def attach(self, namespace: str, names: Iterable[str], holder: Attachment) -> None:
        """Let this unit hold them all. In the order of their names: else two could each wait for the other's."""
        for name in sorted(names):
            await self._attach(Key(namespace, name), holder)

    async def release(self, namespace: str, names: Iterable[str], operation_id: str, attempt: int) -> None:
        """Take back what this operation attached, up to this attempt. A unit that was made is not asked about here."""
        for name in names:
            storage = await self._live(Key(namespace, name))
            while storage is not None and _is_of(storage, operation_id, attempt):
                storage = await self._write(storage, None)

    async def release_once(self, storage: GPUStorage) -> None:
        """Take an attachment back, if nothing about the storage has changed since it was looked at."""
        await self._write(storage, None)

    async def _attach(self, key: Key, holder: Attachment) -> None:
        storage = self._caches.storages.store.get(key)
        if storage is None or not _is_free_for(storage, holder):
            storage = await self._live(key)
        while True:
            held = _refuse_if_taken(storage, key.name, holder).spec.attached_to
            if held is not None and not _must_be_renewed(held, holder):
                return
            storage = await self._write(storage, holder)

    async def _write(self, storage: GPUStorage | None, holder: Attachment | None) -> GPUStorage | None:
        """The storage as it is after the try; None when it is gone."""
        if storage is None:
            return None
        wanted = holder and {"unit": holder.unit, "operationID": holder.operation_id or None, "attempt": holder.attempt}
        key, version = storage.metadata.key, storage.metadata.resource_version
        try:
            written = await self._client.merge_patch(
                GPU_STORAGES, key, {"spec": {"attachedTo": wanted}}, resource_version=version
            )
        except (kube.Conflict, kube.NotFound):
            return await self._live(key)
        self._caches.storages.learn(written)
        return written

    async def _known(self, key: Key) -> GPUStorage | None:
        return self._caches.storages.store.get(key) or await self._live(key)

    async def _live(self, key: Key) -> GPUStorage | None:
        return await read_live(self._client, self._caches.storages, key)


def _is_free_for(storage: GPUStorage, holder: Attachment) -> bool:
    held = storage.spec.attached_to
    return storage.metadata.deletion_timestamp is None and (held is None or _is_same(held, holder))


def _refuse_if_taken(storage: GPUStorage | None, name: str, holder: Attachment) -> GPUStorage:
    if storage is None:
        raise Conflict(f"storage {name} is gone")
    held = storage.spec.attached_to
    if storage.metadata.deletion_timestamp is not None:
        raise StorageInUse(f"storage {name} is being deleted")
    if held is not None and not _is_same(held, holder):
        released = " and not released yet" if held.unit == holder.unit else ""
        raise StorageInUse(f"storage {name} is attached to unit {held.unit}{released}; one unit mounts it at a time")
    return storage


def _is_same(held: Attachment, holder: Attachment) -> bool:
    """Whether the unit holds it already. A new unit of the same name, under another operation, is another one."""
    return held.unit == holder.unit and holder.operation_id in ("", held.operation_id)


def _must_be_renewed(held: Attachment, holder: Attachment) -> bool:
    """A later attempt writes itself down, so that what an earlier one still means to release is no longer there; and so
    does a unit that is there already, where an operation wanted to make one of its name."""
    if not holder.operation_id:
        return bool(held.operation_id)
    if held.attempt > holder.attempt:
        raise Outdated
    return held.attempt < holder.attempt


def _is_of(storage: GPUStorage, operation_id: str, attempt: int) -> bool:
    held = storage.spec.attached_to
    return held is not None and held.operation_id == operation_id and held.attempt <= attempt
