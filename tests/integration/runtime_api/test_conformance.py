"""The API does what its document says, whatever it is sent; and what would tell us otherwise does tell us."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.runtime_api.conformance import examine
from tests.integration.runtime_api.shelf_api import TOKEN, shelf_api


@pytest.fixture
def api_base_url() -> Iterator[str]:
    with shelf_api() as base_url:
        yield base_url


@pytest.fixture
def api_token() -> str:
    return TOKEN


def test_the_api_does_what_its_document_says(api_base_url: str, api_token: str, tmp_path: Path) -> None:
    verdict = examine(api_base_url, api_token, tmp_path)
    assert not verdict.failures, verdict.story
    assert verdict.untested == 0, verdict.story


def wrong(request: web.Request, response: web.Response) -> web.Response:
    """Each operation does another thing wrong."""
    match request.method, response.status:
        case "GET", 200 if request.path == "/api/v1/health":
            response.set_status(418)
        case "GET", 200 if request.path.endswith("/shelves"):
            response.content_type = "text/plain"
        case "GET", 404:
            del response.headers["X-Request-ID"]
        case "POST", 202:
            response.body = b'{"data": {"replicas": "many"}}'
        case "DELETE", 404:
            response.set_status(500)
    return response


def test_an_api_that_does_something_else_is_found_out(tmp_path: Path) -> None:
    with shelf_api(wrong, careless=True) as base_url:
        verdict = examine(base_url, TOKEN, tmp_path, phases="examples,coverage")
    assert verdict.failures >= {
        "UndefinedStatusCode",
        "UndefinedContentType",
        "MissingHeaders",
        "JsonSchemaError",
        "AcceptedNegativeData",
        "IgnoredAuth",
        "ServerError",
    }, verdict.story
