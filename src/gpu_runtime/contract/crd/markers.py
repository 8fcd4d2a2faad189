"""What a model says to the API server beyond its fields: what is held for a value, rules across fields, columns."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH
from gpu_runtime.kube.meta import ApiResource, KubeObject

T = TypeVar("T", bound=KubeObject)


def openapi(**keywords: Any) -> Meta:
    """OpenAPI keywords that the API server holds for a value.

    Reading enforces none of them: one object from an older or newer schema must not blind a whole cache.
    """
    return Meta(extra_json_schema=keywords)


@dataclass(frozen=True)
class CelRule:
    """A CEL rule on a struct. It stands on the parent of the fields it is about: see `never_changes`."""

    cel: str
    message: str
    field: str = ""
    """The field at fault, for the error's path."""


def immutable(field: str, because: str) -> CelRule:
    """Immutable from creation on: neither changed nor added nor taken away.

    A transition rule on the field itself is skipped where the field is unset before or after, so this one stands on
    the parent.
    """
    cel = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return CelRule(cel, f"{field} never changes: {because}", field)


def immutable_once_set(field: str, because: str) -> CelRule:
    """May be added later, but is neither changed nor taken away then."""
    cel = f"!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})"
    return CelRule(cel, f"{field} never changes once it is set: {because}", field)


@dataclass(frozen=True)
class PrinterColumn:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Shown only with -o wide."""


AGE_COLUMN = PrinterColumn("Age", ".metadata.creationTimestamp", "date")
READY_REASON_COLUMN = PrinterColumn("Reason", '.status.conditions[?(@.type=="Ready")].reason')


@dataclass(frozen=True)
class CrdDefinition(Generic[T]):
    """A kind of the platform as its CustomResourceDefinition shows it."""

    resource: ApiResource[T]
    short_names: tuple[str, ...]
    printer_columns: tuple[PrinterColumn, ...]
    max_name_length: int = MAX_NAME_LENGTH
    selectable_fields: tuple[str, ...] = ()
    """Fields that lists and watches can select by."""
