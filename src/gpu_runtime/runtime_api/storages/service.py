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
from gpu_runtime.contract.validation import name_problems
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key, Manifest
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.api_informers import Caches, read_live
from gpu_runtime.runtime_api.http.paging import page
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.storages.requests import CreateStorage, ListStorages, UpdateStorage
from gpu_runtime.runtime_api.storages.storage_admission import accepted, chosen, grown, identity, is_as_asked
from gpu_runtime.runtime_api.storages.view import phase_of

ATTEMPTS = 20
"""How often a write is tried against others who write the same storage."""
_APART = Backoff(first=0.01, longest=0.5, spread=0.5)


@dataclass(frozen=True)
class Storages:
    client: Client
    caches: Caches
    namespaces: Namespaces

    async def create(self, request: CreateStorage) -> tuple[GPUStorage, bool]:
        """The storage, and whether it was made now and not by the same request before."""
        asked = accepted(request, self.namespaces)
        while True:
            try:
                made = await self.client.create(GPU_STORAGES, _manifest(asked))
            except kube.AlreadyExists:
                found = await self._find(Key(asked.namespace, asked.name))
            else:
                self.caches.storages.learn(made)
                return made, True
            if found is not None:  # else it went in between
                return _same(found, asked), False

    async def get(self, namespace: str, name: str) -> GPUStorage:
        """From the cache; what that does not know may have been made on another replica a moment ago."""
        key = self._key(namespace, name)
        return self.caches.storages.store.get(key) or await self._read(key)

    def list(self, query: ListStorages) -> tuple[list[GPUStorage], str | None]:
        """A page of the storages, and where the next one begins."""
        namespaces = (chosen(query.namespace, self.namespaces),) if query.namespace else self.namespaces.units
        if not self.caches.storages.has_synced:
            raise Unavailable("the storages are still being read; try again", retry_after=1)
        known = self.caches.storages.store.all()
        wanted = [each for each in known if each.metadata.namespace in namespaces and _matches(each, query)]
        return page(wanted, lambda each: each.metadata.key, query.limit, query.after)

    async def update(self, namespace: str, name: str, request: UpdateStorage) -> GPUStorage:
        key = self._key(namespace, name)
        for attempt in range(1, ATTEMPTS + 1):
            storage = await self._read(key)
            wanted = grown(storage.spec, request)
            if wanted == storage.spec:
                return storage
            if storage.metadata.deletion_timestamp is not None:
                raise Conflict(f"storage {key.name} is being deleted")
            try:
                return await self._write(storage, wanted.size)
            except kube.Conflict:  # the status is written, too, and every write makes a new version
                await asyncio.sleep(_APART.delay(attempt))
        raise Conflict(f"storage {key.name}: somebody else wrote at the same time; try again")

    async def delete(self, namespace: str, name: str) -> None:
        """Ask for its end, with its data, if no unit holds it. Attaching and deleting exclude each other by version."""
        key = self._key(namespace, name)
        for attempt in range(1, ATTEMPTS + 1):
            storage = await self._read(key)
            if storage.spec.attached_to is not None:
                held = f"storage {name} is mounted by unit {storage.spec.attached_to.unit}"
                raise StorageInUse(f"{held}; delete that unit, or take the mount away, first")
            try:
                await self._end(storage)
            except kube.Conflict:
                await asyncio.sleep(_APART.delay(attempt))
            else:
                return
        raise Conflict(f"storage {name}: somebody else wrote at the same time; try again")

    async def _end(self, storage: GPUStorage) -> None:
        about = storage.metadata
        if about.deletion_timestamp is not None:
            return
        try:
            await self.client.delete(GPU_STORAGES, about.key, uid=about.uid, resource_version=about.resource_version)
        except kube.NotFound:
            self.caches.storages.forget(about.key, about.uid)

    async def _write(self, storage: GPUStorage, size: str) -> GPUStorage:
        about = storage.metadata
        written = await self.client.merge_patch(
            GPU_STORAGES, about.key, {"spec": {"size": size}}, resource_version=about.resource_version
        )
        self.caches.storages.learn(written)
        return written

    async def _read(self, key: Key) -> GPUStorage:
        found = await self._find(key)
        if found is None:
            raise _unknown(key)
        return found

    async def _find(self, key: Key) -> GPUStorage | None:
        return await read_live(self.client, self.caches.storages, key)

    def _key(self, namespace: str, name: str) -> Key:
        key = Key(chosen(namespace, self.namespaces), name)
        if any(name_problems(name)):  # no storage can have it, and it need not stand in a path
            raise _unknown(key)
        return key


def _manifest(request: CreateStorage) -> Manifest:
    annotations = {Annotation.REQUEST_HASH: identity(request)}
    metadata = {"name": request.name, "namespace": request.namespace, "annotations": annotations}
    return {"metadata": metadata, "spec": msgspec.to_builtins(request.spec())}


def _same(found: GPUStorage, request: CreateStorage) -> GPUStorage:
    """Also a storage that was made with kubectl, if it is as asked."""
    hashed = found.metadata.annotations.get(Annotation.REQUEST_HASH)
    as_asked = hashed == identity(request) if hashed else is_as_asked(found.spec, request)
    if found.metadata.deletion_timestamp is not None:
        raise Conflict(f"name: storage {request.name} is being deleted; choose another name, or wait")
    if not as_asked:
        raise Conflict(f"name: there is already another storage {request.name}; choose another name, or update it")
    return found


def _matches(storage: GPUStorage, query: ListStorages) -> bool:
    held = storage.spec.attached_to is not None
    return query.phase in (UNSET, phase_of(storage)) and query.mounted in (UNSET, held)


def _unknown(key: Key) -> NotFound:
    return NotFound(f"there is no storage {key.name} in namespace {key.namespace}")
