"""What every Kubernetes object has, as immutable structs. Pure: nothing here talks to anyone.

A model names only the fields that its reader needs; the decoder drops the rest, so a cache of such objects stays small.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

Manifest = dict[str, Any]
"""An object as it is written: the shape of the manifest itself, with the fields that its writer owns."""


class ObjectKey(NamedTuple):
    """What names an object among those of its kind. The namespace is empty for kinds that have none."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class KubeStruct(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """A value in Kubernetes' JSON: camel case outside, snake case inside, defaults left out.

    What is read from JSON has no cycles, so the garbage collector need not look at it.
    """


def parse_timestamp(text: str | None) -> datetime | None:
    """A time as objects have it; None where there is none, or none that is on a clock.

    The API server admits more as a date-time than there is: leap seconds, no time zone. Whoever may write a status may
    write that.
    """
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


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
        """The owner that manages this object, if it has one."""
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
    """A kind as the API serves it, and the model its objects are read into."""

    group: str
    version: str
    kind: str
    plural: str
    model: type[T]
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version
