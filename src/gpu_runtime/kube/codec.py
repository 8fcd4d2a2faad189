"""Kubernetes' conventions on the wire: paths, selectors, pages, watch events. Pure: bytes in, values out."""

import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from gpu_runtime.kube.errors import Status, Unreadable, refused
from gpu_runtime.kube.meta import Key, Manifest, Object, Resource, Wire

T = TypeVar("T", bound=Object)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Selection:
    """Which objects of a kind: of one namespace or of all, with these labels and fields, in Kubernetes' own syntax."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def parameters(self) -> dict[str, str | int | None]:
        return {"labelSelector": self.labels, "fieldSelector": self.fields}


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some objects of a list, as of one moment."""

    items: tuple[T, ...]
    resource_version: str
    continuation: str = ""
    """Where the next page starts; empty on the last one."""
    unreadable: tuple[Object, ...] = ()
    """What was listed but does not fit the model."""
    remaining: int = 0
    """How many come after this page, about. The server tells it only where nothing was selected by label or field."""


@dataclass(frozen=True, slots=True)
class Present(Generic[T]):
    """An object was created or changed."""

    object: T


@dataclass(frozen=True, slots=True)
class Gone(Generic[T]):
    """An object was deleted, or no longer matches the selector. This is its last state."""

    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """Nothing changed up to here."""

    resource_version: str


@dataclass(frozen=True, slots=True)
class Garbled:
    """An object was created or changed, and does not fit the model."""

    object: Object


WatchEvent = Present[T] | Gone[T] | Bookmark | Garbled


def path(resource: Resource[Any], namespace: str = "", name: str = "", subresource: str = "") -> str:
    base = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    if resource.namespaced and namespace:
        base += f"/namespaces/{_segment(namespace)}"
    base += f"/{resource.plural}"
    if name:
        base += f"/{_segment(name)}"
    return f"{base}/{subresource}" if subresource else base


def object_path(resource: Resource[Any], key: Key, subresource: str = "") -> str:
    if not key.name or (resource.namespaced and not key.namespace):
        raise ValueError(f"{key!r} does not name one {resource.kind}")
    return path(resource, key.namespace, key.name, subresource)


def query(parameters: Mapping[str, str | int | None]) -> str:
    given = {key: value for key, value in parameters.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


def key_of(manifest: Manifest) -> Key:
    """The namespace and name that a manifest gives its object."""
    metadata = manifest.get("metadata", {})
    return Key(metadata.get("namespace", ""), metadata.get("name", ""))


def encoded(resource: Resource[Any], manifest: Manifest) -> bytes:
    """A manifest as JSON. Its kind need not be written into it."""
    return msgspec.json.encode({"apiVersion": resource.api_version, "kind": resource.kind, **manifest})


def read(resource: Resource[T], body: bytes | msgspec.Raw) -> T:
    decoder: msgspec.json.Decoder[T] = _decoder(resource.model)
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise Unreadable(f"a {resource.kind} does not fit its model: {error}") from error


def read_page(resource: Resource[T], body: bytes) -> Page[T]:
    try:
        listing = _LIST.decode(body)
    except msgspec.DecodeError as error:
        raise Unreadable(f"a list of {resource.plural} is none: {error}") from error
    decoder = _decoder(resource.model)
    items: list[T] = []
    unreadable: list[Object] = []
    for raw in listing.items or ():
        try:
            items.append(decoder.decode(raw))
        except msgspec.DecodeError as error:
            unreadable.append(_identify(resource, raw, error))
    metadata = listing.metadata
    return Page(
        tuple(items), metadata.resource_version, metadata.continue_, tuple(unreadable), metadata.remaining_item_count
    )


def read_event(resource: Resource[T], line: bytes) -> WatchEvent[T]:
    """What a line of a watch says. Raises what the server reports as an error."""
    try:
        event = _EVENT.decode(line)
        if event.type == "ERROR":
            raise refused(msgspec.json.decode(event.object, type=Status))
        if event.type == "BOOKMARK":
            return Bookmark(_META.decode(event.object).metadata.resource_version)
    except msgspec.DecodeError as error:
        raise Unreadable(f"a watch of {resource.plural} said something else than an event: {error}") from error
    try:
        found = _decoder(resource.model).decode(event.object)
    except msgspec.DecodeError as error:
        return Garbled(_identify(resource, event.object, error))
    return Gone(found) if event.type == "DELETED" else Present(found)


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a stream, however it was cut and however long they are."""
    rest: list[bytes] = []
    async for chunk in chunks:
        head, *tail = chunk.split(b"\n")
        rest.append(head)
        for piece in tail:
            if line := b"".join(rest):
                yield line
            rest = [piece]


class _ListMeta(Wire, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int = 0


class _List(Wire, frozen=True, kw_only=True):
    metadata: _ListMeta = _ListMeta()
    items: list[msgspec.Raw] | None = None


class _Event(Wire, frozen=True, kw_only=True):
    type: str
    object: msgspec.Raw


_LIST = msgspec.json.Decoder(_List)
_EVENT = msgspec.json.Decoder(_Event)
_META = msgspec.json.Decoder(Object)


@lru_cache(maxsize=256)
def _decoder(model: type[T]) -> msgspec.json.Decoder[T]:
    return msgspec.json.Decoder(model)


@lru_cache(maxsize=4096)
def _segment(text: str) -> str:
    return quote(text, safe="")


def _identify(resource: Resource[Any], raw: msgspec.Raw, error: msgspec.DecodeError) -> Object:
    found = _META.decode(raw)
    extra = {"namespace": found.metadata.namespace, "object": found.metadata.name, "error": str(error)}
    logger.error("a %s does not fit its model", resource.kind, extra=extra)
    return found
