"""What callers do with storages. Reads come from the cache; every decision to write rests on a live read.

Who may mount a storage is decided in `attachment`; its volume is the controller manager's part.
"""

import asyncio
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, NotFound, StorageInUse, Unavailable
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
"""How often a write is tried against others who write the same storage."""
_CONFLICT_BACKOFF = Backoff(initial_seconds=0.01, max_seconds=0.5, jitter=0.5)


@dataclass(frozen=True)
class StorageService:
    client: KubeClient
    informers: APIInformers
    namespaces: APINamespaceSettings

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        """The storage, and whether it was made now and not by the same request before."""
        asked = admit_storage(request, self.namespaces)
        while True:
            try:
                made = await self.client.create(GPU_STORAGES, _manifest(asked))
            except kube.KubeAlreadyExists:
                found = await self._find_live(ObjectKey(asked.namespace, asked.name))
            else:
                self.informers.storages.record_write(made)
                return made, True
            if found is not None:  # else it went in between
                return _require_same_request(found, asked), False

    async def get(self, namespace: str, name: str) -> GPUStorage:
        """From the cache; what that does not know may have been made on another replica a moment ago."""
        key = self._key(namespace, name)
        return self.informers.storages.store.get(key) or await self._get_live(key)

    def list(self, query: ListStorages) -> tuple[list[GPUStorage], str | None]:
        """A page of the storages, and where the next one begins."""
        namespaces = (
            (resolve_namespace(query.namespace, self.namespaces),) if query.namespace else self.namespaces.units
        )
        if not self.informers.storages.has_synced:
            raise Unavailable("the storages are still being read; try again", retry_after=1)
        known = self.informers.storages.store.all()
        wanted = [each for each in known if each.metadata.namespace in namespaces and _matches(each, query)]
        return paginate(wanted, lambda each: each.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateStorage) -> GPUStorage:
        key = self._key(namespace, name)
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            storage = await self._get_live(key)
            wanted = apply_resize(storage.spec, request)
            if wanted == storage.spec:
                return storage
            if storage.metadata.deletion_timestamp is not None:
                raise Conflict(f"storage {key.name} is being deleted")
            try:
                return await self._patch_size(storage, wanted.size)
            except kube.KubeConflict:  # the status is written, too, and every write makes a new version
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt))
        raise Conflict(f"storage {key.name}: somebody else wrote at the same time; try again")

    async def delete(self, namespace: str, name: str) -> None:
        """Ask for its end, with its data, if no unit holds it. Attaching and deleting exclude each other by version."""
        key = self._key(namespace, name)
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            storage = await self._get_live(key)
            if storage.spec.attached_to is not None:
                held = f"storage {name} is mounted by unit {storage.spec.attached_to.unit}"
                raise StorageInUse(f"{held}; delete that unit, or take the mount away, first")
            try:
                await self._delete(storage)
            except kube.KubeConflict:
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt))
            else:
                return
        raise Conflict(f"storage {name}: somebody else wrote at the same time; try again")

    async def _delete(self, storage: GPUStorage) -> None:
        about = storage.metadata
        if about.deletion_timestamp is not None:
            return
        try:
            await self.client.delete(GPU_STORAGES, about.key, uid=about.uid, resource_version=about.resource_version)
        except kube.KubeNotFound:
            self.informers.storages.record_delete(about.key, about.uid)

    async def _patch_size(self, storage: GPUStorage, size: str) -> GPUStorage:
        about = storage.metadata
        written = await self.client.merge_patch(
            GPU_STORAGES, about.key, {"spec": {"size": size}}, resource_version=about.resource_version
        )
        self.informers.storages.record_write(written)
        return written

    async def _get_live(self, key: ObjectKey) -> GPUStorage:
        found = await self._find_live(key)
        if found is None:
            raise _not_found(key)
        return found

    async def _find_live(self, key: ObjectKey) -> GPUStorage | None:
        return await read_live(self.client, self.informers.storages, key)

    def _key(self, namespace: str, name: str) -> ObjectKey:
        key = ObjectKey(resolve_namespace(namespace, self.namespaces), name)
        if any(name_errors(name)):  # no storage can have it, and it need not stand in a path
            raise _not_found(key)
        return key


def _manifest(request: CreateStorage) -> Manifest:
    annotations = {Annotation.REQUEST_HASH: storage_request_hash(request)}
    metadata = {"name": request.name, "namespace": request.namespace, "annotations": annotations}
    return {"metadata": metadata, "spec": msgspec.to_builtins(request.spec())}


def _require_same_request(found: GPUStorage, request: CreateStorage) -> GPUStorage:
    """Also a storage that was made with kubectl, if it is as asked."""
    hashed = found.metadata.annotations.get(Annotation.REQUEST_HASH)
    as_asked = hashed == storage_request_hash(request) if hashed else spec_matches_request(found.spec, request)
    if found.metadata.deletion_timestamp is not None:
        raise Conflict(f"name: storage {request.name} is being deleted; choose another name, or wait")
    if not as_asked:
        raise Conflict(f"name: there is already another storage {request.name}; choose another name, or update it")
    return found


def _matches(storage: GPUStorage, query: ListStorages) -> bool:
    held = storage.spec.attached_to is not None
    return query.phase in (UNSET, phase_of(storage)) and query.mounted in (UNSET, held)


def _not_found(key: ObjectKey) -> NotFound:
    return NotFound(f"there is no storage {key.name} in namespace {key.namespace}")
