"""The OpenAPI document matches the routes, and every route is documented completely."""

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
OPEN_PATHS = {"/api/v1/health"}

SAMPLES = {route.name: route for route in sample_routes(WidgetService())}
APIS = pytest.mark.parametrize("routes", [list(SAMPLES.values()), documented_routes()], ids=["sample", "runtime-api"])


def operation(*routes: Route) -> dict[str, Any]:
    """The OpenAPI operation of the first route."""
    documented: dict[str, Any] = openapi_document(routes)["paths"][routes[0].path][routes[0].method.lower()]
    return documented


def validator(openapi: dict[str, Any], name: str) -> jsonschema_rs.Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": openapi["components"]}
    return jsonschema_rs.validator_for(schema)


def test_openapi_document_is_up_to_date() -> None:
    assert CHECKED_IN.read_bytes() == serialize_document(openapi_document(documented_routes()))


@APIS
def test_document_is_valid_openapi_with_valid_json_schemas(routes: Sequence[Route]) -> None:
    openapi = openapi_document(routes)
    schemathesis.openapi.from_dict(openapi).validate()
    for schema in openapi["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema | {"$schema": "https://json-schema.org/draft/2020-12/schema"})


@APIS
def test_every_reference_can_be_resolved(routes: Sequence[Route]) -> None:
    openapi = openapi_document(routes)
    for reference in references(openapi):
        target: Any = openapi
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


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
        assert route.scope or route.path in OPEN_PATHS, f"{route.name} needs no authentication"
        is_operator_path = route.path.startswith("/api/v1/operator/")
        if route.scope is not Scope.WORKER:  # the activator uses one path of operators
            assert (route.scope is Scope.OPERATOR) == is_operator_path, route.name


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
        undescribed = [
            field for field, inner in schema["properties"].items() if not (set(inner) & {"description", "$ref"})
        ]
        assert not undescribed, name
    for path in openapi["paths"].values():
        for each in path.values():
            assert all(parameter["description"] for parameter in each.get("parameters", ())), each["operationId"]


def test_document_does_not_depend_on_the_order_of_the_routes() -> None:
    routes = list(SAMPLES.values())
    assert serialize_document(openapi_document(routes)) == serialize_document(openapi_document(routes[::-1]))


def test_two_routes_with_one_name_are_rejected() -> None:
    other = dataclasses.replace(SAMPLES["getWidget"], path="/elsewhere")
    with pytest.raises(ValueError, match="several routes have the same name: getWidget"):
        openapi_document([SAMPLES["getWidget"], other])


def test_two_routes_with_one_method_and_path_are_rejected() -> None:
    other = dataclasses.replace(SAMPLES["getWidget"], name="readWidget")
    with pytest.raises(ValueError, match=r"the same method and path: GET /api/v1/operator/widgets/{name}"):
        openapi_document([SAMPLES["getWidget"], other])


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("getHealth", "200 400 408 413 429 503"),
        ("listWidgets", "200 400 401 403 408 413 429 503"),
        ("createWidget", "200 202 400 401 403 408 409 413 429 503"),
        ("getWidget", "200 400 401 403 404 408 413 429 503"),
        ("updateWidget", "200 400 401 403 404 408 413 429 503"),
        ("deleteWidget", "204 400 401 403 404 408 413 429 503"),
    ],
)
def test_documented_statuses_of_a_route(name: str, statuses: str) -> None:
    assert " ".join(operation(SAMPLES[name])["responses"]) == statuses


def test_error_response_lists_its_codes() -> None:
    route = dataclasses.replace(SAMPLES["createWidget"], faults=(NoStock, OperationReused, Gone))
    responses = operation(route)["responses"]
    assert responses["409"]["description"].endswith("Code: `no_stock`, `operation_reused`.")
    assert responses["410"]["description"].endswith("Code: `gone`.")


def test_success_is_wrapped_in_data_and_a_list_may_continue() -> None:
    one = operation(SAMPLES["getWidget"])["responses"]["200"]["content"]["application/json"]["schema"]
    many = operation(SAMPLES["listWidgets"])["responses"]["200"]["content"]["application/json"]["schema"]
    assert one["properties"] == {"data": {"$ref": "#/components/schemas/WidgetView"}}
    assert many["properties"]["data"]["items"] == {"$ref": "#/components/schemas/WidgetView"}
    assert many["required"] == ["data"]
    assert "continue" in many["properties"]


def test_204_has_no_content() -> None:
    assert "content" not in operation(SAMPLES["deleteWidget"])["responses"]["204"]


def test_error_responses_document_their_headers() -> None:
    responses = openapi_document([SAMPLES["getWidget"]])["components"]["responses"]
    assert {name: sorted(each["headers"]) for name, each in responses.items()} == {
        "Invalid": ["X-Request-ID"],
        "Unauthenticated": ["WWW-Authenticate", "X-Request-ID"],
        "Forbidden": ["X-Request-ID"],
        "NotFound": ["X-Request-ID"],
        "SlowRequest": ["X-Request-ID"],
        "TooLarge": ["X-Request-ID"],
        "Overloaded": ["Retry-After", "X-Request-ID"],
        "Unavailable": ["Retry-After", "X-Request-ID"],
    }


def test_parameters_have_types_limits_and_defaults() -> None:
    limit, after = operation(SAMPLES["listWidgets"])["parameters"]
    assert limit["schema"] == {"type": "integer", "minimum": 1, "maximum": 500, "default": 100}
    assert (after["name"], after["in"], after["schema"]) == ("continue", "query", {"type": "string"})
    (name,) = operation(SAMPLES["getWidget"])["parameters"]
    assert (name["name"], name["in"], name["required"]) == ("name", "path", True)


def test_security_scope_is_documented() -> None:
    assert operation(SAMPLES["getWidget"])["security"] == [{"bearer": ["operator"]}]
    assert operation(SAMPLES["getHealth"])["security"] == []


REQUEST = msgspec.to_builtins(EXAMPLE)


@pytest.mark.parametrize(
    "change",
    [
        {"unknownField": 1},
        {"operationID": ""},
        {"name": "Not-A-Name"},
        {"replicas": -1},
        {"replicas": "3"},
        {"template": {"unknownField": 1}},
        {"template": {"ports": [{"name": "http", "port": 70000}]}},
        {"template": {"ports": [{"name": "http", "port": 80, "protocol": "ICMP"}]}},
        {"template": {"envs": [{"name": "A", "unknownField": 1}]}},
        {"template": {"args": [""] * 257}},
        {"access": {"unknownField": 1}},
    ],
    ids=str,
)
def test_invalid_body_at_any_depth_violates_the_schema(change: dict[str, Any]) -> None:
    body_validator = validator(openapi_document(list(SAMPLES.values())), "CreateWidget")
    assert body_validator.is_valid(REQUEST)
    assert not body_validator.is_valid(REQUEST | change)


@pytest.mark.parametrize("change", [{"name": ""}, {"access": None}, {"access": {"primaryPort": ""}}], ids=str)
def test_null_and_empty_optional_fields_match_the_schema(change: dict[str, Any]) -> None:
    assert validator(openapi_document(list(SAMPLES.values())), "CreateWidget").is_valid(REQUEST | change)


@pytest.mark.parametrize(("fault", "status"), [(NotFound, 404), (NoStock, 409), (Overloaded, 429)])
def test_fault_has_the_status_of_its_base_class(fault: Any, status: int) -> None:
    assert http_status(fault) == status
