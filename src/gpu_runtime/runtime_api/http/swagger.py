"""Swagger UI and the document that it shows, from files of this package. Nobody outside is asked for anything.

Everything here is open to anybody: it says how the API is used, not what is in it.
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

# Inline styles are Swagger UI's own, and its icons are data: nothing else may be loaded, and from nowhere else.
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
    "Cache-Control": "no-cache",  # kept, and asked for again by its tag: a new release shows at once
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True)
class StaticFile:
    content_type: str
    compressed: bytes

    @property
    def etag(self) -> str:
        return hashlib.sha256(self.compressed).hexdigest()[:32]


def add_swagger(app: web.Application, document: bytes) -> None:
    for path, handler in swagger_handlers(document).items():
        app.router.add_get(path, handler)


def swagger_handlers(document: bytes) -> dict[str, HealthHandler]:
    """What answers GET, by its path."""
    pages = {f"/swagger/{name}": _file_handler(load_static_file(name)) for name in FILE_CONTENT_TYPES}
    openapi = _file_handler(StaticFile("application/json", gzip.compress(document, mtime=0)))
    start = {"/swagger": _redirect_handler("swagger/index.html"), "/swagger/": _redirect_handler("index.html")}
    return {"/openapi.json": openapi, **start, **pages}


def load_static_file(name: str) -> StaticFile:
    """A file of the package. What is large is compressed already."""
    folder = resources.files(__package__) / "swagger_ui"
    compressed = folder / f"{name}.gz"
    if compressed.is_file():
        return StaticFile(FILE_CONTENT_TYPES[name], compressed.read_bytes())
    return StaticFile(FILE_CONTENT_TYPES[name], gzip.compress((folder / name).read_bytes(), mtime=0))


def _file_handler(page: StaticFile) -> HealthHandler:
    tag = page.etag

    async def answer(request: web.Request) -> web.Response:
        known = any(each.value in (tag, "*") for each in request.if_none_match or ())
        response = web.Response(status=304, headers=RESPONSE_HEADERS) if known else _full_response(page, request)
        response.etag = ETag(tag, is_weak=True)
        return response

    return answer


def _full_response(page: StaticFile, request: web.Request) -> web.Response:
    as_it_is = "gzip" in request.headers.get("Accept-Encoding", "")
    body = page.compressed if as_it_is else gzip.decompress(page.compressed)
    response = web.Response(body=body, content_type=page.content_type, charset="utf-8", headers=RESPONSE_HEADERS)
    if as_it_is:
        response.headers["Content-Encoding"] = "gzip"
    return response


def _redirect_handler(location: str) -> HealthHandler:
    """Relative, so that it also holds behind a proxy that adds a prefix."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": location})

    return answer
