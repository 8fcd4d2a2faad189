"""Reads and writes objects at the API server, and keeps the informer caches up to date.

Every write has a precondition: a free name, an unchanged resourceVersion, or a UID. So every process may repeat it.
"""

from contextlib import suppress
from typing import TypeVar

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeAlreadyExists, KubeConflict, KubeNotFound
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey

T = TypeVar("T", bound=KubeObject)

CONFLICT_BACKOFF = Backoff(initial_seconds=0.01, max_seconds=0.5, jitter=0.5)
"""The delay before a process repeats a write after a conflict with another writer."""


async def find_live(client: KubeClient, resource: ApiResource[T], key: ObjectKey) -> T | None:
    """Read the object from the API server, without a cache. Return None if it does not exist."""
    try:
        return await client.get(resource, key)
    except KubeNotFound:
        return None


async def read_live(client: KubeClient, informer: Informer[T], key: ObjectKey) -> T | None:
    """Read the object from the API server, and update the cache. Return None if the object does not exist."""
    cached = informer.store.get(key)
    current = await find_live(client, informer.resource, key)
    if current is not None:
        informer.record_write(current)
    elif cached is not None:
        informer.record_delete(key, cached.metadata.uid)
    return current


async def create_or_read(client: KubeClient, informer: Informer[T], manifest: Manifest) -> tuple[T, bool]:
    """Create the object, or read the existing object with its name. Return it, and whether this call created it."""
    key = ObjectKey(manifest["metadata"]["namespace"], manifest["metadata"]["name"])
    while True:
        try:
            created = await client.create(informer.resource, manifest)
        except KubeAlreadyExists:
            existing = await read_live(client, informer, key)
        else:
            informer.record_write(created)
            return created, True
        if existing is not None:  # None: the object was deleted in the meantime, so create it again
            return existing, False


async def patch_this(client: KubeClient, informer: Informer[T], found: T, patch: Manifest) -> T:
    """Patch the object if it has not changed since it was read. Raises KubeConflict if it has."""
    key, version = found.metadata.key, found.metadata.resource_version
    written = await client.merge_patch(informer.resource, key, patch, resource_version=version)
    informer.record_write(written)
    return written


async def patch_unchanged(client: KubeClient, informer: Informer[T], found: T, patch: Manifest) -> T | None:
    """Patch the object if it has not changed since it was read. Return the current object, or None if it is deleted.

    If another writer was first, the result is the object of that writer. Decide again from the result.
    """
    try:
        return await patch_this(client, informer, found, patch)
    except (KubeConflict, KubeNotFound):
        current = await read_live(client, informer, found.metadata.key)
        return current if current is not None and current.metadata.uid == found.metadata.uid else None


async def delete_this(client: KubeClient, informer: Informer[T], key: ObjectKey, uid: str) -> None:
    """Delete the object with this UID, and no later object with its name."""
    # NotFound: the object is already deleted. Conflict: another object has its name now.
    with suppress(KubeNotFound, KubeConflict):
        await client.delete(informer.resource, key, uid=uid)
    cached = informer.store.get(key)
    if cached is None or not cached.metadata.finalizers:  # with finalizers, it exists until the last one is removed
        informer.record_delete(key, uid)
