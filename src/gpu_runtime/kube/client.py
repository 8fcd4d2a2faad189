"""A typed client of the Kubernetes API. Reads give models, writes take manifests, failures are KubeErrors.

There is no cache and no waiting here. Every write is validated strictly: an unknown field is an error, not a typo that
nobody notices.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from gpu_runtime.kube import codec
from gpu_runtime.kube.codec import ALL_OBJECTS, ListOptions, ListPage, WatchEvent
from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import KubeResourceExpired
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.transport import Fence, KubeRequest, Transport

T = TypeVar("T", bound=KubeObject)

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
"""JSON is YAML, and this is the media type that every supported Kubernetes knows for server-side apply."""


class KubeClient:
    """Cheap to derive: `fenced`, `patient` and `urgent` give clients that share the connections of this one."""

    def __init__(  # noqa: PLR0913 - settings by name, which `connect` and the deriving methods give
        self,
        transport: Transport,
        *,
        field_manager: str,
        timeout: float = 10.0,
        retries: RetryPolicy = RetryPolicy(),  # noqa: B008 - immutable
        fence: Fence | None = None,
        bypass_connection_limit: bool = False,
    ) -> None:
        self._transport = transport
        self._field_manager = field_manager
        self._timeout = timeout
        self._retries = retries
        self._fence = fence
        self._bypass_connection_limit = bypass_connection_limit
        self._write_query = codec.query_string({"fieldManager": field_manager, "fieldValidation": "Strict"})
        self._force_apply_query = codec.query_string(
            {"fieldManager": field_manager, "fieldValidation": "Strict", "force": "true"}
        )

    def fenced(self, fence: Fence) -> "KubeClient":
        """A client whose writes are held back, as NotLeading, once the right to write has ended."""
        return self._derive(fence=fence)

    def with_options(self, timeout: float, retries: RetryPolicy) -> "KubeClient":
        """A client with another patience: seconds per attempt, and how often to try."""
        return self._derive(timeout=timeout, retries=retries)

    def without_connection_limit(self) -> "KubeClient":
        """A client whose requests never wait until others have given a connection back."""
        return self._derive(bypass_connection_limit=True)

    async def get(self, resource: ApiResource[T], key: ObjectKey) -> T:
        return codec.decode_object(resource, await self._read(codec.object_path(resource, key)))

    async def list(
        self, resource: ApiResource[T], selection: ListOptions = ALL_OBJECTS, *, page_size: int = 500
    ) -> ListPage[T]:
        """All of them in one Page, read in pages of the given size."""
        try:
            pages = [found async for found in self.pages(resource, selection, page_size=page_size)]
        except KubeResourceExpired:  # the list took longer than the server keeps history, so it must be read at once
            pages = [found async for found in self.pages(resource, selection, page_size=0)]
        items = tuple(item for one in pages for item in one.items)
        unreadable = tuple(found for one in pages for found in one.undecodable)
        return ListPage(items, pages[-1].resource_version, "", unreadable)

    async def pages(
        self, resource: ApiResource[T], selection: ListOptions = ALL_OBJECTS, *, page_size: int = 500
    ) -> AsyncIterator[ListPage[T]]:
        """Page after page, all as of one moment. Raises Expired when that moment is too long ago."""
        found = await self.page(resource, selection, limit=page_size)
        yield found
        while found.continue_token:
            found = await self.page(resource, selection, limit=page_size, continue_token=found.continue_token)
            yield found

    async def page(
        self,
        resource: ApiResource[T],
        selection: ListOptions = ALL_OBJECTS,
        *,
        limit: int = 500,
        continue_token: str = "",
    ) -> ListPage[T]:
        """One page; 0 means no limit."""
        query = codec.query_string({**selection.query_parameters, "limit": limit or None, "continue": continue_token})
        return codec.decode_list_page(
            resource, await self._read(codec.resource_path(resource, selection.namespace) + query)
        )

    async def count(self, resource: ApiResource[T], namespace: str = "") -> int:
        """How many there are, about, at the price of reading one."""
        found = await self.page(resource, ListOptions(namespace), limit=1)
        return len(found.items) + len(found.undecodable) + found.remaining_item_count

    async def create(self, resource: ApiResource[T], manifest: Manifest) -> T:
        namespace = codec.manifest_key(manifest).namespace
        if resource.namespaced and not namespace:
            raise ValueError(f"the manifest of a {resource.kind} names no namespace")
        target = codec.resource_path(resource, namespace) + self._write_query
        return codec.decode_object(
            resource, await self._write("POST", target, codec.encode_manifest(resource, manifest))
        )

    async def replace(self, resource: ApiResource[T], manifest: Manifest, *, subresource: str = "") -> T:
        """Write the whole object, if it is still the version that the manifest names; otherwise Conflict."""
        key = codec.manifest_key(manifest)
        if not manifest["metadata"].get("resourceVersion"):
            raise ValueError(f"replacing {resource.kind} {key} needs the resourceVersion that was read")
        target = codec.object_path(resource, key, subresource) + self._write_query
        return codec.decode_object(
            resource, await self._write("PUT", target, codec.encode_manifest(resource, manifest))
        )

    async def merge_patch(
        self,
        resource: ApiResource[T],
        key: ObjectKey,
        patch: Mapping[str, Any],
        *,
        resource_version: str | None = None,
        subresource: str = "",
    ) -> T:
        """Change what the patch names; with a resource version, only if the object is still that one."""
        if resource_version is not None:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": resource_version}}
        target = codec.object_path(resource, key, subresource) + self._write_query
        return codec.decode_object(
            resource, await self._write("PATCH", target, msgspec.json.encode(patch), MERGE_PATCH)
        )

    async def json_patch(
        self,
        resource: ApiResource[T],
        key: ObjectKey,
        operations: Sequence[Mapping[str, Any]],
        *,
        subresource: str = "",
    ) -> T:
        """Carry out the operations, all or none. A failed `test` among them is Invalid."""
        target = codec.object_path(resource, key, subresource) + self._write_query
        return codec.decode_object(
            resource, await self._write("PATCH", target, msgspec.json.encode(operations), JSON_PATCH)
        )

    async def apply(
        self, resource: ApiResource[T], manifest: Manifest, *, force: bool = True, subresource: str = ""
    ) -> T:
        """Server-side apply: these fields are this manager's and have these values; what it no longer names goes.

        Without force, a field that another manager owns is a Conflict. With a resource version in the manifest, so is
        an object that has changed since.
        """
        target = codec.object_path(resource, codec.manifest_key(manifest), subresource)
        target += self._force_apply_query if force else self._write_query
        body = codec.encode_manifest(resource, manifest)
        return codec.decode_object(resource, await self._write("PATCH", target, body, APPLY_PATCH, idempotent=True))

    async def delete(
        self,
        resource: ApiResource[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Ask for its end, if it is still that object and that version; otherwise Conflict."""
        given = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in given.items() if value is not None}
        body = msgspec.json.encode({"propagationPolicy": "Background", "preconditions": preconditions})
        # With a uid, the object cannot be another one, so asking twice ends the same object once.
        await self._write("DELETE", codec.object_path(resource, key), body, idempotent=uid is not None)

    @asynccontextmanager
    async def watch(
        self,
        resource: ApiResource[T],
        selection: ListOptions = ALL_OBJECTS,
        *,
        resource_version: str,
        timeout_seconds: int = 300,
        idle_timeout: float = 90.0,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """What happens after the resource version, for so many seconds.

        A healthy server sends a bookmark about every minute; a watch that is silent for longer than `idle` seconds is
        dead, and Unreachable.
        """
        options: dict[str, str | int | None] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": timeout_seconds,
        }
        options |= selection.query_parameters | {"resourceVersion": resource_version}
        call = KubeRequest(
            "GET",
            codec.resource_path(resource, selection.namespace) + codec.query_string(options),
            timeout=self._timeout,
        )
        async with self._transport.stream(call, idle_timeout=idle_timeout) as chunks:
            yield _watch_events(resource, chunks)

    async def server_version(self) -> str:
        """The version of the API server, which also shows that it can be reached."""
        found = msgspec.json.decode(await self._read("/version"), type=dict[str, str | bool])
        return str(found.get("gitVersion", ""))

    async def _read(self, target: str) -> bytes:
        call = KubeRequest(
            "GET", target, idempotent=True, timeout=self._timeout, bypass_connection_limit=self._bypass_connection_limit
        )
        return await self._transport.request(call, self._retries)

    async def _write(
        self,
        method: str,
        target: str,
        body: bytes,
        content_type: str = "application/json",
        *,
        idempotent: bool = False,
    ) -> bytes:
        call = KubeRequest(
            method, target, body, content_type, idempotent, self._timeout, self._fence, self._bypass_connection_limit
        )
        return await self._transport.request(call, self._retries)

    def _derive(self, **changes: Any) -> "KubeClient":
        settings: dict[str, Any] = {"timeout": self._timeout, "retries": self._retries}
        settings |= {
            "fence": self._fence,
            "bypass_connection_limit": self._bypass_connection_limit,
            "field_manager": self._field_manager,
        }
        return KubeClient(self._transport, **(settings | changes))


@asynccontextmanager
async def open_kube_client(
    config: ClusterConfig, *, field_manager: str, metrics: KubeMetrics | None = None, max_connections: int = 128
) -> AsyncIterator[KubeClient]:
    """A client of this cluster. No request is made before the first one is asked for.

    Watches and urgent requests come on top of the given number of connections.
    """
    async with Transport(
        config, metrics=metrics, max_connections=max_connections, user_agent=field_manager
    ) as transport:
        yield KubeClient(transport, field_manager=field_manager)


async def _watch_events(resource: ApiResource[T], chunks: AsyncIterator[bytes]) -> AsyncIterator[WatchEvent[T]]:
    async for line in codec.split_lines(chunks):
        yield codec.decode_watch_event(resource, line)
