"""Swagger UI is served from the package, may load nothing from other servers, and is revalidated by ETag."""

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from gpu_runtime.runtime_api.http import swagger
from gpu_runtime.runtime_api.http.swagger import FILE_CONTENT_TYPES, load_static_file, swagger_handlers

FOLDER = Path(swagger.__file__).with_name("swagger_ui")
DOCUMENT = b'{"openapi": "3.1.1"}\n'


@pytest.fixture
async def page() -> AsyncIterator[ClientSession]:
    app = web.Application()
    app.add_routes([web.get(path, handler) for path, handler in swagger_handlers(DOCUMENT).items()])
    async with TestServer(app) as server, ClientSession(server.make_url("/")) as session:
        yield session


async def test_openapi_document_is_served_unchanged(page: ClientSession) -> None:
    async with page.get("/openapi.json") as response:
        assert (response.status, response.content_type) == (200, "application/json")
        assert await response.read() == DOCUMENT


@pytest.mark.parametrize("path", ["/swagger", "/swagger/"])
async def test_swagger_folder_redirects_to_the_page(page: ClientSession, path: str) -> None:
    async with page.get(path) as response:
        assert response.status == 200
        assert response.url.path == "/swagger/index.html"


@pytest.mark.parametrize(("name", "content_type"), FILE_CONTENT_TYPES.items())
async def test_every_file_has_its_content_type_and_nosniff(page: ClientSession, name: str, content_type: str) -> None:
    async with page.get(f"/swagger/{name}") as response:
        assert (response.status, response.content_type, response.charset) == (200, content_type, "utf-8")
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert len(await response.read()) == len(gzip.decompress(load_static_file(name).compressed))


async def test_content_security_policy_forbids_other_servers(page: ClientSession) -> None:
    async with page.get("/swagger/index.html") as response:
        policy = dict(each.split(" ", 1) for each in response.headers["Content-Security-Policy"].split("; "))
        text = await response.text()
    assert policy["default-src"] == "'none'"
    assert (policy["script-src"], policy["connect-src"]) == ("'self'", "'self'")
    assert set(re.findall(r'(?:src|href)="([^"]*)"', text)) == {*FILE_CONTENT_TYPES, "data:,"} - {"index.html"}
    assert "http" not in text
    assert not re.search(r"<script>|<style>|\son\w+=", text), "the policy forbids inline scripts and styles"


async def test_matching_etag_returns_304(page: ClientSession) -> None:
    async with page.get("/swagger/swagger-ui.css") as response:
        tag = response.headers["ETag"]
    async with page.get("/swagger/swagger-ui.css", headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")
    async with page.get("/swagger/swagger-ui.css", headers={"If-None-Match": 'W/"another"'}) as response:
        assert response.status == 200


@pytest.mark.parametrize(("accept", "encoding"), [("gzip, br", "gzip"), ("identity", None)])
async def test_compression_follows_accept_encoding(page: ClientSession, accept: str, encoding: str | None) -> None:
    async with page.get("/swagger/swagger-ui.css", headers={"Accept-Encoding": accept}) as response:
        assert response.headers.get("Content-Encoding") == encoding
        assert (await response.read()).startswith(b".swagger-ui")


def test_vendored_files_match_their_checksums() -> None:
    checksums = dict(re.findall(r"^    ([0-9a-f]{64})  (\S+)$", (FOLDER / "README.md").read_text(), re.MULTILINE))
    assert sorted(checksums.values()) == sorted(path.stem for path in FOLDER.glob("*.gz"))
    for digest, name in checksums.items():
        assert hashlib.sha256(gzip.decompress((FOLDER / f"{name}.gz").read_bytes())).hexdigest() == digest
