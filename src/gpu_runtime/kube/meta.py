"""Metadata and base classes of Kubernetes objects as immutable structs. Pure: this module makes no requests.

A model declares only the fields that its readers need. The decoder drops the other fields, so a cache of such objects
stays small.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

Manifest = dict[str, Any]
"""An object as a client writes it: a dict in the shape of the YAML manifest, with the fields that the writer owns."""


class ObjectKey(NamedTuple):
    """Identifies one object of a kind. The namespace of a cluster-scoped object is empty."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class KubeStruct(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """A JSON object of the Kubernetes API: camelCase in JSON, snake_case in Python.

    A field that has its default value is not encoded. Decoded JSON has no reference cycles, so the garbage collector
    does not track these objects.
    """


def parse_timestamp(text: str | None) -> datetime | None:
    """Parse a timestamp of an object. Return None if the text is missing or if Python cannot represent the time.

    A timestamp without a time zone is UTC. The API server accepts timestamps without a time zone, and times that Python
    cannot represent, such as leap seconds. Every client that has the permission to write a status can write such a
    timestamp.
    """
    try:
        parsed = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


class OwnerReference(KubeStruct, frozen=True, kw_only=True):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool = False
    block_owner_deletion: bool = False


class ObjectMeta(KubeStruct, frozen=True, kw_only=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None

    @property
    def key(self) -> ObjectKey:
        return ObjectKey(self.namespace, self.name)

    @property
    def controller_ref(self) -> OwnerReference | None:
        """The owner reference with `controller: true`: it names the object that manages this one. None if absent."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class Condition(KubeStruct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class KubeObject(KubeStruct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()


T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True)
class ApiResource(Generic[T]):
    """A resource that the API server serves, and the model of its objects."""

    group: str
    version: str
    kind: str
    plural: str
    model: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version
