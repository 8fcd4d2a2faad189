"""Unknown and missing fields of a document are reported with their paths, at any depth."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.validation.unknown_fields import (
    MissingField,
    has_exact_fields,
    mismatched_fields,
    unknown_fields,
    value_at,
)
from gpu_runtime.runtime_api.units.requests import CreateUnit

COMPLETE: dict[str, Any] = {"operationID": "op", "name": "web", "specName": "g1.1", "image": "nginx"}

UNKNOWN: dict[str, tuple[dict[str, Any], str, str]] = {
    "at the top": ({"imge": "x"}, "imge", "did you mean image?"),
    "inside an object": ({"template": {"comand": []}}, "template.comand", "did you mean command?"),
    "inside a list": (
        {"template": {"ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2, "protocoll": "TCP"}]}},
        "template.ports[1].protocoll",
        "did you mean protocol?",
    ),
    "inside an optional object": ({"access": {"primaryport": "http"}}, "access.primaryport", "primaryPort"),
    "inside an object of an optional object": (
        {"serverless": {"framework": {"socketpath": "/s"}}},
        "serverless.framework.socketpath",
        "socketPath",
    ),
    "in another case": ({"SpecName": "g1.1"}, "SpecName", "did you mean specName?"),
    "without a similar field": ({"access": {"zzz": 1}}, "access.zzz", "use one of primaryPort, scheme"),
}


@pytest.mark.parametrize(("document", "path", "remedy"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_field_error_suggests_the_closest_field(document: dict[str, Any], path: str, remedy: str) -> None:
    [unknown] = unknown_fields(COMPLETE | document, CreateUnit)
    assert unknown.path == path
    assert remedy in unknown.hint


def test_all_missing_fields_are_reported_together() -> None:
    document = {"name": "web", "template": {"ports": [{"port": 80}, {"name": "a"}]}}
    assert [each.path for each in mismatched_fields(document, CreateUnit) if isinstance(each, MissingField)] == [
        "operationID",
        "specName",
        "image",
        "template.ports[0].name",
        "template.ports[1].port",
    ]


@pytest.mark.parametrize("odd", [None, 3, "text", [], [1], {"template": 3}, {"template": {"ports": {"a": 1}}}])
def test_document_of_another_type_reports_no_unknown_fields(odd: Any) -> None:
    assert list(unknown_fields(odd, CreateUnit)) == []


def test_mapping_keys_are_free_and_mapping_values_are_checked() -> None:
    class Inner(msgspec.Struct):
        a: int = 0

    class Outer(msgspec.Struct):
        by_name: dict[str, Inner] = {}
        free: dict[str, str] = {}

    document = {"by_name": {"anything": {"b": 1}}, "free": {"anything": "x"}}
    assert [each.path for each in unknown_fields(document, Outer)] == ["by_name.anything.b"]


def test_value_at_returns_the_value_of_a_path() -> None:
    document = {"a": [{"b": 1}, {"b": 2}]}
    assert value_at(document, "a[1].b") == 2
    assert value_at(document, "a[7].b") is None
    assert value_at(document, "a.x.y") is None


EXACT: dict[str, tuple[dict[str, Any], bool]] = {
    "complete": (COMPLETE, True),
    "complete with optional objects": (
        COMPLETE | {"template": {"ports": [{"name": "a", "port": 1}]}, "access": None},
        True,
    ),
    "missing field in a list": (COMPLETE | {"template": {"ports": [{"name": "a"}]}}, False),
    "missing field": ({"name": "web"}, False),
} | {f"unknown field {name}": (COMPLETE | document, False) for name, (document, _, _) in UNKNOWN.items()}


@pytest.mark.parametrize(("document", "exact"), EXACT.values(), ids=EXACT)
def test_exact_field_check_agrees_with_unknown_and_missing_fields(document: dict[str, Any], exact: bool) -> None:
    assert has_exact_fields(document, CreateUnit) == exact
    assert exact == (not [*mismatched_fields(document, CreateUnit)])
