"""A typed client of the Kubernetes API. Reads give models, writes take manifests, failures are KubeErrors.

There is no cache and no waiting here. Every write is validated strictly: an unknown field is an error, not a typo that
nobody notices.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from gpu_runtime.kube import codec
from gpu_runtime.kube.codec import EVERYTHING, Page, Selection, WatchEvent
from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import Expired
from gpu_runtime.kube.meta import Key, Manifest, Object, Resource
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.transport import Call, Fence, Transport

T = TypeVar("T", bound=Object)

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML, and this is the media type that every supported Kubernetes knows for server-side apply."""


class Client:
    """Cheap to derive: `fenced`, `patient` and `urgent` give clients that share the connections of this one."""

    def __init__(  # noqa: PLR0913 - settings by name, which `connect` and the deriving methods give
        self,
        transport: Transport,
        *,
        field_manager: str,
        timeout: float = 10.0,
        retries: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        fence: Fence | None = None,
        urgent: bool = False,
    ) -> None:
        self._transport = transport
        self._field_manager = field_manager
        self._timeout = timeout
        self._retries = retries
        self._fence = fence
        self._urgent = urgent
        self._writes = codec.query({"fieldManager": field_manager, "fieldValidation": "Strict"})
        self._forced = codec.query({"fieldManager": field_manager, "fieldValidation": "Strict", "force": "true"})

    def fenced(self, fence: Fence) -> "Client":
        """A client whose writes are held back, as NotLeading, once the right to write has ended."""
        return self._derived(fence=fence)

    def patient(self, timeout: float, retries: RetryPolicy) -> "Client":
        """A client with another patience: seconds per attempt, and how often to try."""
        return self._derived(timeout=timeout, retries=retries)

    def urgent(self) -> "Client":
        """A client whose requests never wait until others have given a connection back."""
        return self._derived(urgent=True)

    async def get(self, resource: Resource[T], key: Key) -> T:
        return codec.read(resource, await self._read(codec.object_path(resource, key)))

    async def list(self, resource: Resource[T], selection: Selection = EVERYTHING, *, page: int = 500) -> Page[T]:
        """All of them in one Page, read in pages of the given size."""
        try:
            pages = [found async for found in self.pages(resource, selection, page=page)]
        except Expired:  # the list took longer than the server keeps history, so it must be read at once
            pages = [found async for found in self.pages(resource, selection, page=0)]
        items = tuple(item for one in pages for item in one.items)
        unreadable = tuple(found for one in pages for found in one.unreadable)
        return Page(items, pages[-1].resource_version, "", unreadable)

    async def pages(
        self, resource: Resource[T], selection: Selection = EVERYTHING, *, page: int = 500
    ) -> AsyncIterator[Page[T]]:
        """Page after page, all as of one moment. Raises Expired when that moment is too long ago."""
        found = await self.page(resource, selection, limit=page)
        yield found
        while found.continuation:
            found = await self.page(resource, selection, limit=page, continuation=found.continuation)
            yield found

    async def page(
        self, resource: Resource[T], selection: Selection = EVERYTHING, *, limit: int = 500, continuation: str = ""
    ) -> Page[T]:
        """One page; 0 means no limit."""
        query = codec.query({**selection.parameters, "limit": limit or None, "continue": continuation})
        return codec.read_page(resource, await self._read(codec.path(resource, selection.namespace) + query))

    async def count(self, resource: Resource[T], namespace: str = "") -> int:
        """How many there are, about, at the price of reading one."""
        found = await self.page(resource, Selection(namespace), limit=1)
        return len(found.items) + len(found.unreadable) + found.remaining

    async def create(self, resource: Resource[T], manifest: Manifest) -> T:
        namespace = codec.key_of(manifest).namespace
        if resource.namespaced and not namespace:
            raise ValueError(f"the manifest of a {resource.kind} names no namespace")
        target = codec.path(resource, namespace) + self._writes
        return codec.read(resource, await self._write("POST", target, codec.encoded(resource, manifest)))

    async def replace(self, resource: Resource[T], manifest: Manifest, *, subresource: str = "") -> T:
        """Write the whole object, if it is still the version that the manifest names; otherwise Conflict."""
        key = codec.key_of(manifest)
        if not manifest["metadata"].get("resourceVersion"):
            raise ValueError(f"replacing {resource.kind} {key} needs the resourceVersion that was read")
        target = codec.object_path(resource, key, subresource) + self._writes
        return codec.read(resource, await self._write("PUT", target, codec.encoded(resource, manifest)))

    async def merge_patch(
        self,
        resource: Resource[T],
        key: Key,
        patch: Mapping[str, Any],
        *,
        resource_version: str | None = None,
        subresource: str = "",
    ) -> T:
        """Change what the patch names; with a resource version, only if the object is still that one."""
        if resource_version is not None:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": resource_version}}
        target = codec.object_path(resource, key, subresource) + self._writes
        return codec.read(resource, await self._write("PATCH", target, msgspec.json.encode(patch), MERGE_PATCH))

    async def json_patch(
        self, resource: Resource[T], key: Key, operations: Sequence[Mapping[str, Any]], *, subresource: str = ""
    ) -> T:
        """Carry out the operations, all or none. A failed `test` among them is Invalid."""
        target = codec.object_path(resource, key, subresource) + self._writes
        return codec.read(resource, await self._write("PATCH", target, msgspec.json.encode(operations), JSON_PATCH))

    async def apply(self, resource: Resource[T], manifest: Manifest, *, force: bool = True, subresource: str = "") -> T:
        """Server-side apply: these fields are this manager's and have these values; what it no longer names goes.

        Without force, a field that another manager owns is a Conflict. With a resource version in the manifest, so is
        an object that has changed since.
        """
        target = codec.object_path(resource, codec.key_of(manifest), subresource)
        target += self._forced if force else self._writes
        body = codec.encoded(resource, manifest)
        return codec.read(resource, await self._write("PATCH", target, body, APPLY_PATCH, repeatable=True))

    async def delete(
        self,
        resource: Resource[Any],
        key: Key,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Ask for its end, if it is still that object and that version; otherwise Conflict."""
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in given.items() if value is not None}
        body = msgspec.json.encode({"propagationPolicy": "Background", "preconditions": preconditions})
        # With a uid, the object cannot be another one, so asking twice ends the same object once.
        await self._write("DELETE", codec.object_path(resource, key), body, repeatable=uid is not None)

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource[T],
        selection: Selection = EVERYTHING,
        *,
        resource_version: str,
        seconds: int = 300,
        idle: float = 90.0,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """What happens after the resource version, for so many seconds.

        A healthy server sends a bookmark about every minute; a watch that is silent for longer than `idle` seconds is
        dead, and Unreachable.
        """
        options: dict[str, str | int | None] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        options |= selection.parameters | {"resourceVersion": resource_version}
        call = Call("GET", codec.path(resource, selection.namespace) + codec.query(options), timeout=self._timeout)
        async with self._transport.stream(call, idle=idle) as chunks:
            yield _events(resource, chunks)

    async def server_version(self) -> str:
        """The version of the API server, which also shows that it can be reached."""
        found = msgspec.json.decode(await self._read("/version"), type=dict[str, str | bool])
        return str(found.get("gitVersion", ""))

    async def _read(self, target: str) -> bytes:
        call = Call("GET", target, repeatable=True, timeout=self._timeout, urgent=self._urgent)
        return await self._transport.request(call, self._retries)

    async def _write(
        self,
        method: str,
        target: str,
        body: bytes,
        content_type: str = "application/json",
        *,
        repeatable: bool = False,
    ) -> bytes:
        call = Call(method, target, body, content_type, repeatable, self._timeout, self._fence, self._urgent)
        return await self._transport.request(call, self._retries)

    def _derived(self, **changes: Any) -> "Client":
        settings: dict[str, Any] = {"timeout": self._timeout, "retries": self._retries}
        settings |= {"fence": self._fence, "urgent": self._urgent, "field_manager": self._field_manager}
        return Client(self._transport, **(settings | changes))


@asynccontextmanager
async def connect(
    config: ClusterConfig, *, field_manager: str, metrics: KubeMetrics | None = None, connections: int = 128
) -> AsyncIterator[Client]:
    """A client of this cluster. No request is made before the first one is asked for.

    Watches and urgent requests come on top of the given number of connections.
    """
    async with Transport(config, metrics=metrics, connections=connections, user_agent=field_manager) as transport:
        yield Client(transport, field_manager=field_manager)


async def _events(resource: Resource[T], chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent[T]]:
    async for line in codec.lines(chunks):
        yield codec.read_event(resource, line)
