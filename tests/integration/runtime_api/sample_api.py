"""Serves the sample routes. A test can make the API violate its OpenAPI document."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jsonschema_rs
import msgspec
from aiohttp import web

from gpu_runtime.contract.errors import Invalid, RuntimeFault, Unauthenticated
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.runtime_api.http.envelope import http_status
from gpu_runtime.runtime_api.http.openapi import openapi_document, serialize_document
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Route
from gpu_runtime.runtime_api.http.swagger import swagger_handlers
from tests.unit.runtime_api.http.sample_routes import WidgetService, sample_routes

SAMPLE_TOKEN = "widget-token"  # noqa: S105 - used by tests only
DOCUMENT = openapi_document(sample_routes(WidgetService()))

ResponseFault = Callable[[web.Request, web.Response], web.Response]
"""Replaces a conforming response by a nonconforming one."""


@contextmanager
def sample_api(fault: ResponseFault | None = None, skip_validation: bool = False) -> Iterator[str]:
    """Serve in a thread until the block ends, and yield the base URL.

    With `skip_validation` the API accepts every body and every caller.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = web.AppRunner(_app(fault, skip_validation), access_log=None, shutdown_timeout=1.0)
    try:
        port = asyncio.run_coroutine_threadsafe(_start(runner), loop).result(60)
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _start(runner: web.AppRunner) -> int:
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


def _app(fault: ResponseFault | None, skip_validation: bool) -> web.Application:
    numbers = itertools.count(1)

    @web.middleware
    async def edge(request: web.Request, handler: Callable[..., Awaitable[Any]]) -> web.Response:
        name = f"request-{next(numbers)}"
        try:
            response = await handler(request)
        except RuntimeFault as error:
            response = _error_response(http_status(type(error)), error.code, error.message, name)
        except web.HTTPException as error:
            response = _error_response(error.status, "not_found", error.reason, name)
            response.headers.update({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        response.headers["X-Request-ID"] = name
        return fault(request, response) if fault else response

    app = web.Application(middlewares=[edge])
    app.add_routes([web.get(path, each) for path, each in swagger_handlers(serialize_document(DOCUMENT)).items()])
    for route in sample_routes(WidgetService()):
        app.router.add_route(route.method, route.path, _handler(route, skip_validation))
    return app


def _handler(route: Route, skip_validation: bool) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        if route.scope and not skip_validation and request.headers.get("Authorization") != f"Bearer {SAMPLE_TOKEN}":
            raise Unauthenticated("the bearer token is missing or unknown")
        decoded = APIRequest(await _body(route, request, skip_validation), _query(route, request), request.match_info)
        return _data_response(await route.handler(decoded))

    return handle


async def _body(route: Route, request: web.Request, skip_validation: bool) -> Any:
    if route.body is None:
        return None
    try:
        document = msgspec.json.decode(await request.read())
        if not skip_validation:
            jsonschema_rs.validator_for(_schema(route.body)).validate(document)
        return msgspec.convert(document, route.body)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise Invalid([FieldError("body", str(error))]) from error


def _schema(body: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{body.__name__}", "components": DOCUMENT["components"]}


def _query(route: Route, request: web.Request) -> Any:
    parameters = set(route.query.__struct_encode_fields__)
    if invalid := [key for key in request.query if key not in parameters or len(request.query.getall(key)) > 1]:
        raise Invalid([FieldError(invalid[0], "is not a parameter, or is given more than once")])
    try:
        return msgspec.convert(dict(request.query), route.query, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid([FieldError("query", str(error))]) from error


def _data_response(response: APIResponse) -> web.Response:
    if response.data is None:
        return web.Response(status=response.status)
    envelope = {"data": response.data} | ({"continue": response.continuation} if response.continuation else {})
    return _json(response.status, envelope)


def _error_response(status: int, code: str, message: str, name: str) -> web.Response:
    response = _json(status, {"error": {"code": code, "message": message, "requestID": name}})
    if status == http_status(Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
