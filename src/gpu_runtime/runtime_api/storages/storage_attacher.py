"""Attaches storages to units and detaches them: the field attachedTo of a GPUStorage decides which unit may mount it.

All replicas write the field with the resourceVersion as a precondition, so that only one of several concurrent writers
succeeds. The API attaches a storage before a unit mounts it. The API detaches only storages of an operation that
created no unit. The controller manager detaches the storages of a unit after the unit's pod is deleted.
"""

from collections.abc import Iterable, Sequence

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.errors import BeingDeleted, StorageInUse
from gpu_runtime.contract.validation import FieldError
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers, read_live
from gpu_runtime.runtime_api.operations.operation_store import StaleAttempt


class StorageAttacher:
    def __init__(self, client: KubeClient, informers: APIInformers) -> None:
        self._client = client
        self._informers = informers

    async def find_missing(self, namespace: str, mounts: Sequence[StorageMount]) -> tuple[FieldError, ...]:
        """Return one error for each mount of a storage that does not exist."""
        return tuple(
            [
                FieldError(
                    f"storageMounts[{index}].name", f"storage {mount.name} does not exist in namespace {namespace}"
                )
                for index, mount in enumerate(mounts)
                if await self._find(ObjectKey(namespace, mount.name)) is None
            ]
        )

    async def check_available(self, namespace: str, names: Iterable[str], holder: Attachment) -> None:
        """Raise StorageInUse or BeingDeleted if one of the storages cannot be attached now. Nothing is written."""
        for name in names:
            cached = self._informers.storages.store.get(ObjectKey(namespace, name))
            if cached is None or not _is_available_to(cached, holder):
                _require_available(await self._find_live(ObjectKey(namespace, name)), name, holder)

    async def attach(self, namespace: str, names: Iterable[str], holder: Attachment) -> None:
        """Attach all storages to the unit.

        Every call attaches the storages in the order of their names. So it cannot happen that each of two units has
        attached a storage that the other unit needs.
        """
        for name in sorted(names):
            await self._attach(ObjectKey(namespace, name), holder)

    async def detach(self, namespace: str, names: Iterable[str], operation_id: str, attempt: int) -> None:
        """Detach the storages that this attempt of the operation, or an earlier attempt, has attached.

        Call this only if the operation has created no unit.
        """
        for name in names:
            storage = await self._find_live(ObjectKey(namespace, name))
            while storage is not None and _is_attached_by(storage, operation_id, attempt):
                storage = await self._patch_attachment(storage, None)

    async def detach_if_unchanged(self, storage: GPUStorage) -> None:
        """Detach the storage, unless another writer has changed it since the caller read it."""
        await self._patch_attachment(storage, None)

    async def _attach(self, key: ObjectKey, holder: Attachment) -> None:
        storage = self._informers.storages.store.get(key)
        if storage is None or not _is_available_to(storage, holder):
            storage = await self._find_live(key)
        while True:
            attached = _require_available(storage, key.name, holder).spec.attached_to
            if attached is not None and not _needs_rewrite(attached, holder):
                return
            storage = await self._patch_attachment(storage, holder)

    async def _patch_attachment(self, storage: GPUStorage | None, holder: Attachment | None) -> GPUStorage | None:
        """Write the attachment if the storage is unchanged. Return the current storage, or None if it is deleted."""
        if storage is None:
            return None
        attached_to = holder and {
            "unit": holder.unit,
            "operationID": holder.operation_id or None,
            "attempt": holder.attempt,
        }
        key, version = storage.metadata.key, storage.metadata.resource_version
        try:
            written = await self._client.merge_patch(
                GPU_STORAGES, key, {"spec": {"attachedTo": attached_to}}, resource_version=version
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
    attached = storage.spec.attached_to
    return storage.metadata.deletion_timestamp is None and (attached is None or _is_same_holder(attached, holder))


def _require_available(storage: GPUStorage | None, name: str, holder: Attachment) -> GPUStorage:
    if storage is None:
        raise BeingDeleted(f"storage {name} was deleted")
    attached = storage.spec.attached_to
    if storage.metadata.deletion_timestamp is not None:
        raise BeingDeleted(f"storage {name} is being deleted")
    if attached is not None and not _is_same_holder(attached, holder):
        earlier = "an earlier unit" if attached.unit == holder.unit else "unit"
        raise StorageInUse(
            f"storage {name} is attached to {earlier} {attached.unit}; only one unit at a time can mount it"
        )
    return storage


def _is_same_holder(attached: Attachment, holder: Attachment) -> bool:
    """Whether the storage is attached to this unit. A unit of another operation with the same name is another unit."""
    return attached.unit == holder.unit and holder.operation_id in ("", attached.operation_id)


def _needs_rewrite(attached: Attachment, holder: Attachment) -> bool:
    """Whether the attachment must be written again although the storage is already attached to the unit.

    A later attempt writes its number, so that an earlier attempt cannot detach the storage. For an existing unit, the
    write removes the operationID of an operation that tried to create a unit with the same name.
    """
    if not holder.operation_id:
        return bool(attached.operation_id)
    if attached.attempt > holder.attempt:
        raise StaleAttempt
    return attached.attempt < holder.attempt


def _is_attached_by(storage: GPUStorage, operation_id: str, attempt: int) -> bool:
    attached = storage.spec.attached_to
    return attached is not None and attached.operation_id == operation_id and attached.attempt <= attempt
