"""A typed client of the Kubernetes API: reads return models, writes accept manifests, failures raise KubeErrors.

The client has no cache and does not wait for conditions. The API server validates every write strictly: it rejects
unknown fields. So a misspelled field name always causes an error.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import msgspec

from gpu_runtime.kube import codec
from gpu_runtime.kube.codec import ALL_OBJECTS, ListOptions, ListPage, WatchEvent
from gpu_runtime.kube.config import ClusterConfig
from gpu_runtime.kube.errors import KubeDecodeError, KubeResourceExpired
from gpu_runtime.kube.meta import ApiResource, KubeObject, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.transport import Fence, KubeRequest, Transport

T = TypeVar("T", bound=KubeObject)

MERGE_PATCH = "application/merge-patch+json"


class KubeClient:
    """A client of one API server.

    `fenced`, `with_options` and `without_connection_limit` return clients with other options. These clients share the
    connections of this client.
    """

    def __init__(  # noqa: PLR0913 - options by keyword, from `open_kube_client` and the deriving methods
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

    def fenced(self, fence: Fence) -> "KubeClient":
        """Return a client that raises KubeNotLeader instead of sending a write after the right to write has expired."""
        return self._derive(fence=fence)

    def with_options(self, timeout: float, retries: RetryPolicy) -> "KubeClient":
        """Return a client with another timeout in seconds per attempt and another retry policy."""
        return self._derive(timeout=timeout, retries=retries)

    def without_connection_limit(self) -> "KubeClient":
        """Return a client whose requests do not wait for a free connection."""
        return self._derive(bypass_connection_limit=True)

    async def get(self, resource: ApiResource[T], key: ObjectKey) -> T:
        return codec.decode_object(resource, await self._read(codec.object_path(resource, key)))

    async def list(
        self, resource: ApiResource[T], list_options: ListOptions = ALL_OBJECTS, *, page_size: int = 500
    ) -> ListPage[T]:
        """Return all selected objects in one ListPage. The client reads them in pages of the given size."""
        try:
            pages = [page async for page in self.pages(resource, list_options, page_size=page_size)]
        except KubeResourceExpired:
            # The server deleted the version of the list before the client had read all pages. So the client reads one
            # large page.
            pages = [page async for page in self.pages(resource, list_options, page_size=0)]
        items = tuple(item for page in pages for item in page.items)
        undecodable = tuple(item for page in pages for item in page.undecodable)
        return ListPage(items, pages[-1].resource_version, "", undecodable)

    async def pages(
        self, resource: ApiResource[T], list_options: ListOptions = ALL_OBJECTS, *, page_size: int = 500
    ) -> AsyncIterator[ListPage[T]]:
        """Yield the pages of a list one after another. All pages have the same resource version.

        Raises KubeResourceExpired if the server no longer has that version.
        """
        page = await self.page(resource, list_options, limit=page_size)
        yield page
        while page.continue_token:
            page = await self.page(resource, list_options, limit=page_size, continue_token=page.continue_token)
            yield page

    async def page(
        self,
        resource: ApiResource[T],
        list_options: ListOptions = ALL_OBJECTS,
        *,
        limit: int = 500,
        continue_token: str = "",
    ) -> ListPage[T]:
        """Return one page with at most `limit` objects. With the limit 0, the page contains all objects."""
        query = codec.query_string(
            {**list_options.query_parameters, "limit": limit or None, "continue": continue_token}
        )
        target = codec.resource_path(resource, list_options.namespace) + query
        return codec.decode_list_page(resource, await self._read(target))

    async def count(self, resource: ApiResource[T], namespace: str = "") -> int:
        """Return the approximate number of objects. The response of the server contains only one of the objects."""
        page = await self.page(resource, ListOptions(namespace), limit=1)
        return len(page.items) + len(page.undecodable) + page.remaining_item_count

    async def create(self, resource: ApiResource[T], manifest: Manifest) -> T:
        namespace = codec.manifest_key(manifest).namespace
        if resource.namespaced and not namespace:
            raise ValueError(f"the manifest of a {resource.kind} has no metadata.namespace")
        target = codec.resource_path(resource, namespace) + self._write_query
        response = await self._write("POST", target, codec.encode_manifest(resource, manifest))
        return codec.decode_object(resource, response)

    async def replace(self, resource: ApiResource[T], manifest: Manifest, *, subresource: str = "") -> T:
        """Replace the whole object. Raises KubeConflict if it does not have the resource version of the manifest."""
        key = codec.manifest_key(manifest)
        if not manifest["metadata"].get("resourceVersion"):
            raise ValueError(f"cannot replace {resource.kind} {key}: the manifest needs metadata.resourceVersion")
        target = codec.object_path(resource, key, subresource) + self._write_query
        response = await self._write("PUT", target, codec.encode_manifest(resource, manifest))
        return codec.decode_object(resource, response)

    async def merge_patch(
        self,
        resource: ApiResource[T],
        key: ObjectKey,
        patch: Mapping[str, Any],
        *,
        resource_version: str | None = None,
        subresource: str = "",
    ) -> T:
        """Change the fields in the patch.

        If a resource version is given, raises KubeConflict if the object has another resource version.
        """
        if resource_version is not None:
            patch = {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": resource_version}}
        target = codec.object_path(resource, key, subresource) + self._write_query
        response = await self._write("PATCH", target, msgspec.json.encode(patch), MERGE_PATCH)
        return codec.decode_object(resource, response)

    async def delete(
        self,
        resource: ApiResource[Any],
        key: ObjectKey,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Delete the object. Raises KubeConflict if the object does not have the given UID or resource version."""
        fields = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {name: value for name, value in fields.items() if value is not None}
        body = msgspec.json.encode({"propagationPolicy": "Background", "preconditions": preconditions})
        # With a UID the request is idempotent: a repeated delete cannot delete a new object with the same name.
        await self._write("DELETE", codec.object_path(resource, key), body, idempotent=uid is not None)

    @asynccontextmanager
    async def watch(
        self,
        resource: ApiResource[T],
        list_options: ListOptions = ALL_OBJECTS,
        *,
        resource_version: str,
        timeout_seconds: int = 300,
        idle_timeout: float = 90.0,
    ) -> AsyncIterator[AsyncIterator[WatchEvent[T]]]:
        """Yield the changes after the resource version. The server ends the watch after `timeout_seconds`.

        A healthy server sends a bookmark about every minute. If no data arrives for `idle_timeout` seconds, the client
        assumes that the connection is dead, and raises KubeUnreachable.
        """
        query: dict[str, str | int | None] = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": timeout_seconds,
        }
        query |= list_options.query_parameters | {"resourceVersion": resource_version}
        target = codec.resource_path(resource, list_options.namespace) + codec.query_string(query)
        request = KubeRequest("GET", target, timeout=self._timeout)
        async with self._transport.stream(request, idle_timeout=idle_timeout) as chunks:
            yield (codec.decode_watch_event(resource, line) async for line in codec.split_lines(chunks))

    async def server_version(self) -> str:
        """Return the version of the API server. A successful call also shows that the server can be reached."""
        version = msgspec.json.decode(await self._read("/version"), type=dict[str, str | bool])
        return str(version.get("gitVersion", ""))

    async def server_time(self) -> datetime:
        """Return the time of the API server, in whole seconds. Raises KubeDecodeError if the server sends no time."""
        date = await self._transport.server_date(KubeRequest("GET", "/version", timeout=self._timeout))
        try:
            return parsedate_to_datetime(date)
        except ValueError as error:
            raise KubeDecodeError(f"the API server sent the date {date!r}") from error

    async def read_path(self, path: str) -> bytes:
        """Return the document at a path that belongs to no resource, for example /openid/v1/jwks."""
        return await self._read(path)

    async def _read(self, target: str) -> bytes:
        request = KubeRequest(
            "GET", target, idempotent=True, timeout=self._timeout, bypass_connection_limit=self._bypass_connection_limit
        )
        return await self._transport.request(request, self._retries)

    async def _write(
        self,
        method: str,
        target: str,
        body: bytes,
        content_type: str = "application/json",
        *,
        idempotent: bool = False,
    ) -> bytes:
        request = KubeRequest(
            method, target, body, content_type, idempotent, self._timeout, self._fence, self._bypass_connection_limit
        )
        return await self._transport.request(request, self._retries)

    def _derive(self, **changes: Any) -> "KubeClient":
        options: dict[str, Any] = {
            "timeout": self._timeout,
            "retries": self._retries,
            "fence": self._fence,
            "bypass_connection_limit": self._bypass_connection_limit,
            "field_manager": self._field_manager,
        }
        return KubeClient(self._transport, **(options | changes))


@asynccontextmanager
async def open_kube_client(
    config: ClusterConfig, *, field_manager: str, metrics: KubeMetrics | None = None, max_connections: int = 128
) -> AsyncIterator[KubeClient]:
    """Yield a client of the cluster. The client connects when it sends the first request.

    `max_connections` does not limit watches, and does not limit requests that bypass the connection limit.
    """

    async with Transport(
        config, metrics=metrics, max_connections=max_connections, user_agent=field_manager
    ) as transport:
        yield KubeClient(transport, field_manager=field_manager)
