"""A request is right, or every error names its field in the caller's spelling."""

import json
from typing import Any

import pytest
from msgspec import field

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.http.decoding import NoBody, decode_body, decode_query, validate_path_params
from gpu_runtime.runtime_api.http.route import NoQuery, Query
from gpu_runtime.runtime_api.units.requests import CreateUnit

JSON = "application/json"
WHOLE = {"operationID": "op", "name": "web", "specName": "g1.1", "image": "nginx"}


def problems(refusal: Invalid) -> list[str]:
    return [str(problem) for problem in refusal.errors]


WRONG: dict[str, tuple[Any, str]] = {
    "text for a number": (
        {"template": {"ports": [{"name": "http", "port": "80"}]}},
        "template.ports[0].port: expected an integer, got a string",
    ),
    "a fraction for a number": (
        {"template": {"ports": [{"name": "http", "port": 80.5}]}},
        "template.ports[0].port: expected an integer, got a number",
    ),
    "a number for text": ({"image": 3}, "image: expected a string, got an integer"),
    "null for text": ({"image": None}, "image: expected a string, got null"),
    "an object for a list": ({"storageMounts": {}}, "storageMounts: expected a list, got an object"),
    "a list for what may be left out": ({"access": []}, "access: expected an object or null, got a list"),
    "text for a switch": (
        {"serverless": {"enabled": "yes", "requestID": "f"}},
        "serverless.enabled: expected true or false, got a string",
    ),
    "an unknown field": ({"imagee": "x"}, "imagee: there is no such field; did you mean image?"),
    "an unknown field in a list": (
        {"storageMounts": [{"name": "a", "mountPath": "/a", "readonly": True}]},
        "storageMounts[0].readonly: there is no such field; did you mean readOnly?",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_field_is_named_with_what_is_expected(change: Any, message: str) -> None:
    with pytest.raises(Invalid) as refusal:
        decode_body(json.dumps(WHOLE | change).encode(), JSON, CreateUnit)
    assert problems(refusal.value) == [message]


def test_unknown_and_missing_fields_are_reported_together() -> None:
    with pytest.raises(Invalid) as refusal:
        decode_body(b'{"name": "web", "Image": "nginx"}', JSON, CreateUnit)
    assert problems(refusal.value) == [
        "Image: there is no such field; did you mean image?",
        "operationID: is required",
        "specName: is required",
        "image: is required",
    ]


UNREADABLE = {
    "nothing": (b"", "body: is required; send a JSON object"),
    "half of it": (b'{"name": "web"', "body: is not JSON: input data was truncated (byte 14)"),
    "a comma too much": (b'{"name": "web",}', "body: is not JSON: trailing comma in object (byte 15)"),
    "something after it": (b"{} {}", "body: is not JSON: trailing characters (byte 4)"),
    "a list": (b"[]", "body: expected an object, got a list"),
    "a number": (b"3", "body: expected an object, got an integer"),
    "null": (b"null", "body: expected an object, got null"),
    "another encoding": (b'{"name": "\xff"}', "body: is not UTF-8"),
    "half a character": (b'{"name": "\\ud800"}', "body: is not JSON: "),
    "no number": (b'{"name": NaN}', "body: is not JSON: invalid character (byte 9)"),
    "a number without end": (b'{"name": 1e999}', "body: is not JSON: number out of range"),
    "a key given twice": (b'{"name": "a", "name": "b"}', "name: is given twice in one object"),
    "a key given twice inside": (b'{"template": {"args": [], "args": []}}', "args: is given twice in one object"),
    "a tower of lists": (b"[" * 100_000, "body: is not JSON: maximum recursion depth"),
}


@pytest.mark.parametrize(("raw", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_malformed_json_is_reported_with_its_position(raw: bytes, message: str) -> None:
    with pytest.raises(Invalid) as refusal:
        decode_body(raw, JSON, CreateUnit)
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "text/plain", "application/octet-stream"]
)
def test_other_content_type_is_rejected(content_type: str) -> None:
    with pytest.raises(Invalid, match=f"Content-Type: is '{content_type}'; send the body as application/json"):
        decode_body(b"{}", content_type, NoBody)


def test_valid_body_is_decoded() -> None:
    read = decode_body(json.dumps(WHOLE | {"template": {"args": ["a"]}}).encode(), JSON, CreateUnit)
    assert (read.operation_id, read.name, read.template.args) == ("op", "web", ("a",))


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
    "an unknown one": ([("limits", "5")], "limits: there is no such parameter; did you mean limit?"),
    "one where there are none": ([("a", "5")], "a: there is no such parameter; there is none"),
    "one given twice": ([("limit", "5"), ("limit", "6")], "limit: is given more than once"),
    "text for a number": ([("limit", "many")], "limit: expected an integer, got a string"),
    "nothing for a number": ([("limit", "")], "limit: expected an integer, got a string"),
    "text for a switch": ([("claimed", "perhaps")], "claimed: expected true or false or null, got a string"),
}


@pytest.mark.parametrize(("pairs", "message"), PARAMETERS.values(), ids=PARAMETERS)
def test_invalid_query_parameter_is_reported(pairs: list[tuple[str, str]], message: str) -> None:
    with pytest.raises(Invalid) as refusal:
        decode_query(pairs, NoQuery if pairs[0][0] == "a" else Filter)
    assert problems(refusal.value) == [message]


@pytest.mark.parametrize("part", ["web", "op 1/ä", "a" * 256, "..."])
def test_valid_path_name_is_accepted(part: str) -> None:
    assert validate_path_params({"name": part}) == {"name": part}


@pytest.mark.parametrize("part", ["", ".", "..", "a\nb", " a", "a" * 257, "\x00"])
def test_invalid_path_name_is_rejected(part: str) -> None:
    with pytest.raises(Invalid, match=r"^name: is not a name$"):
        validate_path_params({"name": part})
