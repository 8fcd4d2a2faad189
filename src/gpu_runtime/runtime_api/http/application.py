"""Routes as an aiohttp application: every request is identified, admitted, decoded, answered and written down.

What a route's handler raises is answered by what it is; what nobody foresaw is answered with 500 and a request id, and
nothing of it is told but to the log.
"""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TypeAlias

from aiohttp import HttpVersion11, hdrs, web

from gpu_runtime.contract.errors import Invalid, NotFound, RuntimeFault, TooLarge, Unavailable
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.process.health_server import HealthCheck, HealthHandler
from gpu_runtime.process.nats_setup import fault_from_nats_error
from gpu_runtime.runtime_api.http.access_log import AccessLog, AccessRecord
from gpu_runtime.runtime_api.http.caller import ANONYMOUS, Authenticator, Caller
from gpu_runtime.runtime_api.http.decoding import NoBody, decode_body, decode_query, validate_path_params
from gpu_runtime.runtime_api.http.envelope import (
    REQUEST_ID_HEADER,
    EncodedEnvelope,
    InternalError,
    MethodNotAllowed,
    error_response,
    success_response,
)
from gpu_runtime.runtime_api.http.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, Route
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error
from gpu_runtime.runtime_api.settings import RequestLimitSettings

logger = logging.getLogger(__name__)

EdgeHandler: TypeAlias = Callable[[web.Request, AccessRecord], Awaitable[APIResponse]]

_REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_UNMATCHED_ROUTE = "unmatched"
_NO_PLAIN_HANDLERS: Mapping[str, HealthHandler] = MappingProxyType({})


@dataclass(frozen=True)
class Edge:
    """What stands between the network and the routes."""

    authenticator: Authenticator
    rate_limiter: CallerRateLimiter
    access_log: AccessLog
    limits: RequestLimitSettings
    stale_reason: HealthCheck
    """Why no route that needs the cluster can work now, if that is so. Routes without a scope work always."""
    stopping: asyncio.Event


def make_app(
    routes: Sequence[Route], edge: Edge, plain: Mapping[str, HealthHandler] = _NO_PLAIN_HANDLERS
) -> web.Application:
    """An application of these routes. Plain handlers answer GET on their paths with whatever they like, to anybody."""
    app = web.Application(client_max_size=edge.limits.max_request_bytes + 1)
    for path, handler in plain.items():
        resource = app.router.add_resource(path)
        for method in (hdrs.METH_GET, hdrs.METH_HEAD):
            resource.add_route(method, handler, expect_handler=_send_100_continue)
        refusal = InstrumentedHandler(edge, _UNMATCHED_ROUTE, _method_not_allowed("GET, HEAD"))
        resource.add_route("*", refusal.handle, expect_handler=_send_100_continue)
    for path, at_path in groupby(sorted(routes, key=lambda route: route.path), key=lambda route: route.path):
        _add_path(app, path, list(at_path), edge)
    nothing = InstrumentedHandler(edge, _UNMATCHED_ROUTE, _path_not_found)
    app.router.add_route("*", "/{tail:.*}", nothing.handle, expect_handler=_send_100_continue)
    return app


def _add_path(app: web.Application, path: str, routes: Sequence[Route], edge: Edge) -> None:
    resource = app.router.add_resource(path)
    methods = dict(_routes_by_method(routes))
    for method, route in methods.items():
        served = InstrumentedHandler(edge, route.name, RouteAdmission(edge, route).handle)
        resource.add_route(method, served.handle, expect_handler=_send_100_continue)
    refusal = _method_not_allowed(", ".join(sorted(methods)))
    resource.add_route(
        "*", InstrumentedHandler(edge, _UNMATCHED_ROUTE, refusal).handle, expect_handler=_send_100_continue
    )


def _routes_by_method(routes: Sequence[Route]) -> Iterator[tuple[str, Route]]:
    for route in routes:
        yield route.method, route
        if route.method == hdrs.METH_GET:
            yield hdrs.METH_HEAD, route


async def _send_100_continue(request: web.Request) -> None:
    """Tell who waits for it to send the body. Who has left meanwhile is no failure of ours."""
    if request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        with suppress(ConnectionError):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the answer itself has not begun


def _method_not_allowed(allowed: str) -> EdgeHandler:
    async def refuse(request: web.Request, _entry: AccessRecord) -> APIResponse:
        raise MethodNotAllowed(request.method, allowed)

    return refuse


async def _path_not_found(request: web.Request, _entry: AccessRecord) -> APIResponse:
    raise NotFound(f"there is no {request.path[:200]!r} here; /openapi.json lists what there is")


class InstrumentedHandler:
    """Work with a request id, a time limit, an answer whatever happens, and a line in the journal."""

    def __init__(self, edge: Edge, route: str, work: EdgeHandler) -> None:
        self._edge = edge
        self._route = route
        self._handler = work

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
                extra = {"requestID": entry.http_request_id, "route": entry.route, **entry.logged_ids}
                logger.exception("a request failed unforeseen", extra=extra)
            return error_response(fault, entry.http_request_id)

    def _timeout_fault(self) -> Unavailable:
        seconds = self._edge.limits.request_timeout_seconds
        return Unavailable(f"not finished within {seconds:g} s; the same request may be made again")

    def _web_response(self, reply: EncodedEnvelope, entry: AccessRecord) -> web.Response:
        headers = {REQUEST_ID_HEADER: entry.http_request_id, "Server": "gpu-runtime", **reply.headers}
        if reply.body:
            headers["Content-Type"] = "application/json"
        response = web.Response(body=reply.body or None, status=reply.status, headers=headers)
        if self._edge.stopping.is_set():
            response.force_close()  # the next request should find another replica
        return response


class RouteAdmission:
    """One route behind authentication, limits and decoding."""

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
        answer = await self._route.handler(APIRequest(body=body, query=query, path=path, caller=caller.name))
        entry.note_ids(answer.data)
        return answer

    async def _admit(self, request: web.Request, entry: AccessRecord) -> Caller:
        if self._route.scope is None:
            entry.caller = ANONYMOUS.name
            return ANONYMOUS
        caller = await self._edge.authenticator.authenticate(request.headers.get(hdrs.AUTHORIZATION))
        entry.caller = caller.name
        caller.require_scope(self._route.scope)
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
            raise Invalid([FieldError("Content-Encoding", f"is {encoding!r}; send the body as it is")])
        limit = self._edge.limits.max_request_bytes
        try:
            if (request.content_length or 0) > limit:
                raise _too_large(limit)
            return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise _too_large(limit) from error
        except (web.RequestPayloadError, OSError) as error:  # or whoever sent it hung up
            raise Invalid([FieldError("body", "ended before it was complete")]) from error


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes")


def http_request_id(given: str | None) -> str:
    """The caller's own, if it can stand in a log and in a header; else a new one."""
    return given if given is not None and _REQUEST_ID_PATTERN.fullmatch(given) else uuid.uuid4().hex


def fault_from_exception(error: BaseException) -> RuntimeFault:
    """What was raised, as something that can be answered."""
    match error:
        case RuntimeFault():
            return error
        case KubeError():
            return fault_from_kube_error(error)
        case JetStreamError():
            return fault_from_nats_error(error)
        case BaseExceptionGroup(exceptions=raised):  # of a handler that did several things at once
            faults = [fault_from_exception(each) for each in raised]
            return next((fault for fault in faults if isinstance(fault, InternalError)), faults[0])
    return InternalError("something went wrong here that should not; the log has it under this requestID")
