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
from gpu_runtime.contract.validation.field_error import Problem
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.process.health_server import Check, Handler
from gpu_runtime.process.nats_setup import fault_of
from gpu_runtime.runtime_api.http.access_log import Entry, Journal
from gpu_runtime.runtime_api.http.caller import ANYBODY, Authenticator, Caller
from gpu_runtime.runtime_api.http.decoding import NoBody, read_body, read_path, read_query
from gpu_runtime.runtime_api.http.envelope import REQUEST_ID, Internal, MethodNotAllowed, Reply, failure, success
from gpu_runtime.runtime_api.http.rate_limit import Rates
from gpu_runtime.runtime_api.http.route import Answer, Body, Call, Route
from gpu_runtime.runtime_api.kube_error_mapping import translated
from gpu_runtime.runtime_api.settings import Limits

logger = logging.getLogger(__name__)

Work: TypeAlias = Callable[[web.Request, Entry], Awaitable[Answer]]

_SANE_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")
_UNMATCHED = "unmatched"
_NO_PLAIN: Mapping[str, Handler] = MappingProxyType({})


@dataclass(frozen=True)
class Edge:
    """What stands between the network and the routes."""

    authenticator: Authenticator
    rates: Rates
    journal: Journal
    limits: Limits
    unusable: Check
    """Why no route that needs the cluster can work now, if that is so. Routes without a scope work always."""
    stopping: asyncio.Event


def make_app(routes: Sequence[Route], edge: Edge, plain: Mapping[str, Handler] = _NO_PLAIN) -> web.Application:
    """An application of these routes. Plain handlers answer GET on their paths with whatever they like, to anybody."""
    app = web.Application(client_max_size=edge.limits.body_bytes + 1)
    for path, handler in plain.items():
        resource = app.router.add_resource(path)
        for method in (hdrs.METH_GET, hdrs.METH_HEAD):
            resource.add_route(method, handler, expect_handler=_go_on)
        refusal = Served(edge, _UNMATCHED, _refuse_method("GET, HEAD"))
        resource.add_route("*", refusal.handle, expect_handler=_go_on)
    for path, at_path in groupby(sorted(routes, key=lambda route: route.path), key=lambda route: route.path):
        _add_path(app, path, list(at_path), edge)
    nothing = Served(edge, _UNMATCHED, _no_such_path)
    app.router.add_route("*", "/{tail:.*}", nothing.handle, expect_handler=_go_on)
    return app


def _add_path(app: web.Application, path: str, routes: Sequence[Route], edge: Edge) -> None:
    resource = app.router.add_resource(path)
    methods = dict(_methods(routes))
    for method, route in methods.items():
        served = Served(edge, route.name, Admission(edge, route).answer)
        resource.add_route(method, served.handle, expect_handler=_go_on)
    refusal = _refuse_method(", ".join(sorted(methods)))
    resource.add_route("*", Served(edge, _UNMATCHED, refusal).handle, expect_handler=_go_on)


def _methods(routes: Sequence[Route]) -> Iterator[tuple[str, Route]]:
    for route in routes:
        yield route.method, route
        if route.method == hdrs.METH_GET:
            yield hdrs.METH_HEAD, route


async def _go_on(request: web.Request) -> None:
    """Tell who waits for it to send the body. Who has left meanwhile is no failure of ours."""
    if request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        with suppress(ConnectionError):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0  # the answer itself has not begun


def _refuse_method(allowed: str) -> Work:
    async def refuse(request: web.Request, _entry: Entry) -> Answer:
        raise MethodNotAllowed(request.method, allowed)

    return refuse


async def _no_such_path(request: web.Request, _entry: Entry) -> Answer:
    raise NotFound(f"there is no {request.path[:200]!r} here; /openapi.json lists what there is")


class Served:
    """Work with a request id, a time limit, an answer whatever happens, and a line in the journal."""

    def __init__(self, edge: Edge, route: str, work: Work) -> None:
        self._edge = edge
        self._route = route
        self._work = work

    async def handle(self, request: web.Request) -> web.Response:
        started = time.perf_counter()
        entry = Entry(request_id(request.headers.get(REQUEST_ID)), request.method, request.path, self._route)
        reply = await self._reply(request, entry)
        self._edge.journal.write(entry, reply.status, time.perf_counter() - started)
        return self._response(reply, entry)

    async def _reply(self, request: web.Request, entry: Entry) -> Reply:
        limit = asyncio.timeout(self._edge.limits.request_seconds)
        try:
            async with limit:
                return success(await self._work(request, entry))
        except Exception as error:
            fault = self._too_slow() if limit.expired() else as_fault(error)
            if isinstance(fault, Internal):
                extra = {"requestID": entry.request_id, "route": entry.route, **entry.about}
                logger.exception("a request failed unforeseen", extra=extra)
            return failure(fault, entry.request_id)

    def _too_slow(self) -> Unavailable:
        seconds = self._edge.limits.request_seconds
        return Unavailable(f"not finished within {seconds:g} s; the same request may be made again")

    def _response(self, reply: Reply, entry: Entry) -> web.Response:
        headers = {REQUEST_ID: entry.request_id, "Server": "gpu-runtime", **reply.headers}
        if reply.body:
            headers["Content-Type"] = "application/json"
        response = web.Response(body=reply.body or None, status=reply.status, headers=headers)
        if self._edge.stopping.is_set():
            response.force_close()  # the next request should find another replica
        return response


class Admission:
    """One route behind authentication, limits and decoding."""

    def __init__(self, edge: Edge, route: Route) -> None:
        self._edge = edge
        self._route = route

    async def answer(self, request: web.Request, entry: Entry) -> Answer:
        caller = await self._admitted(request, entry)
        path = read_path(request.match_info)
        query = read_query(tuple(request.query.items()), self._route.query)
        body = await self._body(request)
        entry.concerns(body)
        if self._route.scope is not None and self._route.needs_cluster and (reason := self._edge.unusable()):
            raise Unavailable(reason)
        answer = await self._route.handler(Call(body=body, query=query, path=path, caller=caller.name))
        entry.concerns(answer.data)
        return answer

    async def _admitted(self, request: web.Request, entry: Entry) -> Caller:
        if self._route.scope is None:
            entry.caller = ANYBODY.name
            return ANYBODY
        caller = await self._edge.authenticator.caller(request.headers.get(hdrs.AUTHORIZATION))
        entry.caller = caller.name
        caller.must_have(self._route.scope)
        self._edge.rates.admit(caller.name, time.monotonic())
        return caller

    async def _body(self, request: web.Request) -> Body | None:
        raw = await self._read(request) if request.body_exists else b""
        content_type = request.content_type if hdrs.CONTENT_TYPE in request.headers else ""
        if self._route.body is not None:
            return read_body(raw, content_type, self._route.body)
        if raw:
            read_body(raw, content_type, NoBody)
        return None

    async def _read(self, request: web.Request) -> bytes:
        if encoding := request.headers.get(hdrs.CONTENT_ENCODING):
            raise Invalid([Problem("Content-Encoding", f"is {encoding!r}; send the body as it is")])
        limit = self._edge.limits.body_bytes
        try:
            if (request.content_length or 0) > limit:
                raise _too_large(limit)
            return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise _too_large(limit) from error
        except (web.RequestPayloadError, OSError) as error:  # or whoever sent it hung up
            raise Invalid([Problem("body", "ended before it was complete")]) from error


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit} bytes")


def request_id(given: str | None) -> str:
    """The caller's own, if it can stand in a log and in a header; else a new one."""
    return given if given is not None and _SANE_ID.fullmatch(given) else uuid.uuid4().hex


def as_fault(error: BaseException) -> RuntimeFault:
    """What was raised, as something that can be answered."""
    match error:
        case RuntimeFault():
            return error
        case KubeError():
            return translated(error)
        case StreamError():
            return fault_of(error)
        case BaseExceptionGroup(exceptions=raised):  # of a handler that did several things at once
            faults = [as_fault(each) for each in raised]
            return next((fault for fault in faults if isinstance(fault, Internal)), faults[0])
    return Internal("something went wrong here that should not; the log has it under this requestID")
