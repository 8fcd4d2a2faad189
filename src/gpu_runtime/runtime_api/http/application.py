"""Builds the aiohttp application from the routes.

Every request gets a request ID. Then the application authenticates, rate limits and decodes the request, calls its
handler, and logs the request with its response. It reads the body only after it has admitted the request. If the
handler raises a fault, the response is the error of that type. If the handler raises an unexpected exception, the
response is a 500 with the request ID, and only the log contains the details.
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

from gpu_runtime.contract.errors import (
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    RuntimeFault,
    Unauthenticated,
    Unavailable,
)
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.process.health_server import HealthCheck, HealthHandler
from gpu_runtime.process.nats_setup import fault_from_nats_error
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.access_log import AccessLog, AccessRecord
from gpu_runtime.runtime_api.http.authentication import Authenticator
from gpu_runtime.runtime_api.http.body_reader import read_body
from gpu_runtime.runtime_api.http.byte_budget import ByteBudget, HeldBytes
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
    anonymous_rate_limiter: CallerRateLimiter
    """Limits the requests without a valid token, by peer."""
    budget: ByteBudget
    access_log: AccessLog
    limits: RequestLimitSettings
    stale_reason: HealthCheck
    """Returns why the informer caches cannot be used now, or None if they can. Routes without a scope and routes that
    do not need the cluster do not call it."""
    stopping: asyncio.Event

    def admit_anonymous(self, request: web.BaseRequest) -> None:
        """Count a request without a valid token. Raises Overloaded if its peer exceeds the rate."""
        self.anonymous_rate_limiter.admit(request.remote or "unknown peer", time.monotonic())


def make_app(
    routes: Sequence[Route], edge: Edge, plain: Mapping[str, HealthHandler] = _NO_PLAIN_HANDLERS
) -> web.Application:
    """Build the application from these routes.

    The plain handlers answer GET requests on their paths. They use no authentication, and no response envelope except
    for errors.
    """
    app = web.Application()
    for path, handler in plain.items():
        limited = _limited_handler(handler, edge)
        _add_path(app, path, dict.fromkeys((hdrs.METH_GET, hdrs.METH_HEAD), limited), edge)
    for path, path_routes in groupby(sorted(routes, key=lambda route: route.path), key=lambda route: route.path):
        handlers = {
            method: InstrumentedHandler(edge, route.name, RouteAdmission(edge, route).handle).handle
            for method, route in _routes_by_method(path_routes)
        }
        _add_path(app, path, handlers, edge)
    fallback = InstrumentedHandler(edge, _UNMATCHED_ROUTE, _path_not_found(edge))
    app.router.add_route("*", "/{tail:.*}", fallback.handle, expect_handler=_send_100_continue_later)
    return app


def _limited_handler(handler: HealthHandler, edge: Edge) -> HealthHandler:
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            edge.admit_anonymous(request)
        except Overloaded as fault:
            entry = AccessRecord(http_request_id(None), request.method, request.path, _UNMATCHED_ROUTE)
            return _web_response(error_response(fault, entry.http_request_id), entry)
        return await handler(request)

    return handle


def _add_path(app: web.Application, path: str, handlers: Mapping[str, HealthHandler], edge: Edge) -> None:
    resource = app.router.add_resource(path)
    fallback = InstrumentedHandler(edge, _UNMATCHED_ROUTE, _method_not_allowed(edge, ", ".join(sorted(handlers))))
    for method, handler in (*handlers.items(), ("*", fallback.handle)):
        resource.add_route(method, handler, expect_handler=_send_100_continue_later)


def _routes_by_method(routes: Iterable[Route]) -> Iterator[tuple[str, Route]]:
    for route in routes:
        yield route.method, route
        if route.method == hdrs.METH_GET:
            yield hdrs.METH_HEAD, route


async def _send_100_continue_later(_request: web.Request) -> None:
    """Do not send `100 Continue` before the request is admitted: a rejected request needs no body."""


def _expects_100_continue(request: web.BaseRequest) -> bool:
    return request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"


async def _send_100_continue(request: web.BaseRequest) -> None:
    """Send `100 Continue` to a client that waits for it before it sends the body.

    It is not an error if the client has disconnected in the meantime.
    """
    if _expects_100_continue(request):
        with suppress(ConnectionError):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the response itself has not started


def _method_not_allowed(edge: Edge, allowed: str) -> EdgeHandler:
    async def handler(request: web.Request, _entry: AccessRecord) -> APIResponse:
        edge.admit_anonymous(request)
        raise MethodNotAllowed(request.method, allowed)

    return handler


def _path_not_found(edge: Edge) -> EdgeHandler:
    async def handler(request: web.Request, _entry: AccessRecord) -> APIResponse:
        edge.admit_anonymous(request)
        raise NotFound(f"path {request.path[:200]!r} does not exist; /openapi.json lists all paths")

    return handler


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
        response = _web_response(reply, entry)
        # Such a client sends its next request to another replica, or does not send the body that it announced.
        if self._edge.stopping.is_set() or (_expects_100_continue(request) and not request.content.is_eof()):
            response.force_close()
        return response

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


def _web_response(reply: EncodedEnvelope, entry: AccessRecord) -> web.Response:
    headers = {REQUEST_ID_HEADER: entry.http_request_id, "Server": "gpu-runtime", **reply.headers}
    if reply.body:
        headers["Content-Type"] = "application/json"
    return web.Response(body=reply.body or None, status=reply.status, headers=headers)


class RouteAdmission:
    """Authenticates, rate limits and decodes the requests of one route, then calls its handler."""

    def __init__(self, edge: Edge, route: Route) -> None:
        self._edge = edge
        self._route = route

    async def handle(self, request: web.Request, entry: AccessRecord) -> APIResponse:
        entry.is_audited_read = self._route.audit_reads
        caller = await self._admit(request, entry)
        with self._edge.budget.reserve(caller.name, self._expected_bytes(request)) as held:
            return await self._handle_admitted(request, entry, caller, held)

    def _expected_bytes(self, request: web.Request) -> int:
        """Return the size of the body, or the maximum if the client does not say it. A larger body is rejected."""
        length = self._route.max_body_bytes if request.content_length is None else request.content_length
        return min(length, self._route.max_body_bytes) if request.body_exists else 0

    async def _handle_admitted(
        self, request: web.Request, entry: AccessRecord, caller: Caller, held: HeldBytes
    ) -> APIResponse:
        path = validate_path_params(request.match_info)
        query = decode_query(tuple(request.query.items()), self._route.query)
        raw = await self._read_bytes(request) if request.body_exists else b""
        held.shrink(len(raw))
        body = self._decode_body(request, raw)
        del raw  # the handler may wait for long
        entry.note_ids(body)
        if self._route.scope is not None and self._route.needs_cluster and (reason := self._edge.stale_reason()):
            raise Unavailable(reason)
        response = await self._route.handler(APIRequest(body=body, query=query, path=path, caller=caller.name))
        entry.note_ids(response.data)
        return response

    async def _admit(self, request: web.Request, entry: AccessRecord) -> Caller:
        if self._route.scope is None:
            entry.caller = ANONYMOUS.name
            self._edge.admit_anonymous(request)
            return ANONYMOUS
        try:
            caller = await self._edge.authenticator.authenticate(request.headers.get(hdrs.AUTHORIZATION))
        except Unauthenticated:
            self._edge.admit_anonymous(request)
            raise
        entry.caller = caller.name
        if self._route.scope not in caller.scopes:
            granted = f"it has {', '.join(sorted(caller.scopes))}" if caller.scopes else "it has none"
            raise Forbidden(f"{caller.name} lacks the scope {self._route.scope}; {granted}")
        self._edge.rate_limiter.admit(caller.name, time.monotonic())
        return caller

    def _decode_body(self, request: web.Request, raw: bytes) -> Body | None:
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
        try:
            if (request.content_length or 0) <= self._route.max_body_bytes:
                await _send_100_continue(request)
            return await read_body(request, self._route.max_body_bytes)
        except (web.RequestPayloadError, OSError) as error:  # the client may have disconnected
            raise Invalid([FieldError("body", "is incomplete; send the whole body")]) from error


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
