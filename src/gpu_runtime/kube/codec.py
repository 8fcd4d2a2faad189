"""Encodes requests to the Kubernetes API and decodes its responses: paths, list options, list pages, watch events.

Pure: this module sends no requests.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from gpu_runtime.kube.errors import ApiStatus, KubeDecodeError, error_from_status
from gpu_runtime.kube.meta import ApiResource, KubeObject, KubeStruct, Manifest, ObjectKey

T = TypeVar("T", bound=KubeObject)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListOptions:
    """Selects objects of a kind by namespace, labels and fields, in the selector syntax of Kubernetes.

    An empty namespace means all namespaces. An empty selector selects every object.
    """

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def query_parameters(self) -> dict[str, str | int | None]:
        return {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}


ALL_OBJECTS = ListOptions()


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """One page of a list. All pages of a list have the same resource version."""

    items: tuple[T, ...]
    resource_version: str
    continue_token: str = ""
    """The token with which the client requests the next page. Empty on the last page."""
    undecodable: tuple[KubeObject, ...] = ()
    """Metadata of the listed objects that do not match the model."""
    remaining_item_count: int = 0
    """Approximate number of objects after this page. The server reports it only for a list without selectors."""


@dataclass(frozen=True, slots=True)
class ObjectApplied(Generic[T]):
    """An object was created or changed."""

    object: T


@dataclass(frozen=True, slots=True)
class ObjectDeleted(Generic[T]):
    """An object was deleted, or no longer matches the selector. `object` is its last state."""

    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch has delivered all changes up to this resource version."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class ObjectDecodeFailed:
    """The watch delivered an object that does not match the model. `object` has only the metadata."""

    object: KubeObject


WatchEvent = ObjectApplied[T] | ObjectDeleted[T] | Bookmark | ObjectDecodeFailed


def resource_path(resource: ApiResource[Any], namespace: str = "", name: str = "", subresource: str = "") -> str:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if resource.namespaced and namespace:
        base += f"/namespaces/{_quote_segment(namespace)}"
    base += f"/{resource.plural}"
    if name:
        base += f"/{_quote_segment(name)}"
    return f"{base}/{subresource}" if subresource else base


def object_path(resource: ApiResource[Any], key: ObjectKey, subresource: str = "") -> str:
    if not key.name or (resource.namespaced and not key.namespace):
        raise ValueError(f"{key!r} does not identify one {resource.kind}: the name or the namespace is empty")
    return resource_path(resource, key.namespace, key.name, subresource)


def query_string(parameters: Mapping[str, str | int | None]) -> str:
    non_empty = {key: value for key, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(non_empty)}" if non_empty else ""


def manifest_key(manifest: Manifest) -> ObjectKey:
    """Return the namespace and the name in a manifest. A missing value becomes an empty string."""
    metadata = manifest.get("metadata", {})
    return ObjectKey(metadata.get("namespace", ""), metadata.get("name", ""))


def encode_manifest(resource: ApiResource[Any], manifest: Manifest) -> bytes:
    """Encode a manifest as JSON. Add apiVersion and kind if the manifest does not contain them."""
    return msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, **manifest})


def decode_object(resource: ApiResource[T], body: bytes | msgspec.Raw) -> T:
    decoder: msgspec.json.Decoder[T] = _decoder(resource.model)
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise KubeDecodeError(f"a {resource.kind} does not match its model: {error}") from error


def decode_list_page(resource: ApiResource[T], body: bytes) -> ListPage[T]:
    try:
        object_list = _LIST_DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise KubeDecodeError(f"the response to a list of {resource.plural} is not a list: {error}") from error
    decoder = _decoder(resource.model)
    items: list[T] = []
    undecodable: list[KubeObject] = []
    for raw in object_list.items or ():
        try:
            items.append(decoder.decode(raw))
        except msgspec.DecodeError as error:
            undecodable.append(_log_decode_failure(resource, raw, error))
    metadata = object_list.metadata
    return ListPage(
        tuple(items), metadata.resource_version, metadata.continue_, tuple(undecodable), metadata.remaining_item_count
    )


def decode_watch_event(resource: ApiResource[T], line: bytes) -> WatchEvent[T]:
    """Decode one line of a watch. Raise a KubeApiError for an event of type ERROR."""
    try:
        event = _WATCH_EVENT_DECODER.decode(line)
        if event.type == "ERROR":
            raise error_from_status(msgspec.json.decode(event.object, type=ApiStatus))
        if event.type == "BOOKMARK":
            return Bookmark(_META_DECODER.decode(event.object).metadata.resource_version)
    except msgspec.DecodeError as error:
        raise KubeDecodeError(f"a watch of {resource.plural} sent a line that is not an event: {error}") from error
    try:
        decoded = _decoder(resource.model).decode(event.object)
    except msgspec.DecodeError as error:
        return ObjectDecodeFailed(_log_decode_failure(resource, event.object, error))
    return ObjectDeleted(decoded) if event.type == "DELETED" else ObjectApplied(decoded)


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the lines of a stream of chunks. A chunk can end within a line, and a line can have any length."""
    unfinished: list[bytes] = []
    async for chunk in chunks:
        head, *tail = chunk.split(b"\n")
        unfinished.append(head)
        for piece in tail:
            if line := b"".join(unfinished):
                yield line
            unfinished = [piece]


class _ListMeta(KubeStruct, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class _ObjectList(KubeStruct, frozen=True, kw_only=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _RawWatchEvent(KubeStruct, frozen=True, kw_only=True):
    type: str
    object: msgspec.Raw


_LIST_DECODER = msgspec.json.Decoder(_ObjectList)
_WATCH_EVENT_DECODER = msgspec.json.Decoder(_RawWatchEvent)
_META_DECODER = msgspec.json.Decoder(KubeObject)


@lru_cache(maxsize=256)
def _decoder(model: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(model)


@lru_cache(maxsize=4096)
def _quote_segment(text: str) -> str:
    return quote(text, safe="")


def _log_decode_failure(resource: ApiResource[Any], raw: msgspec.Raw, error: msgspec.DecodeError) -> KubeObject:
    """Log that an object does not match its model, and return its metadata."""
    decoded = _META_DECODER.decode(raw)
    metadata = decoded.metadata
    logger.error(
        "object decoding failed; the process ignores this change of the object",
        extra={
            "kind": resource.kind,
            "namespace": metadata.namespace,
            "object_name": metadata.name,
            "error": str(error),
        },
    )
    return decoded
