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


SENT_PART_BYTES = 64 * 1024


@dataclass(frozen=True)
class StaticFile:
    """A file in both forms, so that no request compresses or decompresses it."""

    content_type: str
    content: bytes
    compressed: bytes

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.compressed).hexdigest()[:32]


def swagger_handlers(document: bytes) -> dict[str, HealthHandler]:
    """Return the GET handlers by path."""
    pages = {f"/swagger/{name}": _file_handler(load_static_file(name)) for name in FILE_CONTENT_TYPES}
    openapi = _file_handler(StaticFile("application/json", document, gzip.compress(document, mtime=0)))
    start = {"/swagger": _redirect_handler("swagger/index.html"), "/swagger/": _redirect_handler("index.html")}
    return {"/openapi.json": openapi, **start, **pages}


def load_static_file(name: str) -> StaticFile:
    """Load a file of the package. The package contains large files in compressed form."""
    folder = resources.files(__package__) / "swagger_ui"
    compressed = folder / f"{name}.gz"
    if compressed.is_file():
        packed = compressed.read_bytes()
        return StaticFile(FILE_CONTENT_TYPES[name], gzip.decompress(packed), packed)
    content = (folder / name).read_bytes()
    return StaticFile(FILE_CONTENT_TYPES[name], content, gzip.compress(content, mtime=0))


def _file_handler(file: StaticFile) -> HealthHandler:
    tag = file.etag

    async def handler(request: web.Request) -> web.StreamResponse:
        unchanged = any(each.value in (tag, "*") for each in request.if_none_match or ())
        response = web.Response(status=304, headers=RESPONSE_HEADERS) if unchanged else _file_response(file, request)
        response.etag = ETag(tag, is_weak=True)
        if not unchanged:
            await _send_content(response, file, request)
        return response

    return handler


def _accepts_gzip(request: web.Request) -> bool:
    return "gzip" in request.headers.get("Accept-Encoding", "")


def _file_response(file: StaticFile, request: web.Request) -> web.StreamResponse:
    encoding = {"Content-Encoding": "gzip"} if _accepts_gzip(request) else {}
    response = web.StreamResponse(headers=RESPONSE_HEADERS | encoding)
    response.content_type, response.charset = file.content_type, "utf-8"
    return response


async def _send_content(response: web.StreamResponse, file: StaticFile, request: web.Request) -> None:
    """Send the file in parts, so that the server buffers only a part of it for a client that does not read."""
    body = file.compressed if _accepts_gzip(request) else file.content
    response.content_length = len(body)
    await response.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(body), SENT_PART_BYTES):
            await response.write(body[start : start + SENT_PART_BYTES])


def _redirect_handler(location: str) -> HealthHandler:
    """Return a handler that redirects to a relative location, which also works behind a proxy that adds a path
    prefix."""

    async def handler(_request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    return handler
