"""Builds the aiohttp application from the routes.

Every request gets a request ID. Then the application authenticates, rate limits and decodes the request, calls its
handler, and logs the request with its response. If the handler raises a fault, the response is the error of that type.
If the handler raises an unexpected exception, the response is a 500 with the request ID, and only the log contains the
details.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TypeAlias

from aiohttp import HttpVersion11, hdrs, web

from gpu_runtime.contract.errors import Forbidden, Invalid, NotFound, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.process.health_server import HealthCheck, HealthHandler
from gpu_runtime.process.nats_setup import fault_from_nats_error
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.access_log import AccessLog, AccessRecord
from gpu_runtime.runtime_api.http.authentication import Authenticator
from gpu_runtime.runtime_api.http.decoding import NoBody, decode_body, decode_query, validate_path_params
from gpu_runtime.runtime_api.http.envelope import (
    REQUEST_ID_HEADER,
    EncodedEnvelope,
    InternalError,
    MethodNotAllowed,
    error_response,
    success_response,
)
from gpu_runtime.runtime_api.http.route import ANONYMOUS, APIRequest, APIResponse, Body, Caller, Route
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error
from gpu_runtime.runtime_api.settings import RequestLimitSettings

logger = logging.getLogger(__name__)

EdgeHandler: TypeAlias = Callable[[web.Request, AccessRecord], Awaitable[APIResponse]]

_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_UNMATCHED_ROUTE = "unmatched"
_NO_PLAIN_HANDLERS: Mapping[str, HealthHandler] = MappingProxyType({})


@dataclass(frozen=True)
class Edge:
    """The parts that process a request before and after its handler."""

    authenticator: Authenticator
    rate_limiter: CallerRateLimiter
    access_log: AccessLog
    limits: RequestLimitSettings
    stale_reason: HealthCheck
    """Returns why the informer caches cannot be used now, or None if they can. Routes without a scope and routes that
    do not need the cluster do not call it."""
    stopping: asyncio.Event


def make_app(
    routes: Sequence[Route], edge: Edge, plain: Mapping[str, HealthHandler] = _NO_PLAIN_HANDLERS
) -> web.Application:
    """Build the application from these routes.

    The plain handlers answer GET requests on their paths. They use no authentication and no response envelope.
    """
    app = web.Application(client_max_size=edge.limits.max_request_bytes + 1)
    for path, handler in plain.items():
        _add_path(app, path, dict.fromkeys((hdrs.METH_GET, hdrs.METH_HEAD), handler), edge)
    for path, path_routes in groupby(sorted(routes, key=lambda route: route.path), key=lambda route: route.path):
        handlers = {
            method: InstrumentedHandler(edge, route.name, RouteAdmission(edge, route).handle).handle
            for method, route in _routes_by_method(path_routes)
        }
        _add_path(app, path, handlers, edge)
    fallback = InstrumentedHandler(edge, _UNMATCHED_ROUTE, _path_not_found)
    app.router.add_route("*", "/{tail:.*}", fallback.handle, expect_handler=_send_100_continue)
    return app


def _add_path(app: web.Application, path: str, handlers: Mapping[str, HealthHandler], edge: Edge) -> None:
    resource = app.router.add_resource(path)
    fallback = InstrumentedHandler(edge, _UNMATCHED_ROUTE, _method_not_allowed(", ".join(sorted(handlers))))
    for method, handler in (*handlers.items(), ("*", fallback.handle)):
        resource.add_route(method, handler, expect_handler=_send_100_continue)


def _routes_by_method(routes: Iterable[Route]) -> Iterator[tuple[str, Route]]:
    for route in routes:
        yield route.method, route
        if route.method == hdrs.METH_GET:
            yield hdrs.METH_HEAD, route


async def _send_100_continue(request: web.Request) -> None:
    """Send `100 Continue` to a client that waits for it before it sends the body.

    It is not an error if the client has disconnected in the meantime.
    """
    if request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        with suppress(ConnectionError):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the response itself has not started


def _method_not_allowed(allowed: str) -> EdgeHandler:
    async def handler(request: web.Request, _entry: AccessRecord) -> APIResponse:
        raise MethodNotAllowed(request.method, allowed)

    return handler


async def _path_not_found(request: web.Request, _entry: AccessRecord) -> APIResponse:
    raise NotFound(f"path {request.path[:200]!r} does not exist; /openapi.json lists all paths")


class InstrumentedHandler:
    """Wraps a handler with a request ID, the request timeout, error responses, the access log and the metrics."""

    def __init__(self, edge: Edge, route: str, handler: EdgeHandler) -> None:
        self._edge = edge
        self._route = route
        self._handler = handler

    async def handle(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        entry = AccessRecord(
            http_request_id(request.headers.get(REQUEST_ID_HEADER)), request.method, request.path, self._route
        )
        reply = await self._respond(request, entry)
        self._edge.access_log.log(entry, reply.status, time.perf_counter() - started)
        return self._web_response(reply, entry)

    async def _respond(self, request: web.Request, entry: AccessRecord) -> EncodedEnvelope:
        limit = asyncio.timeout(self._edge.limits.request_timeout_seconds)
        try:
            async with limit:
                return success_response(await self._handler(request, entry))
        except Exception as error:
            fault = self._timeout_fault() if limit.expired() else fault_from_exception(error)
            if isinstance(fault, InternalError):
                logger.exception(
                    "HTTP request handler raised an unexpected exception; the response has status 500",
                    extra=entry.log_fields,
                )
            return error_response(fault, entry.http_request_id)

    def _timeout_fault(self) -> Unavailable:
        seconds = self._edge.limits.request_timeout_seconds
        return Unavailable(f"the request was not finished within {seconds:g} s; send the same request again")

    def _web_response(self, reply: EncodedEnvelope, entry: AccessRecord) -> web.Response:
        headers = {REQUEST_ID_HEADER: entry.http_request_id, "Server": "gpu-runtime", **reply.headers}
        if reply.body:
            headers["Content-Type"] = "application/json"
        response = web.Response(body=reply.body or None, status=reply.status, headers=headers)
        if self._edge.stopping.is_set():
            response.force_close()  # so that the client sends its next request to another replica
        return response


class RouteAdmission:
    """Authenticates, rate limits and decodes the requests of one route, then calls its handler."""

    def __init__(self, edge: Edge, route: Route) -> None:
        self._edge = edge
        self._route = route

    async def handle(self, request: web.Request, entry: AccessRecord) -> APIResponse:
        caller = await self._admit(request, entry)
        path = validate_path_params(request.match_info)
        query = decode_query(tuple(request.query.items()), self._route.query)
        body = await self._decode_body(request)
        entry.note_ids(body)
        if self._route.scope is not None and self._route.needs_cluster and (reason := self._edge.stale_reason()):
            raise Unavailable(reason)
        response = await self._route.handler(APIRequest(body=body, query=query, path=path, caller=caller.name))
        entry.note_ids(response.data)
        return response

    async def _admit(self, request: web.Request, entry: AccessRecord) -> Caller:
        if self._route.scope is None:
            entry.caller = ANONYMOUS.name
            return ANONYMOUS
        caller = await self._edge.authenticator.authenticate(request.headers.get(hdrs.AUTHORIZATION))
        entry.caller = caller.name
        if self._route.scope not in caller.scopes:
            granted = f"it has {', '.join(sorted(caller.scopes))}" if caller.scopes else "it has none"
            raise Forbidden(f"{caller.name} lacks the scope {self._route.scope}; {granted}")
        self._edge.rate_limiter.admit(caller.name, time.monotonic())
        return caller

    async def _decode_body(self, request: web.Request) -> Body | None:
        raw = await self._read_bytes(request) if request.body_exists else b""
        content_type = request.content_type if hdrs.CONTENT_TYPE in request.headers else ""
        if self._route.body is not None:
            return decode_body(raw, content_type, self._route.body)
        if raw:
            decode_body(raw, content_type, NoBody)
        return None

    async def _read_bytes(self, request: web.Request) -> bytes:
        if encoding := request.headers.get(hdrs.CONTENT_ENCODING):
            raise Invalid(
                [FieldError("Content-Encoding", f"is {encoding!r}, which is not supported; send the body uncompressed")]
            )
        limit = self._edge.limits.max_request_bytes
        try:
            if (request.content_length or 0) > limit:
                raise _too_large(limit)
            return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise _too_large(limit) from error
        except (web.RequestPayloadError, OSError) as error:  # the client may have disconnected
            raise Invalid([FieldError("body", "is incomplete; send the whole body")]) from error


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the request body is larger than {limit} bytes; send a smaller one")


def http_request_id(header: str | None) -> str:
    """Return the caller's X-Request-ID if it is safe in a log line and in a header, otherwise a new ID."""
    return header if header is not None and _REQUEST_ID_PATTERN.fullmatch(header) else uuid.uuid4().hex


def fault_from_exception(error: BaseException) -> RuntimeFault:
    """Return the fault for the error response to an exception of a handler."""
    match error:
        case RuntimeFault():
            return error
        case KubeError():
            return fault_from_kube_error(error)
        case JetStreamError():
            return fault_from_nats_error(error)
        case BaseExceptionGroup(exceptions=raised):  # a handler ran several tasks
            faults = [fault_from_exception(each) for each in raised]
            return next((fault for fault in faults if isinstance(fault, InternalError)), faults[0])
    return InternalError("an unexpected error occurred in the API; search its log for this requestID")
