"""An in-memory API server whose responses a scheduler releases one by one. A seed decides the order, and who is killed.

Use it only to test the logic of operations. The integration tests use a real API server.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import msgspec

from gpu_runtime.contract.crd.operation import UNFINISHED_SELECTOR
from gpu_runtime.kube import errors
from gpu_runtime.kube.codec import ListOptions, ListPage, ObjectApplied, ObjectDeleted, WatchEvent
from gpu_runtime.kube.errors import ApiStatus
from gpu_runtime.kube.meta import ApiResource, Manifest, ObjectKey

Document = dict[str, Any]
FINISHED = ("Succeeded", "Failed")


class InterleavingScheduler:
    """Holds all waiting tasks, and releases one of them at random per call of `run_next`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - the seed makes a run reproducible
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    async def wait_scheduled(self, name: str) -> None:
        released = asyncio.get_running_loop().create_future()
        self._waiting.append((name, released))
        await released

    async def run_next(self, may_run: Callable[[str], bool] = lambda _: True) -> str | None:
        """Release one waiting task that `may_run` accepts, and return its name. None if no task can be released."""
        loop: Any = asyncio.get_running_loop()
        for _ in range(8):  # let every task run until it waits
            await asyncio.sleep(0)
            if not loop._ready:
                break
        self._waiting = [(name, released) for name, released in self._waiting if not released.done()]
        ready = [index for index, (name, _) in enumerate(self._waiting) if may_run(name)]
        if not ready:
            return None
        name, released = self._waiting.pop(self.rng.choice(ready))
        released.set_result(None)
        return name


class FakeKubeServer:
    """The state that all replicas share: objects, their versions and the history for watches."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, ObjectKey], Document] = {}
        self.version = 0
        self.history: list[tuple[int, str, Document, bool]] = []
        """Version, plural, object, and whether the object still exists."""
        self.changed = asyncio.Event()
        self.writes = 0
        self.now: Callable[[], str] = lambda: "2026-01-01T00:00:00Z"
        self.is_rejected: Callable[[Manifest], bool] = lambda _: False
        """Whether a policy of the cluster rejects the creation of an object."""

    def all(self, resource: ApiResource[Any]) -> list[Document]:
        return [found for (plural, _), found in self.objects.items() if plural == resource.plural]

    def find(self, resource: ApiResource[Any], key: ObjectKey) -> Document | None:
        return self.objects.get((resource.plural, key))

    def create(self, resource: ApiResource[Any], manifest: Manifest) -> Document:
        metadata = manifest["metadata"]
        key = ObjectKey(metadata["namespace"], metadata["name"])
        if self.find(resource, key):
            raise errors.KubeAlreadyExists(ApiStatus(code=409, reason="AlreadyExists", message=f"{key} exists"))
        if self.is_rejected(manifest):
            raise errors.KubeForbidden(ApiStatus(code=403, reason="Forbidden", message=f"a policy rejects {key}"))
        document = {name: part for name, part in manifest.items() if name != "status"}
        created = {"creationTimestamp": self.now(), "uid": f"{resource.plural}-{self.version + 1}"}
        document["metadata"] = created | metadata
        return self.put(resource, key, document)

    def patch(self, resource: ApiResource[Any], key: ObjectKey, patch: Mapping[str, Any], subresource: str) -> Document:
        found = self.existing(resource, key)
        precondition = patch.get("metadata", {}).get("resourceVersion")
        if precondition not in (None, found["metadata"]["resourceVersion"]):
            raise errors.KubeConflict(ApiStatus(code=409, reason="Conflict", message=f"{key} has changed"))
        parts = {"status"} if subresource else set(patch) - {"status"}
        merged = _merged(found, {part: patch[part] for part in parts if part in patch})
        return self.put(resource, key, merged)

    def delete(
        self, resource: ApiResource[Any], key: ObjectKey, uid: str | None, resource_version: str | None = None
    ) -> None:
        """Delete the object. An object with finalizers is only marked: `remove` deletes it."""
        found = self.existing(resource, key)
        metadata = found["metadata"]
        if uid not in (None, metadata["uid"]) or resource_version not in (None, metadata["resourceVersion"]):
            raise errors.KubeConflict(ApiStatus(code=409, reason="Conflict", message=f"{key} has changed"))
        if not metadata.get("finalizers"):
            self.remove(resource, key)
        elif "deletionTimestamp" not in metadata:
            self.put(resource, key, {**found, "metadata": {**metadata, "deletionTimestamp": self.now()}})

    def remove(self, resource: ApiResource[Any], key: ObjectKey) -> None:
        found = self.existing(resource, key)
        del self.objects[resource.plural, key]
        self._notify(resource.plural, found, exists=False)

    def put(self, resource: ApiResource[Any], key: ObjectKey, document: Document) -> Document:
        self.objects[resource.plural, key] = document
        return self._notify(resource.plural, document, exists=True)

    def existing(self, resource: ApiResource[Any], key: ObjectKey) -> Document:
        if (found := self.find(resource, key)) is None:
            raise errors.KubeNotFound(ApiStatus(code=404, reason="NotFound", message=f"no {resource.kind} {key}"))
        return found

    def _notify(self, plural: str, document: Document, *, exists: bool) -> Document:
        self.version += 1
        self.writes += 1
        document["metadata"] = {**document["metadata"], "resourceVersion": str(self.version)}
        self.history.append((self.version, plural, msgspec.json.decode(msgspec.json.encode(document)), exists))
        self.changed.set()
        self.changed = asyncio.Event()
        return document


class FakeClient:
    """The client of one process. A killed process loses the request or the response, depending on when it is killed."""

    def __init__(self, server: FakeKubeServer, scheduler: InterleavingScheduler, name: str) -> None:
        self._server, self._scheduler, self.name = server, scheduler, name
        self.reads = 0
        self.failure_chance = 0.0
        """The probability that a request or its response is lost."""

    def with_options(self, *_: object, **__: object) -> Self:
        return self

    async def get(self, resource: ApiResource[Any], key: ObjectKey) -> Any:
        self.reads += 1
        return await self._exchange(resource, lambda: self._server.existing(resource, key))

    async def create(self, resource: ApiResource[Any], manifest: Manifest) -> Any:
        return await self._exchange(resource, lambda: self._server.create(resource, manifest))

    async def merge_patch(
        self,
        resource: ApiResource[Any],
        key: ObjectKey,
        patch: Mapping[str, Any],
        *,
        resource_version: str | None = None,
        subresource: str = "",
    ) -> Any:
        metadata = {**patch.get("metadata", {}), "resourceVersion": resource_version}
        full_patch = {**patch, "metadata": metadata}
        return await self._exchange(resource, lambda: self._server.patch(resource, key, full_patch, subresource))

    async def delete(
        self,
        resource: ApiResource[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        await self._scheduler.wait_scheduled(self.name)
        self._lose_message()
        self._server.delete(resource, key, uid, resource_version)
        await self._scheduler.wait_scheduled(self.name)
        self._lose_message()

    async def remove(self, resource: ApiResource[Any], key: ObjectKey, resource_version: str) -> None:
        """Remove the finalizers of a deleted object, if it has not changed."""
        await self._scheduler.wait_scheduled(self.name)
        if self._server.existing(resource, key)["metadata"]["resourceVersion"] == resource_version:
            self._server.remove(resource, key)

    async def pages(self, resource: ApiResource[Any], selection: ListOptions) -> AsyncIterator[ListPage[Any]]:
        await self._scheduler.wait_scheduled(self.name)
        yield await self.list(resource, selection)

    async def count(self, resource: ApiResource[Any], namespace: str) -> int:
        await self._scheduler.wait_scheduled(self.name)
        return len([each for each in self._server.all(resource) if each["metadata"]["namespace"] == namespace])

    async def list(self, resource: ApiResource[Any], selection: ListOptions, **_: object) -> ListPage[Any]:
        documents = [found for found in self._server.all(resource) if _selected(found, selection)]
        items = tuple(msgspec.convert(found, resource.model) for found in documents)
        return ListPage(items, str(self._server.version))

    @asynccontextmanager
    async def watch(
        self, resource: ApiResource[Any], selection: ListOptions, *, resource_version: str, **_: object
    ) -> AsyncIterator[AsyncIterator[WatchEvent[Any]]]:
        yield self._events(resource, selection, int(resource_version))

    async def _events(
        self, resource: ApiResource[Any], selection: ListOptions, version: int
    ) -> AsyncIterator[WatchEvent[Any]]:
        while True:
            # Read the event before the history, so that no change between the two is missed.
            changed = self._server.changed
            for number, plural, document, exists in self._server.history[version:]:
                version = number
                if plural == resource.plural:
                    await self._scheduler.wait_scheduled(f"{self.name}/watch")
                    found = msgspec.convert(document, resource.model)
                    yield ObjectApplied(found) if exists and _selected(document, selection) else ObjectDeleted(found)
            await changed.wait()

    def _lose_message(self) -> None:
        if self.failure_chance and self._scheduler.rng.random() < self.failure_chance / 2:
            raise errors.KubeUnreachable("the connection is broken", sent=True)

    async def _exchange(self, resource: ApiResource[Any], work: Callable[[], Document]) -> Any:
        await self._scheduler.wait_scheduled(self.name)
        self._lose_message()
        document = work()
        await self._scheduler.wait_scheduled(self.name)
        self._lose_message()
        return msgspec.convert(document, resource.model)


def _selected(document: Document, selection: ListOptions) -> bool:
    if selection.namespace not in ("", document["metadata"]["namespace"]):
        return False
    selector = selection.label_selector
    terms = [selector] if " notin " in selector else selector.split(",") if selector else []
    if not all(_has_label(document, term) for term in terms):
        return False
    if selection.field_selector == UNFINISHED_SELECTOR:
        return document.get("status", {}).get("state") not in FINISHED
    return True


def _has_label(document: Document, selector: str) -> bool:
    """Whether the labels match a selector of the form `name=value` or `name notin (value,value)`."""
    labels = document["metadata"].get("labels", {})
    if " notin " in selector:
        name, values = selector.split(" notin ")
        return labels.get(name) not in values.strip("()").split(",")
    name, value = selector.split("=")
    return bool(labels.get(name) == value)


def _merged(document: Document, patch: Mapping[str, Any]) -> Document:
    result = dict(document)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = _merged(result.get(name, {}), value)
        else:
            result[name] = value
    return result


async def run_interleaved(work: Awaitable[Any], scheduler: InterleavingScheduler) -> Any:
    """Run until the work is done. All other waiting tasks run interleaved with it."""
    task = asyncio.ensure_future(work)
    while not task.done():
        if await scheduler.run_next() is None:
            await asyncio.sleep(0)
    return task.result()
