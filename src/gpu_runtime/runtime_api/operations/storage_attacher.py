"""Attaches storages to units and detaches them: the field attachedTo of a GPUStorage decides which unit may mount it.

All replicas write the field with the resourceVersion as a precondition, so that only one of several concurrent writers
succeeds. The API attaches a storage before a unit mounts it. The API detaches only storages of an operation that
created no unit. The controller manager detaches the storages of a unit after the unit's pod is deleted.
"""

from collections.abc import Iterable, Sequence

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import StorageMount
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.operation_rules import AttachState, attach_fault, attach_state, is_attached_by
from gpu_runtime.contract.validation import FieldError
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.live_objects import patch_unchanged, read_live
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers

_REFUSED = (AttachState.IN_USE, AttachState.DELETED)


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
                if self.cached(namespace, mount.name) is None and await self.read_live(namespace, mount.name) is None
            ]
        )

    async def attach(self, namespace: str, names: Iterable[str], unit: str) -> None:
        """Attach all storages to an existing unit. Raise StorageInUse or BeingDeleted if one of them is not available.

        Nothing is written if the first look shows that one of the storages is not available. Every call attaches the
        storages in the order of their names. So it cannot happen that each of two units has attached a storage that the
        other unit needs.
        """
        names, holder = sorted(names), Attachment(unit=unit)
        storages = {name: await self._find_available(namespace, name, holder) for name in names}
        for name in names:
            storage: GPUStorage | None = storages[name]
            while attach_state(storage, holder) is not AttachState.ATTACHED:
                storage = await self.write(_require_available(storage, name, holder), holder)

    async def detach(self, namespace: str, names: Iterable[str], operation: Operation) -> None:
        """Detach the storages that the current attempt of the operation, or an earlier attempt, has attached.

        Call this only if the operation has created no unit.
        """
        for name in names:
            storage = await self.read_live(namespace, name)
            while storage is not None and is_attached_by(storage, operation):
                storage = await self.write(storage, None)

    async def write(self, storage: GPUStorage, holder: Attachment | None) -> GPUStorage | None:
        """Write the attachment if the storage is unchanged. Return the current storage, or None if it is deleted."""
        attached_to = holder and {
            "unit": holder.unit,
            "operationID": holder.operation_id or None,
            "operationUID": holder.operation_uid or None,
            "attempt": holder.attempt,
        }
        return await patch_unchanged(
            self._client, self._informers.storages, storage, {"spec": {"attachedTo": attached_to}}
        )

    def cached(self, namespace: str, name: str) -> GPUStorage | None:
        return self._informers.storages.store.get(ObjectKey(namespace, name))

    async def read_live(self, namespace: str, name: str) -> GPUStorage | None:
        return await read_live(self._client, self._informers.storages, ObjectKey(namespace, name))

    async def _find_available(self, namespace: str, name: str, holder: Attachment) -> GPUStorage:
        storage = self.cached(namespace, name)
        if attach_state(storage, holder) in _REFUSED:
            storage = await self.read_live(namespace, name)
        return _require_available(storage, name, holder)


def _require_available(storage: GPUStorage | None, name: str, holder: Attachment) -> GPUStorage:
    if storage is None or attach_state(storage, holder) in _REFUSED:
        raise attach_fault(storage, name, holder)
    return storage
