"""Creates, gets, lists, resizes and deletes GPU storages.

Reads use the informer cache. Every write is based on a live read from the API server. `storage_attacher` decides which
unit may mount a storage. The controller manager creates the volume.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, BeingDeleted, StorageInUse
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.live_objects import create_or_read, patch_this
from gpu_runtime.kube.meta import Manifest
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.object_access import ObjectAccess
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, UpdateStorage
from gpu_runtime.runtime_api.storages.storage_admission import (
    admit_storage,
    apply_resize,
    spec_matches_request,
    storage_request_hash,
)
from gpu_runtime.runtime_api.storages.view import phase_of


@dataclass(frozen=True)
class StorageService:
    client: KubeClient
    informers: APIInformers
    namespaces: APINamespaceSettings

    @property
    def _access(self) -> ObjectAccess[GPUStorage]:
        missing = "storage {name} does not exist in namespace {namespace}"
        return ObjectAccess(self.client, self.informers.storages, "storage", missing, self.namespaces.units)

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        """Return the storage, and whether this request created it. False if the same request created it before."""
        admitted = admit_storage(request, self.namespaces)
        storage, created = await create_or_read(self.client, self.informers.storages, _manifest(admitted))
        return (storage if created else _require_same_request(storage, admitted)), created

    async def get(self, namespace: str, name: str) -> GPUStorage:
        return await self._access.get(self._access.key(namespace, name))

    def list(self, query: ListStorages) -> tuple[Sequence[GPUStorage], str | None]:
        """Return one page of storages and the continue token of the next page."""
        return self._access.list(query.namespace, query, lambda storage: _matches(storage, query))

    async def update(self, namespace: str, name: str, request: UpdateStorage) -> GPUStorage:
        key = self._access.key(namespace, name)
        return await self._access.read_and_write(key, lambda storage: self._resize(storage, request))

    async def _resize(self, storage: GPUStorage, request: UpdateStorage) -> GPUStorage:
        desired = apply_resize(storage.spec, request)
        if desired == storage.spec:
            return storage
        if storage.metadata.deletion_timestamp is not None:
            raise BeingDeleted(f"storage {storage.metadata.name} is being deleted and cannot be changed")
        return await patch_this(self.client, self.informers.storages, storage, {"spec": {"size": desired.size}})

    async def delete(self, namespace: str, name: str) -> None:
        """Delete the storage and its data if it is not attached to a unit.

        The delete request has the resourceVersion as a precondition, so that a concurrent write that attaches the
        storage and the delete request cannot both succeed.
        """
        await self._access.read_and_write(self._access.key(namespace, name), self._delete)

    async def _delete(self, storage: GPUStorage) -> None:
        metadata, attached = storage.metadata, storage.spec.attached_to
        if attached is not None:
            raise StorageInUse(
                f"storage {metadata.name} is attached to unit {attached.unit}; delete the unit or remove the mount"
                " first"
            )
        if metadata.deletion_timestamp is not None:
            return
        try:
            await self.client.delete(
                GPU_STORAGES, metadata.key, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except kube.KubeNotFound:
            self.informers.storages.record_delete(metadata.key, metadata.uid)


def _manifest(request: CreateStorage) -> Manifest:
    annotations = {Annotation.REQUEST_HASH: storage_request_hash(request)}
    metadata = {"name": request.name, "namespace": request.namespace, "annotations": annotations}
    return {"metadata": metadata, "spec": msgspec.to_builtins(request.spec())}


def _require_same_request(existing: GPUStorage, request: CreateStorage) -> GPUStorage:
    """Return the existing storage if the same request created it.

    A storage without a request hash, for example from kubectl, must have the requested spec.
    """
    stored_hash = existing.metadata.annotations.get(Annotation.REQUEST_HASH)
    same = stored_hash == storage_request_hash(request) if stored_hash else spec_matches_request(existing.spec, request)
    if existing.metadata.deletion_timestamp is not None:
        raise BeingDeleted(
            f"name: storage {request.name} is being deleted; choose another name, or wait for the deletion"
        )
    if not same:
        raise AlreadyExists(
            f"name: another storage {request.name} already exists; choose another name, or update that storage"
        )
    return existing


def _matches(storage: GPUStorage, query: ListStorages) -> bool:
    attached = storage.spec.attached_to is not None
    return query.phase in (UNSET, phase_of(storage)) and query.mounted in (UNSET, attached)
