"""A request is decoded, or every error names its field as the caller wrote it."""

import json
from typing import Any

import pytest
from msgspec import field

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.http.decoding import NoBody, decode_body, decode_query, validate_path_params
from gpu_runtime.runtime_api.http.route import NoQuery, Query
from gpu_runtime.runtime_api.units.requests import CreateUnit

JSON = "application/json"
VALID = {"operationID": "op", "name": "web", "specName": "g1.1", "image": "nginx"}


def messages(error: Invalid) -> list[str]:
    return [str(each) for each in error.errors]


INVALID_FIELDS: dict[str, tuple[Any, str]] = {
    "a string for an integer": (
        {"template": {"ports": [{"name": "http", "port": "80"}]}},
        "template.ports[0].port: expected an integer, got a string",
    ),
    "a fraction for an integer": (
        {"template": {"ports": [{"name": "http", "port": 80.5}]}},
        "template.ports[0].port: expected an integer, got a number",
    ),
    "an integer for a string": ({"image": 3}, "image: expected a string, got an integer"),
    "null for a string": ({"image": None}, "image: expected a string, got null"),
    "an object for a list": ({"storageMounts": {}}, "storageMounts: expected a list, got an object"),
    "a list for an optional object": ({"access": []}, "access: expected an object or null, got a list"),
    "a string for a boolean": (
        {"serverless": {"enabled": "yes", "requestID": "f"}},
        "serverless.enabled: expected true or false, got a string",
    ),
    "an unknown field": ({"imagee": "x"}, "imagee: there is no such field; did you mean image?"),
    "an unknown field in a list": (
        {"storageMounts": [{"name": "a", "mountPath": "/a", "readonly": True}]},
        "storageMounts[0].readonly: there is no such field; did you mean readOnly?",
    ),
}


@pytest.mark.parametrize(("change", "message"), INVALID_FIELDS.values(), ids=INVALID_FIELDS)
def test_invalid_field_is_reported_with_the_expected_type(change: Any, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        decode_body(json.dumps(VALID | change).encode(), JSON, CreateUnit)
    assert messages(raised.value) == [message]


def test_unknown_and_missing_fields_are_reported_together() -> None:
    with pytest.raises(Invalid) as raised:
        decode_body(b'{"name": "web", "Image": "nginx"}', JSON, CreateUnit)
    assert messages(raised.value) == [
        "Image: there is no such field; did you mean image?",
        "operationID: is required",
        "specName: is required",
        "image: is required",
    ]


MALFORMED_BODIES = {
    "an empty body": (b"", "body: is required; send a JSON object"),
    "a truncated body": (b'{"name": "web"', "body: is not JSON: input data was truncated (byte 14)"),
    "a trailing comma": (b'{"name": "web",}', "body: is not JSON: trailing comma in object (byte 15)"),
    "trailing characters": (b"{} {}", "body: is not JSON: trailing characters (byte 4)"),
    "a list": (b"[]", "body: expected an object, got a list"),
    "a number": (b"3", "body: expected an object, got an integer"),
    "null": (b"null", "body: expected an object, got null"),
    "another encoding": (b'{"name": "\xff"}', "body: is not UTF-8"),
    "a lone surrogate": (b'{"name": "\\ud800"}', "body: is not JSON: "),
    "NaN": (b'{"name": NaN}', "body: is not JSON: invalid character (byte 9)"),
    "a number out of range": (b'{"name": 1e999}', "body: is not JSON: number out of range"),
    "a duplicate key": (b'{"name": "a", "name": "b"}', "name: is given twice in one object"),
    "a duplicate key in a nested object": (
        b'{"template": {"args": [], "args": []}}',
        "args: is given twice in one object",
    ),
    "deeply nested lists": (b"[" * 100_000, "body: is not JSON: maximum recursion depth"),
}


@pytest.mark.parametrize(("raw", "message"), MALFORMED_BODIES.values(), ids=MALFORMED_BODIES)
def test_malformed_json_is_reported_with_its_position(raw: bytes, message: str) -> None:
    with pytest.raises(Invalid) as raised:
        decode_body(raw, JSON, CreateUnit)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/octet-stream"]
)
def test_other_content_type_is_rejected(content_type: str) -> None:
    with pytest.raises(Invalid, match=f"Content-Type: is '{content_type}'; send the body as application/json"):
        decode_body(b"{}", content_type, NoBody)


def test_valid_body_is_decoded() -> None:
    body = decode_body(json.dumps(VALID | {"template": {"args": ["a"]}}).encode(), JSON, CreateUnit)
    assert (body.operation_id, body.name, body.template.args) == ("op", "web", ("a",))


class Filter(Query, frozen=True, kw_only=True):
    limit: int = 100
    continuation: str = field(name="continue", default="")
    spec_name: str | None = None
    claimed: bool | None = None


def test_query_parameters_are_converted() -> None:
    pairs = [("limit", "5"), ("continue", "abc"), ("specName", "null"), ("claimed", "true")]
    assert decode_query(pairs, Filter) == Filter(limit=5, continuation="abc", spec_name="null", claimed=True)
    assert decode_query([], Filter) == Filter()


PARAMETERS = {
    "an unknown parameter": ([("limits", "5")], "limits: there is no such parameter; did you mean limit?"),
    "a parameter of a route without parameters": ([("a", "5")], "a: there is no such parameter; none is allowed here"),
    "a duplicate parameter": ([("limit", "5"), ("limit", "6")], "limit: is given more than once; send it once"),
    "a string for an integer": ([("limit", "many")], "limit: expected an integer, got a string"),
    "an empty integer": ([("limit", "")], "limit: expected an integer, got a string"),
    "a string for a boolean": ([("claimed", "perhaps")], "claimed: expected true or false or null, got a string"),
}


@pytest.mark.parametrize(("pairs", "message"), PARAMETERS.values(), ids=PARAMETERS)
def test_invalid_query_parameter_is_reported(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        decode_query(pairs, NoQuery if pairs[0][0] == "a" else Filter)
    assert messages(raised.value) == [message]


@pytest.mark.parametrize("part", ["web", "op 1/ä", "a" * 256, "..."])
def test_valid_path_name_is_accepted(part: str) -> None:
    assert validate_path_params({"name": part}) == {"name": part}


@pytest.mark.parametrize("part", ["", ".", "..", "a\nb", " a", "a" * 257, "\x00"])
def test_invalid_path_name_is_rejected(part: str) -> None:
    with pytest.raises(
        Invalid, match=r"^name: is not a name; use 1 to 256 printable characters without spaces around them$"
    ):
        validate_path_params({"name": part})
