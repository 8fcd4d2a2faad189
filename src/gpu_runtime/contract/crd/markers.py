"""Markers for CRD generation: OpenAPI keywords of a field, CEL rules of a struct, and columns of `kubectl get`."""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

from msgspec import Meta

from gpu_runtime.contract.crd.well_known import MAX_NAME_LENGTH
from gpu_runtime.kube.meta import ApiResource, Condition, KubeObject

T = TypeVar("T", bound=KubeObject)


def openapi(**keywords: Any) -> Meta:
    """OpenAPI keywords that the API server enforces for a field.

    The decoder does not enforce them, because one object of an older or newer schema must not break the informer of its
    kind.
    """
    return Meta(extra_json_schema=keywords)


ConditionList: TypeAlias = Annotated[
    tuple[Condition, ...], openapi(**{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]})
]
"""The conditions of a status. The API server merges them by type."""


@dataclass(frozen=True)
class CelRule:
    """A CEL validation rule of a struct. A rule belongs to the parent of the fields that it compares: see
    `immutable`."""

    cel: str
    message: str
    field: str = ""
    """The invalid field, for the path in the error message."""


def immutable(field: str, because: str) -> CelRule:
    """Return a rule that rejects every change of a field after the creation: setting, changing or removing it.

    The rule belongs to the parent of the field. If it belonged to the field, the API server would skip the rule when
    the field is unset before or after the update.
    """
    cel = f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    return CelRule(cel, f"{field} is immutable: {because}", field)


def immutable_once_set(field: str, because: str) -> CelRule:
    """Return a rule that allows a later update to set a field. After that, the field cannot be changed or removed."""
    cel = f"!has(oldSelf.{field}) || (has(self.{field}) && self.{field} == oldSelf.{field})"
    return CelRule(cel, f"{field} is immutable once it is set: {because}", field)


@dataclass(frozen=True)
class PrinterColumn:
    """A column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False
    """Whether `kubectl get` shows the column only with `-o wide`."""


AGE_COLUMN = PrinterColumn("Age", ".metadata.creationTimestamp", "date")
READY_REASON_COLUMN = PrinterColumn("Reason", '.status.conditions[?(@.type=="Ready")].reason')


@dataclass(frozen=True)
class CrdDefinition(Generic[T]):
    """The parts of a CustomResourceDefinition that the model of the kind does not contain."""

    resource: ApiResource[T]
    short_names: tuple[str, ...]
    printer_columns: tuple[PrinterColumn, ...]
    max_name_length: int = MAX_NAME_LENGTH
    selectable_fields: tuple[str, ...] = ()
    """Fields that field selectors of list and watch requests can use."""
