"""Kubernetes' conventions on the wire: paths, selectors, pages, watch events. Pure: bytes in, values out."""

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
    """Which objects of a kind: of one namespace or of all, with these labels and fields, in Kubernetes' own syntax."""

    namespace: str = ""
    label_selector: str = ""
    field_selector: str = ""

    @property
    def query_parameters(self) -> dict[str, str | int | None]:
        return {"labelSelector": self.label_selector, "fieldSelector": self.field_selector}


ALL_OBJECTS = ListOptions()


@dataclass(frozen=True, slots=True)
class ListPage(Generic[T]):
    """Some objects of a list, as of one moment."""

    items: tuple[T, ...]
    resource_version: str
    continue_token: str = ""
    """Where the next page starts; empty on the last one."""
    undecodable: tuple[KubeObject, ...] = ()
    """What was listed but does not fit the model."""
    remaining_item_count: int = 0
    """How many come after this page, about. The server tells it only where nothing was selected by label or field."""


@dataclass(frozen=True, slots=True)
class ObjectApplied(Generic[T]):
    """An object was created or changed."""

    object: T


@dataclass(frozen=True, slots=True)
class ObjectDeleted(Generic[T]):
    """An object was deleted, or no longer matches the selector. This is its last state."""

    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing changed up to here."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class ObjectDecodeFailed:
    """An object was created or changed, and does not fit the model."""

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
        raise ValueError(f"{key!r} does not name one {resource.kind}")
    return resource_path(resource, key.namespace, key.name, subresource)


def query_string(parameters: Mapping[str, str | int | None]) -> str:
    given = {key: value for key, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def manifest_key(manifest: Manifest) -> ObjectKey:
    """The namespace and name that a manifest gives its object."""
    metadata = manifest.get("metadata", {})
    return ObjectKey(metadata.get("namespace", ""), metadata.get("name", ""))


def encode_manifest(resource: ApiResource[Any], manifest: Manifest) -> bytes:
    """A manifest as JSON. Its kind need not be written into it."""
    return msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, **manifest})


def decode_object(resource: ApiResource[T], body: bytes | msgspec.Raw) -> T:
    decoder: msgspec.json.Decoder[T] = _decoder(resource.model)
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise KubeDecodeError(f"a {resource.kind} does not fit its model: {error}") from error


def decode_list_page(resource: ApiResource[T], body: bytes) -> ListPage[T]:
    try:
        listing = _LIST_DECODER.decode(body)
    except msgspec.DecodeError as error:
        raise KubeDecodeError(f"a list of {resource.plural} is none: {error}") from error
    decoder = _decoder(resource.model)
    items: list[T] = []
    unreadable: list[KubeObject] = []
    for raw in listing.items or ():
        try:
            items.append(decoder.decode(raw))
        except msgspec.DecodeError as error:
            unreadable.append(_log_decode_failure(resource, raw, error))
    metadata = listing.metadata
    return ListPage(
        tuple(items), metadata.resource_version, metadata.continue_, tuple(unreadable), metadata.remaining_item_count
    )


def decode_watch_event(resource: ApiResource[T], line: bytes) -> WatchEvent[T]:
    """What a line of a watch says. Raises what the server reports as an error."""
    try:
        event = _WATCH_EVENT_DECODER.decode(line)
        if event.type == "ERROR":
            raise error_from_status(msgspec.json.decode(event.object, type=ApiStatus))
        if event.type == "BOOKMARK":
            return Bookmark(_META_DECODER.decode(event.object).metadata.resource_version)
    except msgspec.DecodeError as error:
        raise KubeDecodeError(f"a watch of {resource.plural} said something else than an event: {error}") from error
    try:
        found = _decoder(resource.model).decode(event.object)
    except msgspec.DecodeError as error:
        return ObjectDecodeFailed(_log_decode_failure(resource, event.object, error))
    return ObjectDeleted(found) if event.type == "DELETED" else ObjectApplied(found)


async def split_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream, however it was cut and however long they are."""
    rest: list[bytes] = []
    async for chunk in chunks:
        head, *tail = chunk.split(b"\n")
        rest.append(head)
        for piece in tail:
            if line := b"".join(rest):
                yield line
            rest = [piece]


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
    found = _META_DECODER.decode(raw)
    extra = {"namespace": found.metadata.namespace, "object": found.metadata.name, "error": str(error)}
    logger.error("a %s does not fit its model", resource.kind, extra=extra)
    return found
