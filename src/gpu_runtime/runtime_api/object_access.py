"""Access to the objects that a request names: validates the name, reads the object, and repeats writes that conflict.

The same rules apply to units, storages and pools.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpu_runtime.contract.errors import NotFound, Unavailable, WriteConflict, require_valid
from gpu_runtime.contract.validation import name_errors, namespace_errors
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeConflict
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.live_objects import CONFLICT_BACKOFF, read_live
from gpu_runtime.kube.meta import KubeObject, ObjectKey
from gpu_runtime.runtime_api.http.paging import PagedQuery, paginate

T = TypeVar("T", bound=KubeObject)
R = TypeVar("R")

MAX_WRITE_ATTEMPTS = 20
"""Maximum number of attempts to write an object while other writers change it. One of several concurrent writes always
succeeds."""


@dataclass(frozen=True)
class ObjectAccess(Generic[T]):
    client: KubeClient
    informer: Informer[T]
    noun: str
    """What error messages call an object of this kind, for example unit."""
    not_found: str
    """The error message for an object that does not exist, with the placeholders {namespace} and {name}."""
    namespaces: Sequence[str]
    """The namespaces that a request may name."""

    def key(self, namespace: str, name: str) -> ObjectKey:
        """Return the key of the object. The default is the first allowed namespace. Raises Invalid or NotFound."""
        require_valid(*namespace_errors(namespace, self.namespaces, f"{self.noun}s"))
        key = ObjectKey(namespace or self.namespaces[0], name)
        if any(name_errors(name)):  # no object can have this name, and it may be unsafe in a URL path
            raise self._not_found(key)
        return key

    def list(
        self, namespace: str, query: PagedQuery, is_selected: Callable[[T], bool]
    ) -> tuple[Sequence[T], str | None]:
        """Return one page of the selected objects, and the continue token of the next page.

        The page has objects of the requested namespace, or of all allowed namespaces if the request has none.
        """
        require_valid(*namespace_errors(namespace, self.namespaces, f"{self.noun}s"))
        namespaces = (namespace,) if namespace else self.namespaces
        if not self.informer.has_synced:  # a list from an incomplete cache would be wrong
            raise Unavailable(f"the list of {self.noun}s is still loading; try again", retry_after=1)
        cached = self.informer.store.all()
        matching = [each for each in cached if each.metadata.namespace in namespaces and is_selected(each)]
        return paginate(matching, lambda each: each.metadata.key, query.limit, query.after)

    async def get(self, key: ObjectKey) -> T:
        """Read the object from the cache, or from the API server if the cache lacks it.

        Another replica may just have created the object.
        """
        cached = self.informer.store.get(key)
        return cached if cached is not None else await self.get_live(key)

    async def get_live(self, key: ObjectKey) -> T:
        """Read the object from the API server. Raises NotFound."""
        current = await read_live(self.client, self.informer, key)
        if current is None:
            raise self._not_found(key)
        return current

    async def read_and_write(self, key: ObjectKey, write: Callable[[T], Awaitable[R]]) -> R:
        """Read the object and write it. Repeat both until no other writer was first.

        Raises WriteConflict after MAX_WRITE_ATTEMPTS attempts.
        """
        for attempt in range(1, MAX_WRITE_ATTEMPTS + 1):
            try:
                return await write(await self.get_live(key))
            except KubeConflict:  # a status update also changes the resourceVersion
                await asyncio.sleep(CONFLICT_BACKOFF.delay(attempt))
        raise WriteConflict(f"other requests changed {self.noun} {key.name} at the same time; send the request again")

    def _not_found(self, key: ObjectKey) -> NotFound:
        return NotFound(self.not_found.format(namespace=key.namespace, name=key.name))
