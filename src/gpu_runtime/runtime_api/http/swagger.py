"""Serves Swagger UI and the OpenAPI document from files of this package. The page loads nothing from other servers.

These paths need no authentication: they describe how to use the API and do not expose its data.
"""

import gzip
import hashlib
from dataclasses import dataclass
from importlib import resources

from aiohttp import ETag, web

from gpu_runtime.process.health_server import HealthHandler

FILE_CONTENT_TYPES = {
    "index.html": "text/html",
    "initializer.js": "text/javascript",
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
}

# Swagger UI needs inline styles and `data:` images. A browser may load all other content only from the API itself.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
RESPONSE_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # clients revalidate by ETag, so that a new release is visible immediately
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class StaticFile:
    content_type: str
    compressed: bytes

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.compressed).hexdigest()[:32]


def swagger_handlers(document: bytes) -> dict[str, HealthHandler]:
    """Return the GET handlers by path."""
    pages = {f"/swagger/{name}": _file_handler(load_static_file(name)) for name in FILE_CONTENT_TYPES}
    openapi = _file_handler(StaticFile("application/json", gzip.compress(document, mtime=0)))
    start = {"/swagger": _redirect_handler("swagger/index.html"), "/swagger/": _redirect_handler("index.html")}
    return {"/openapi.json": openapi, **start, **pages}


def load_static_file(name: str) -> StaticFile:
    """Load a file of the package. The package contains large files in compressed form."""
    folder = resources.files(__package__) / "swagger_ui"
    compressed = folder / f"{name}.gz"
    if compressed.is_file():
        return StaticFile(FILE_CONTENT_TYPES[name], compressed.read_bytes())
    return StaticFile(FILE_CONTENT_TYPES[name], gzip.compress((folder / name).read_bytes(), mtime=0))


def _file_handler(file: StaticFile) -> HealthHandler:
    tag = file.etag

    async def handler(request: web.Request) -> web.Response:
        unchanged = any(each.value in (tag, "*") for each in request.if_none_match or ())
        response = web.Response(status=304, headers=RESPONSE_HEADERS) if unchanged else _full_response(file, request)
        response.etag = ETag(tag, is_weak=True)
        return response

    return handler


def _full_response(file: StaticFile, request: web.Request) -> web.Response:
    accepts_gzip = "gzip" in request.headers.get("Accept-Encoding", "")
    body = file.compressed if accepts_gzip else gzip.decompress(file.compressed)
    response = web.Response(body=body, content_type=file.content_type, charset="utf-8", headers=RESPONSE_HEADERS)
    if accepts_gzip:
        response.headers["Content-Encoding"] = "gzip"
    return response


def _redirect_handler(location: str) -> HealthHandler:
    """Return a handler that redirects to a relative location, which also works behind a proxy that adds a path
    prefix."""

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    return handler
