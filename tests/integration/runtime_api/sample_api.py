"""A small API over the sample routes: it does what its document says, and what a test asks it to do wrong."""

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
from gpu_runtime.runtime_api.http.swagger import add_swagger
from tests.unit.runtime_api.http.sample_routes import WidgetService, sample_routes

SAMPLE_TOKEN = "shelf-token"  # noqa: S105 - of this test only
DOCUMENT = openapi_document(sample_routes(WidgetService()))

ResponseFault = Callable[[web.Request, web.Response], web.Response]
"""What is done wrong, to an answer that was right."""


@contextmanager
def sample_api(wrong: ResponseFault | None = None, careless: bool = False) -> Iterator[str]:
    """Serve in a thread until the block ends; gives the base URL. A careless one takes anything from anybody."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runner = web.AppRunner(_app(wrong, careless), access_log=None, shutdown_timeout=1.0)
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


def _app(wrong: ResponseFault | None, careless: bool) -> web.Application:
    numbers = itertools.count(1)

    @web.middleware
    async def edge(request: web.Request, handler: Callable[..., Awaitable[Any]]) -> web.Response:
        name = f"request-{next(numbers)}"
        try:
            response = await handler(request)
        except RuntimeFault as fault:
            response = _error_response(http_status(type(fault)), fault.code, fault.message, name)
        except web.HTTPException as error:
            response = _error_response(error.status, "not_found", error.reason, name)
            response.headers.update({"Allow": error.headers["Allow"]} if "Allow" in error.headers else {})
        response.headers["X-Request-ID"] = name
        return wrong(request, response) if wrong else response

    app = web.Application(middlewares=[edge])
    add_swagger(app, serialize_document(DOCUMENT))
    for route in sample_routes(WidgetService()):
        app.router.add_route(route.method, route.path, _handler(route, careless))
    return app


def _handler(route: Route, careless: bool) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        if route.scope and not careless and request.headers.get("Authorization") != f"Bearer {SAMPLE_TOKEN}":
            raise Unauthenticated("say who you are")
        call = APIRequest(await _body(route, request, careless), _query(route, request), request.match_info)
        return _data_response(await route.handler(call))

    return answer


async def _body(route: Route, request: web.Request, careless: bool) -> Any:
    if route.body is None:
        return None
    try:
        sent = msgspec.json.decode(await request.read())
        if not careless:
            jsonschema_rs.validator_for(_schema(route.body)).validate(sent)
        return msgspec.convert(sent, route.body)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise Invalid([FieldError("body", str(error))]) from error


def _schema(body: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{body.__name__}", "components": DOCUMENT["components"]}


def _query(route: Route, request: web.Request) -> Any:
    known = set(route.query.__struct_encode_fields__)
    if strange := [key for key in request.query if key not in known or len(request.query.getall(key)) > 1]:
        raise Invalid([FieldError(strange[0], "is not a parameter, or is there twice")])
    try:
        return msgspec.convert(dict(request.query), route.query, strict=False)
    except msgspec.ValidationError as error:
        raise Invalid([FieldError("query", str(error))]) from error


def _data_response(answer: APIResponse) -> web.Response:
    if answer.data is None:
        return web.Response(status=answer.status)
    envelope = {"data": answer.data} | ({"continue": answer.continuation} if answer.continuation else {})
    return _json(answer.status, envelope)


def _error_response(status: int, code: str, message: str, name: str) -> web.Response:
    response = _json(status, {"error": {"code": code, "message": message, "requestID": name}})
    if status == http_status(Unauthenticated):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
