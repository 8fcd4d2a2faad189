"""Creates, gets, lists, resizes and deletes GPU storages.

Reads use the informer cache. Every write is based on a live read from the API server. `storage_attacher` decides which
unit may mount a storage. The controller manager creates the volume.
"""

import asyncio
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, BeingDeleted, NotFound, StorageInUse, Unavailable, WriteConflict
from gpu_runtime.contract.validation import name_errors
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import Manifest, ObjectKey
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.api_informers import APIInformers, read_live
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, UpdateStorage
from gpu_runtime.runtime_api.storages.storage_admission import (
    admit_storage,
    apply_resize,
    resolve_namespace,
    spec_matches_request,
    storage_request_hash,
)
from gpu_runtime.runtime_api.storages.view import phase_of

MAX_WRITE_ATTEMPTS = 20
"""Maximum number of attempts to write a storage while other writers change it."""
_CONFLICT_BACKOFF = Backoff(initial_seconds=0.01, max_seconds=0.5, jitter=0.5)


@dataclass(frozen=True)
class StorageService:
    client: KubeClient
    informers: APIInformers
    namespaces: APINamespaceSettings

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        """Return the storage, and whether this request created it. False if the same request created it before."""
        admitted = admit_storage(request, self.namespaces)
        while True:
            try:
                created = await self.client.create(GPU_STORAGES, _manifest(admitted))
            except kube.KubeAlreadyExists:
                existing = await self._find_live(ObjectKey(admitted.namespace, admitted.name))
            else:
                self.informers.storages.record_write(created)
                return created, True
            if existing is not None:  # None: the storage was deleted in the meantime, so create it again
                return _require_same_request(existing, admitted), False

    async def get(self, namespace: str, name: str) -> GPUStorage:
        """Read the storage from the cache, or from the API server if the cache lacks it.

        Another replica may just have created the storage.
        """
        key = self._key(namespace, name)
        return self.informers.storages.store.get(key) or await self._get_live(key)

    def list(self, query: ListStorages) -> tuple[list[GPUStorage], str | None]:
        """Return one page of storages and the continue token of the next page."""
        namespaces = (
            (resolve_namespace(query.namespace, self.namespaces),) if query.namespace else self.namespaces.units
        )
        if not self.informers.storages.has_synced:
            raise Unavailable("the list of storages is still loading; try again", retry_after=1)
        cached = self.informers.storages.store.all()
        matching = [each for each in cached if each.metadata.namespace in namespaces and _matches(each, query)]
        return paginate(matching, lambda each: each.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateStorage) -> GPUStorage:
        key = self._key(namespace, name)
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            storage = await self._get_live(key)
            desired = apply_resize(storage.spec, request)
            if desired == storage.spec:
                return storage
            if storage.metadata.deletion_timestamp is not None:
                raise BeingDeleted(f"storage {key.name} is being deleted and cannot be changed")
            try:
                return await self._patch_size(storage, desired.size)
            except kube.KubeConflict:  # a status update also changes the resourceVersion
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt))
        raise _write_conflict(key.name)

    async def delete(self, namespace: str, name: str) -> None:
        """Delete the storage and its data if it is not attached to a unit.

        The delete request has the resourceVersion as a precondition, so that a concurrent write that attaches the
        storage and the delete request cannot both succeed.
        """
        key = self._key(namespace, name)
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            storage = await self._get_live(key)
            if storage.spec.attached_to is not None:
                unit = storage.spec.attached_to.unit
                raise StorageInUse(
                    f"storage {name} is attached to unit {unit}; delete the unit or remove the mount first"
                )
            try:
                await self._delete(storage)
            except kube.KubeConflict:
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt))
            else:
                return
        raise _write_conflict(name)

    async def _delete(self, storage: GPUStorage) -> None:
        metadata = storage.metadata
        if metadata.deletion_timestamp is not None:
            return
        try:
            await self.client.delete(
                GPU_STORAGES, metadata.key, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except kube.KubeNotFound:
            self.informers.storages.record_delete(metadata.key, metadata.uid)

    async def _patch_size(self, storage: GPUStorage, size: str) -> GPUStorage:
        metadata = storage.metadata
        written = await self.client.merge_patch(
            GPU_STORAGES, metadata.key, {"spec": {"size": size}}, resource_version=metadata.resource_version
        )
        self.informers.storages.record_write(written)
        return written

    async def _get_live(self, key: ObjectKey) -> GPUStorage:
        storage = await self._find_live(key)
        if storage is None:
            raise _not_found(key)
        return storage

    async def _find_live(self, key: ObjectKey) -> GPUStorage | None:
        return await read_live(self.client, self.informers.storages, key)

    def _key(self, namespace: str, name: str) -> ObjectKey:
        key = ObjectKey(resolve_namespace(namespace, self.namespaces), name)
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


def _write_conflict(name: str) -> WriteConflict:
    return WriteConflict(f"other requests changed storage {name} at the same time; send the request again")
