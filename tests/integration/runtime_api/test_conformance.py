"""The API does what its document says, whatever it is sent; and what would tell us otherwise does tell us."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.integration.runtime_api.conformance import examine
from tests.integration.runtime_api.live import TOKEN, Platform, seed_request
from tests.integration.runtime_api.shelf_api import TOKEN as SHELF_TOKEN
from tests.integration.runtime_api.shelf_api import shelf_api


QUOTAS = {"runtime-stock": "count/gpuunits.runtime.lokiwager.io=40,pods=40", "default": "pods=40"}
"""What is sent may well ask for thousands of replicas. A cluster that has no room for them says so."""


@pytest.fixture
def api_base_url(platform: Platform) -> Iterator[str]:
    """A real replica, with a little stock."""
    kubectl, replica = platform.plane.kubectl, platform.standing[0]
    for namespace, hard in QUOTAS.items():
        kubectl("create", "quota", "conformance", f"--namespace={namespace}", f"--hard={hard}")
    replica.wait_for(
        "/api/v1/operator/stock-units", 202, method="POST", token=TOKEN, body=seed_request("g1.1", 10, "conformance")
    )
    yield replica.url("")
    kubectl("delete", "gpuunits", "--all", "--namespace=runtime-stock", "--wait=false")
    kubectl("delete", "stockpools", "--all", "--namespace=default", "--wait=false")
    # The other quota stays: Kubernetes takes its time to collect the pools' Deployments.
    kubectl("delete", "quota", "conformance", "--namespace=runtime-stock")


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
        verdict = examine(base_url, SHELF_TOKEN, tmp_path, phases="examples,coverage")
    assert verdict.failures >= {
        "UndefinedStatusCode",
        "UndefinedContentType",
        "MissingHeaders",
        "JsonSchemaError",
        "AcceptedNegativeData",
        "IgnoredAuth",
        "ServerError",
    }, verdict.story
