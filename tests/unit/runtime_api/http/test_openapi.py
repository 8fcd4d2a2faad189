"""The document says what the routes say, and every route says enough."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import schemathesis

from gpu_runtime.contract.errors import Gone, NoStock, NotFound, OperationReused, Overloaded
from gpu_runtime.runtime_api.http.envelope import http_status
from gpu_runtime.runtime_api.http.openapi import openapi_document, serialize_document
from gpu_runtime.runtime_api.http.route import Route, Scope
from gpu_runtime.runtime_api.openapi_routes import documented_routes
from tests.unit.runtime_api.http.sample_routes import EXAMPLE, WidgetService, sample_routes

CHECKED_IN = Path(__file__).parents[4] / "docs" / "api" / "openapi.json"
OPEN_ON_PURPOSE = {"/api/v1/health"}

SAMPLES = {route.name: route for route in sample_routes(WidgetService())}
APIS = pytest.mark.parametrize("routes", [list(SAMPLES.values()), documented_routes()], ids=["sample", "ours"])


def operation(*routes: Route) -> dict[str, Any]:
    """What the document says of the first of them."""
    found: dict[str, Any] = openapi_document(routes)["paths"][routes[0].path][routes[0].method.lower()]
    return found


def validator(openapi: dict[str, Any], name: str) -> jsonschema_rs.Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": openapi["components"]}
    return jsonschema_rs.validator_for(schema)


def test_openapi_document_is_up_to_date() -> None:
    assert CHECKED_IN.read_bytes() == serialize_document(openapi_document(documented_routes()))


@APIS
def test_the_document_is_openapi_and_its_schemas_are_json_schemas(routes: Sequence[Route]) -> None:
    openapi = openapi_document(routes)
    schemathesis.openapi.from_dict(openapi).validate()
    for schema in openapi["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})


@APIS
def test_every_reference_leads_somewhere(routes: Sequence[Route]) -> None:
    openapi = openapi_document(routes)
    for reference in references(openapi):
        found: Any = openapi
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def references(value: Any) -> Iterator[str]:
    match value:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for inner in value.values():
                yield from references(inner)
        case list():
            for inner in value:
                yield from references(inner)


@APIS
def test_every_route_has_summary_tag_and_scope(routes: Sequence[Route]) -> None:
    for route in routes:
        assert route.summary, route.name
        assert route.tag, route.name
        assert route.scope or route.path in OPEN_ON_PURPOSE, f"{route.name} is open to anybody"
        operators_only = route.path.startswith("/api/v1/operator/")
        assert (route.scope is Scope.OPERATOR) == operators_only, route.name


@APIS
def test_every_body_has_an_example_that_fits_its_schema(routes: Sequence[Route]) -> None:
    openapi = openapi_document(routes)
    for route in routes:
        if route.body:
            assert route.examples, f"{route.name} has no example"
            for example in route.examples.values():
                validator(openapi, route.body.__name__).validate(msgspec.to_builtins(example))
                msgspec.json.decode(msgspec.json.encode(example), type=route.body)


@APIS
def test_every_field_and_parameter_is_described(routes: Sequence[Route]) -> None:
    openapi = openapi_document(routes)
    for name, schema in openapi["components"]["schemas"].items():
        bare = [field for field, inner in schema["properties"].items() if not (set(inner) & {"description", "$ref"})]
        assert not bare, name
    for path in openapi["paths"].values():
        for told in path.values():
            assert all(parameter["description"] for parameter in told.get("parameters", ())), told["operationId"]


def test_the_order_of_the_routes_does_not_matter() -> None:
    routes = list(SAMPLES.values())
    assert serialize_document(openapi_document(routes)) == serialize_document(openapi_document(routes[::-1]))


def test_two_routes_with_one_name_are_rejected() -> None:
    other = dataclasses.replace(SAMPLES["getShelf"], path="/elsewhere")
    with pytest.raises(ValueError, match="several routes have the same name: getShelf"):
        openapi_document([SAMPLES["getShelf"], other])


def test_two_routes_with_one_method_and_path_are_rejected() -> None:
    other = dataclasses.replace(SAMPLES["getShelf"], name="showShelf")
    with pytest.raises(ValueError, match=r"the same place: GET /api/v1/operator/shelves/{name}"):
        openapi_document([SAMPLES["getShelf"], other])


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("getHealth", "200 400 413 503"),
        ("listShelves", "200 400 401 403 413 429 503"),
        ("createShelf", "200 202 400 401 403 409 413 429 503"),
        ("getShelf", "200 400 401 403 404 413 429 503"),
        ("changeShelf", "200 400 401 403 404 413 429 503"),
        ("deleteShelf", "204 400 401 403 404 413 429 503"),
    ],
)
def test_documented_statuses_of_a_route(name: str, statuses: str) -> None:
    assert " ".join(operation(SAMPLES[name])["responses"]) == statuses


def test_error_response_lists_its_codes() -> None:
    route = dataclasses.replace(SAMPLES["createShelf"], faults=(NoStock, OperationReused, Gone))
    told = operation(route)["responses"]
    assert told["409"]["description"].endswith("Code: `no_stock`, `operation_reused`.")
    assert told["410"]["description"].endswith("Code: `gone`.")


def test_success_is_wrapped_in_data_and_a_list_may_continue() -> None:
    one = operation(SAMPLES["getShelf"])["responses"]["200"]["content"]["application/json"]["schema"]
    many = operation(SAMPLES["listShelves"])["responses"]["200"]["content"]["application/json"]["schema"]
    assert one["properties"] == {"data": {"$ref": "#/components/schemas/ShelfView"}}
    assert many["properties"]["data"]["items"] == {"$ref": "#/components/schemas/ShelfView"}
    assert many["required"] == ["data"]
    assert "continue" in many["properties"]


def test_204_has_no_content() -> None:
    assert "content" not in operation(SAMPLES["deleteShelf"])["responses"]["204"]


def test_error_responses_document_their_headers() -> None:
    told = openapi_document([SAMPLES["getShelf"]])["components"]["responses"]
    assert {name: sorted(each["headers"]) for name, each in told.items()} == {
        "Invalid": ["X-Request-ID"],
        "Unauthenticated": ["WWW-Authenticate", "X-Request-ID"],
        "Forbidden": ["X-Request-ID"],
        "NotFound": ["X-Request-ID"],
        "TooLarge": ["X-Request-ID"],
        "Overloaded": ["Retry-After", "X-Request-ID"],
        "Unavailable": ["Retry-After", "X-Request-ID"],
    }


def test_parameters_have_types_limits_and_defaults() -> None:
    limit, after = operation(SAMPLES["listShelves"])["parameters"]
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}
    assert (after["name"], after["in"], after["schema"]) == ("continue", "query", {"type": "string"})
    (name,) = operation(SAMPLES["getShelf"])["parameters"]
    assert (name["name"], name["in"], name["required"]) == ("name", "path", True)


def test_security_scope_is_documented() -> None:
    assert operation(SAMPLES["getShelf"])["security"] == [{"bearer": ["operator"]}]
    assert operation(SAMPLES["getHealth"])["security"] == []


REQUEST = msgspec.to_builtins(EXAMPLE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"surprise": 1},
        {"operationID": ""},
        {"name": "Not-A-Name"},
        {"replicas": -1},
        {"replicas": "3"},
        {"template": {"surprise": 1}},
        {"template": {"ports": [{"name": "http", "port": 70000}]}},
        {"template": {"ports": [{"name": "http", "port": 80, "protocol": "ICMP"}]}},
        {"template": {"envs": [{"name": "A", "surprise": 1}]}},
        {"template": {"args": [""] * 257}},
        {"access": {"surprise": 1}},
    ],
    ids=str,
)
def test_invalid_body_at_any_depth_violates_the_schema(wrong: dict[str, Any]) -> None:
    fits = validator(openapi_document(list(SAMPLES.values())), "CreateShelf")
    assert fits.is_valid(REQUEST)
    assert not fits.is_valid(REQUEST | wrong)


@pytest.mark.parametrize("left_open", [{"name": ""}, {"access": None}, {"access": {"primaryPort": ""}}], ids=str)
def test_null_and_empty_optional_fields_match_the_schema(left_open: dict[str, Any]) -> None:
    assert validator(openapi_document(list(SAMPLES.values())), "CreateShelf").is_valid(REQUEST | left_open)


@pytest.mark.parametrize(("fault", "status"), [(NotFound, 404), (NoStock, 409), (Overloaded, 429)])
def test_fault_has_the_status_of_its_base_class(fault: Any, status: int) -> None:
    assert http_status(fault) == status
