"""Creates, gets, lists, resizes and deletes GPU storages.

Reads use the informer cache. Every write is based on a live read from the API server. `storage_attacher` decides which
unit may mount a storage. The controller manager creates the volume.
"""

from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, BeingDeleted, NotFound, StorageInUse, Unavailable
from gpu_runtime.contract.validation import name_errors
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.runtime_api.admission_errors import listed_namespaces, resolve_namespace
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.live_objects import create_or_read, patch_this, read_live, retry_conflicts
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

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        """Return the storage, and whether this request created it. False if the same request created it before."""
        admitted = admit_storage(request, self.namespaces)
        storage, created = await create_or_read(self.client, self.informers.storages, _manifest(admitted))
        return (storage if created else _require_same_request(storage, admitted)), created

    async def get(self, namespace: str, name: str) -> GPUStorage:
        """Read the storage from the cache, or from the API server if the cache lacks it.

        Another replica may just have created the storage.
        """
        key = self._key(namespace, name)
        return self.informers.storages.store.get(key) or await self._get_live(key)

    def list(self, query: ListStorages) -> tuple[list[GPUStorage], str | None]:
        """Return one page of storages and the continue token of the next page."""
        namespaces = listed_namespaces(query.namespace, self.namespaces.units, "storages")
        if not self.informers.storages.has_synced:
            raise Unavailable("the list of storages is still loading; try again", retry_after=1)
        cached = self.informers.storages.store.all()
        matching = [each for each in cached if each.metadata.namespace in namespaces and _matches(each, query)]
        return paginate(matching, lambda each: each.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateStorage) -> GPUStorage:
        key = self._key(namespace, name)
        return await retry_conflicts(f"storage {key.name}", lambda: self._resize(key, request))

    async def _resize(self, key: ObjectKey, request: UpdateStorage) -> GPUStorage:
        storage = await self._get_live(key)
        desired = apply_resize(storage.spec, request)
        if desired == storage.spec:
            return storage
        if storage.metadata.deletion_timestamp is not None:
            raise BeingDeleted(f"storage {key.name} is being deleted and cannot be changed")
        return await patch_this(self.client, self.informers.storages, storage, {"spec": {"size": desired.size}})

    async def delete(self, namespace: str, name: str) -> None:
        """Delete the storage and its data if it is not attached to a unit.

        The delete request has the resourceVersion as a precondition, so that a concurrent write that attaches the
        storage and the delete request cannot both succeed.
        """
        key = self._key(namespace, name)
        await retry_conflicts(f"storage {name}", lambda: self._delete(key))

    async def _delete(self, key: ObjectKey) -> None:
        storage = await self._get_live(key)
        metadata, attached = storage.metadata, storage.spec.attached_to
        if attached is not None:
            raise StorageInUse(
                f"storage {key.name} is attached to unit {attached.unit}; delete the unit or remove the mount first"
            )
        if metadata.deletion_timestamp is not None:
            return
        try:
            await self.client.delete(GPU_STORAGES, key, uid=metadata.uid, resource_version=metadata.resource_version)
        except kube.KubeNotFound:
            self.informers.storages.record_delete(key, metadata.uid)

    async def _get_live(self, key: ObjectKey) -> GPUStorage:
        storage = await read_live(self.client, self.informers.storages, key)
        if storage is None:
            raise _not_found(key)
        return storage

    def _key(self, namespace: str, name: str) -> ObjectKey:
        key = ObjectKey(resolve_namespace(namespace, self.namespaces.units, "storages"), name)
        if any(name_errors(name)):  # no storage can have this name, and it may be unsafe in a URL path
            raise _not_found(key)
        return key


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


def _not_found(key: ObjectKey) -> NotFound:
    return NotFound(f"storage {key.name} does not exist in namespace {key.namespace}")
