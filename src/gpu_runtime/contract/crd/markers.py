"""What a model says to the API server beyond its fields: what is held for a value, rules across fields, columns."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import NAME_LIMIT
from gpu_runtime.kube.meta import Object, Resource

T = TypeVar("T", bound=Object)


def held(**keywords: Any) -> Meta:
    """OpenAPI keywords that the API server holds for a value.

    Reading enforces none of them: one object from an older or newer schema must not blind a whole cache.
    """
    return Meta(extra_json_schema=keywords)


@dataclass(frozen=True)
class Rule:
    """A CEL rule on a struct. It stands on the parent of the fields it is about: see `never_changes`."""

    cel: str
    message: str
    field: str = ""
    """The field at fault, for the error's path."""


def never_changes(field: str, because: str) -> Rule:
    """Immutable from creation on: neither changed nor added nor taken away.

    A transition rule on the field itself is skipped where the field is unset before or after, so this one stands on
    the parent.
    """
    cel = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return Rule(cel, f"{field} never changes: {because}", field)


def never_changes_once_set(field: str, because: str) -> Rule:
    """May be added later, but is neither changed nor taken away then."""
    cel = f"!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})"
    return Rule(cel, f"{field} never changes once it is set: {because}", field)


@dataclass(frozen=True)
class Column:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Shown only with -o wide."""


AGE = Column("Age", ".metadata.creationTimestamp", "date")
READY_REASON = Column("Reason", '.status.conditions[?(@.type=="Ready")].reason')


@dataclass(frozen=True)
class Definition(Generic[T]):
    """A kind of the platform as its CustomResourceDefinition shows it."""

    resource: Resource[T]
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    name_limit: int = NAME_LIMIT
    selectable: tuple[str, ...] = ()
    """Fields that lists and watches can select by."""
