"""Who may mount a storage: one conditionally written field of the GPUStorage decides, on any number of replicas.

The API attaches before a unit names the storage, and takes back only what an operation attached that made no unit.
Whatever a unit has held, the controller manager releases when the unit's pod is gone.
"""

from collections.abc import Iterable, Sequence

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.errors import Conflict, StorageInUse
from gpu_runtime.contract.validation import FieldError
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers, read_live
from gpu_runtime.runtime_api.operations.operation_store import StaleAttempt


class StorageAttacher:
    def __init__(self, client: KubeClient, caches: APIInformers) -> None:
        self._client = client
        self._informers = caches

    async def find_missing(self, namespace: str, mounts: Sequence[StorageMount]) -> tuple[FieldError, ...]:
        """What is wrong with mounts of storages that do not exist."""
        return tuple(
            [
                FieldError(f"storageMounts[{index}].name", f"there is no storage {mount.name} in {namespace}")
                for index, mount in enumerate(mounts)
                if await self._find(ObjectKey(namespace, mount.name)) is None
            ]
        )

    async def check_available(self, namespace: str, names: Iterable[str], holder: Attachment) -> None:
        """Raise StorageInUse where one of them cannot be had now. Nothing is written."""
        for name in names:
            known = self._informers.storages.store.get(ObjectKey(namespace, name))
            if known is None or not _is_available_to(known, holder):
                _require_available(await self._find_live(ObjectKey(namespace, name)), name, holder)

    async def attach(self, namespace: str, names: Iterable[str], holder: Attachment) -> None:
        """Let this unit hold them all. In the order of their names: else two could each wait for the other's."""
        for name in sorted(names):
            await self._attach(ObjectKey(namespace, name), holder)

    async def detach(self, namespace: str, names: Iterable[str], operation_id: str, attempt: int) -> None:
        """Take back what this operation attached, up to this attempt. A unit that was made is not asked about here."""
        for name in names:
            storage = await self._find_live(ObjectKey(namespace, name))
            while storage is not None and _is_attached_by(storage, operation_id, attempt):
                storage = await self._patch_attachment(storage, None)

    async def detach_if_unchanged(self, storage: GPUStorage) -> None:
        """Take an attachment back, if nothing about the storage has changed since it was looked at."""
        await self._patch_attachment(storage, None)

    async def _attach(self, key: ObjectKey, holder: Attachment) -> None:
        storage = self._informers.storages.store.get(key)
        if storage is None or not _is_available_to(storage, holder):
            storage = await self._find_live(key)
        while True:
            held = _require_available(storage, key.name, holder).spec.attached_to
            if held is not None and not _needs_rewrite(held, holder):
                return
            storage = await self._patch_attachment(storage, holder)

    async def _patch_attachment(self, storage: GPUStorage | None, holder: Attachment | None) -> GPUStorage | None:
        """The storage as it is after the try; None when it is gone."""
        if storage is None:
            return None
        wanted = holder and {"unit": holder.unit, "operationID": holder.operation_id or None, "attempt": holder.attempt}
        key, version = storage.metadata.key, storage.metadata.resource_version
        try:
            written = await self._client.merge_patch(
                GPU_STORAGES, key, {"spec": {"attachedTo": wanted}}, resource_version=version
            )
        except (kube.KubeConflict, kube.KubeNotFound):
            return await self._find_live(key)
        self._informers.storages.record_write(written)
        return written

    async def _find(self, key: ObjectKey) -> GPUStorage | None:
        return self._informers.storages.store.get(key) or await self._find_live(key)

    async def _find_live(self, key: ObjectKey) -> GPUStorage | None:
        return await read_live(self._client, self._informers.storages, key)


def _is_available_to(storage: GPUStorage, holder: Attachment) -> bool:
    held = storage.spec.attached_to
    return storage.metadata.deletion_timestamp is None and (held is None or _is_same_holder(held, holder))


def _require_available(storage: GPUStorage | None, name: str, holder: Attachment) -> GPUStorage:
    if storage is None:
        raise Conflict(f"storage {name} is gone")
    held = storage.spec.attached_to
    if storage.metadata.deletion_timestamp is not None:
        raise StorageInUse(f"storage {name} is being deleted")
    if held is not None and not _is_same_holder(held, holder):
        released = " and not released yet" if held.unit == holder.unit else ""
        raise StorageInUse(f"storage {name} is attached to unit {held.unit}{released}; one unit mounts it at a time")
    return storage


def _is_same_holder(held: Attachment, holder: Attachment) -> bool:
    """Whether the unit holds it already. A new unit of the same name, under another operation, is another one."""
    return held.unit == holder.unit and holder.operation_id in ("", held.operation_id)


def _needs_rewrite(held: Attachment, holder: Attachment) -> bool:
    """A later attempt writes itself down, so that what an earlier one still means to release is no longer there; and so
    does a unit that is there already, where an operation wanted to make one of its name."""
    if not holder.operation_id:
        return bool(held.operation_id)
    if held.attempt > holder.attempt:
        raise StaleAttempt
    return held.attempt < holder.attempt


def _is_attached_by(storage: GPUStorage, operation_id: str, attempt: int) -> bool:
    held = storage.spec.attached_to
    return held is not None and held.operation_id == operation_id and held.attempt <= attempt
