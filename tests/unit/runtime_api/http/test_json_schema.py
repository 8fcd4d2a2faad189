"""JSON Schemas of models: every kind of type, and the difference between requests and responses."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from msgspec import UNSET, Meta, UnsetType

from gpu_runtime.contract.crd.markers import openapi
from gpu_runtime.runtime_api.http.json_schema import components, schema_of, struct_schema
from gpu_runtime.runtime_api.http.route import Body, View


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(View, frozen=True, kw_only=True):
    """A part."""

    size: int = 1
    """Its size."""


class Base(View, frozen=True, kw_only=True):
    name: str
    """Its name."""


class Whole(Base, frozen=True, kw_only=True):
    """A whole."""

    inner: Inner | None = None
    """Its part."""

    problem: str | None = None
    """The problem."""


class Change(Body, frozen=True, kw_only=True):
    """A change."""

    inner: Inner | UnsetType = UNSET
    """The part."""


@pytest.mark.parametrize(
    ("kind", "schema"),
    [
        (bool, {"type": "boolean"}),
        (Annotated[float, Meta(gt=0, lt=1)], {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        (Annotated[str, Meta(min_length=1, pattern="^a")], {"type": "string", "minLength": 1, "pattern": "^a"}),
        (Annotated[str, openapi(maxLength=3)], {"type": "string", "maxLength": 3}),
        (Annotated[list[str], Meta(max_length=2)], {"type": "array", "items": {"type": "string"}, "maxItems": 2}),
        (
            Annotated[tuple[int, ...], openapi(maxItems=2, **{"x-kubernetes-list-type": "set"})],
            {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        ),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (datetime, {"type": "string", "format": "date-time"}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Color, {"type": "string", "enum": ["blue", "red"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Inner, {"$ref": "#/components/schemas/Inner"}),
        (Any, {}),
    ],
    ids=str,
)
def test_schema_of_each_kind_of_type(kind: Any, schema: dict[str, Any]) -> None:
    generated = schema_of(kind)
    assert generated | {"enum": sorted(generated["enum"])} == schema if "enum" in generated else generated == schema


def test_response_schema_has_no_null_and_is_open() -> None:
    schema = struct_schema(Whole, is_request=False)
    assert schema["properties"]["problem"] == {"description": "The problem.", "type": "string"}
    assert schema["required"] == ["name"]
    assert "additionalProperties" not in schema


def test_request_schema_allows_null_and_is_closed() -> None:
    schema = struct_schema(Whole, is_request=True)
    assert schema["properties"]["problem"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema["additionalProperties"] is False


def test_inherited_field_has_the_description_of_its_base_class() -> None:
    assert struct_schema(Whole, is_request=False)["properties"]["name"]["description"] == "Its name."


def test_struct_of_requests_and_responses_is_closed() -> None:
    schemas = components([Change], [list[Whole]])
    assert list(schemas) == ["Change", "Inner", "Whole"]
    closed = {name for name, schema in schemas.items() if schema.get("additionalProperties") is False}
    assert closed == {"Change", "Inner"}


def test_unset_field_is_not_required() -> None:
    schema = struct_schema(Change, is_request=True)
    assert "required" not in schema
    assert schema["properties"]["inner"] == {"description": "The part.", "$ref": "#/components/schemas/Inner"}


def test_two_models_with_one_name_are_rejected() -> None:
    other = type("Inner", (Inner,), {"__doc__": "Another."}, frozen=True, kw_only=True)
    with pytest.raises(ValueError, match="both have a Inner"):
        components([], [Inner, other])
