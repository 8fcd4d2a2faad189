"""The responses of the HTTP edge to valid and invalid requests, and to errors of handlers."""

import asyncio
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from yarl import URL

from gpu_runtime.contract.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NoStock,
    NotFound,
    OperationReused,
    Overloaded,
    StorageInUse,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.kube import errors as kube
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.access_log import AccessRecord
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Caller, Scope
from gpu_runtime.runtime_api.settings import RequestLimitSettings
from tests.unit.runtime_api.http.http_harness import (
    AppOptions,
    FixedAuthenticator,
    PagedQuery,
    SampleBody,
    echo,
    make_route,
    running_app,
)

POST = make_route("POST", "/items", body=SampleBody)


def raising(error: BaseException) -> Any:
    async def handler(_request: APIRequest[Any, Any]) -> APIResponse:
        raise error

    return handler


async def test_handler_gets_body_query_and_path() -> None:
    async with running_app([make_route("PUT", body=SampleBody, query=PagedQuery)]) as edge:
        reply = await edge.request("PUT", "/items/w%20eb%2F1?limit=3", json={"size": 5})
    assert reply.status == 200
    assert reply.json == {
        "data": {
            "body": {"size": 5},
            "query": {"limit": 3},
            "path": {"name": "w eb/1"},
            "caller": "anonymous",
        }
    }


async def test_list_response_has_a_continue_token() -> None:
    async def page(request: APIRequest[Any, PagedQuery]) -> APIResponse:
        return APIResponse(200, [1, 2], continuation="more" if request.query.limit == 2 else None)

    async with running_app([make_route(handler=page, query=PagedQuery)]) as edge:
        assert (await edge.request("GET", "/items/a?limit=2")).json == {"data": [1, 2], "continue": "more"}
        assert (await edge.request("GET", "/items/a")).json == {"data": [1, 2]}


async def test_204_response_has_no_body() -> None:
    async def no_data(_request: APIRequest[Any, Any]) -> APIResponse:
        return APIResponse(204)

    async with running_app([make_route("DELETE", handler=no_data)]) as edge:
        reply = await edge.request("DELETE", "/items/a")
    assert (reply.status, reply.body) == (204, b"")


async def test_head_is_get_without_its_body() -> None:
    async with running_app([make_route()]) as edge:
        get, head = await edge.request("GET", "/items/a"), await edge.request("HEAD", "/items/a")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == get.headers["Content-Length"] == str(len(get.body))


FAULTS: dict[str, tuple[BaseException, int, str]] = {
    "invalid": (Invalid([FieldError("a.b", "is odd")]), 400, "invalid"),
    "unauthenticated": (Unauthenticated("no"), 401, "unauthenticated"),
    "forbidden": (Forbidden("no"), 403, "forbidden"),
    "not found": (NotFound("no"), 404, "not_found"),
    "a conflict": (Conflict("no"), 409, "conflict"),
    "a reused operationID": (OperationReused("no"), 409, "operation_reused"),
    "no stock": (NoStock("no"), 409, "no_stock"),
    "a storage in use": (StorageInUse("no"), 409, "storage_in_use"),
    "gone": (Gone("no"), 410, "gone"),
    "too large": (TooLarge("no"), 413, "too_large"),
    "overloaded": (Overloaded("no", 2.5), 429, "overloaded"),
    "unavailable": (Unavailable("no"), 503, "unavailable"),
    "unreachable Kubernetes": (kube.KubeUnreachable("no answer", sent=False), 503, "unavailable"),
    "a write conflict in Kubernetes": (
        kube.KubeConflict(kube.ApiStatus(code=409, message="no")),
        409,
        "write_conflict",
    ),
    "an exception group": (ExceptionGroup("several", [NoStock("no")]), 409, "no_stock"),
    "an unexpected error": (KeyError("secret"), 500, "internal"),
    "an unexpected error in an exception group": (
        ExceptionGroup("several", [NoStock("no"), KeyError("secret")]),
        500,
        "internal",
    ),
}


@pytest.mark.parametrize(("error", "status", "code"), FAULTS.values(), ids=FAULTS)
async def test_every_fault_has_its_status_and_code(error: BaseException, status: int, code: str) -> None:
    async with running_app([make_route(handler=raising(error))]) as edge:
        reply = await edge.request("GET", "/items/a", headers={"X-Request-ID": "r-1"})
    assert (reply.status, reply.error["code"], reply.error["requestID"]) == (status, code, "r-1")
    assert reply.headers["X-Request-ID"] == "r-1"
    assert reply.error["message"]
    assert "secret" not in reply.body.decode()
    assert ("WWW-Authenticate" in reply.headers) == (status == 401)
    assert ("Retry-After" in reply.headers) == (status in (429, 503))


async def test_error_details_list_every_field() -> None:
    error = Invalid([FieldError("a.b", "is odd"), FieldError("c[0]", "is too many")])
    async with running_app([make_route(handler=raising(error))]) as edge:
        reply = await edge.request("GET", "/items/a")
    assert reply.error["message"] == "a.b: is odd; c[0]: is too many"
    assert reply.error["details"] == [
        {"field": "a.b", "message": "is odd"},
        {"field": "c[0]", "message": "is too many"},
    ]


async def test_retry_after_is_rounded_up_to_whole_seconds() -> None:
    async with running_app([make_route(handler=raising(Overloaded("no", 2.2)))]) as edge:
        assert (await edge.request("GET", "/items/a")).headers["Retry-After"] == "3"


async def test_unexpected_error_is_logged_with_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    async with running_app([make_route(handler=raising(KeyError("secret")))]) as edge:
        reply = await edge.request("GET", "/items/a")
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert vars(record)["http_request_id"] == reply.error["requestID"]
    assert "KeyError: 'secret'" in caplog.text


async def test_unencodable_response_is_answered_500() -> None:
    async def unencodable(_request: APIRequest[Any, Any]) -> APIResponse:
        return APIResponse(200, object())

    async with running_app([make_route(handler=unencodable)]) as edge:
        assert (await edge.request("GET", "/items/a")).status == 500


@pytest.mark.parametrize("header", ["", "a b", "ä", "x" * 129, "a;b"])
async def test_invalid_request_id_is_replaced(header: str) -> None:
    async with running_app([make_route()]) as edge:
        reply = await edge.request("GET", "/items/a", headers={"X-Request-ID": header})
    assert len(reply.headers["X-Request-ID"]) == 32


async def test_404_and_405_use_the_error_envelope() -> None:
    async with running_app([make_route(), make_route("PUT", body=SampleBody)]) as edge:
        unknown = await edge.request("GET", "/nothing")
        trailing = await edge.request("GET", "/items/a/")
        wrong = await edge.request("PATCH", "/items/a")
        plain = await edge.request("POST", "/healthz")
    assert (unknown.status, unknown.error["code"]) == (404, "not_found")
    assert (trailing.status, trailing.error["code"]) == (404, "not_found")
    assert (wrong.status, wrong.error["code"], wrong.headers["Allow"]) == (405, "method_not_allowed", "GET, HEAD, PUT")
    assert (plain.status, plain.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/items/%2e%2e", "/items/%00", "/items/%0a"])
async def test_ambiguous_path_never_reaches_a_route(path: str) -> None:
    async with running_app([make_route()]) as edge, edge.session.get(URL(edge.url(path), encoded=True)) as response:
        assert response.status in (400, 404)


async def test_body_limit_applies_with_and_without_content_length() -> None:
    route = make_route("POST", "/items", body=SampleBody, max_body_bytes=1024)

    async def chunks() -> Any:
        for _ in range(40):
            yield b" " * 100

    async with running_app([route]) as edge:
        fits = await edge.request("POST", "/items", json={"operationId": "x" * (1024 - 19)})
        too_large = await edge.request("POST", "/items", json={"operationId": "x" * (1024 - 18)})
        chunked = await edge.request("POST", "/items", data=chunks(), headers={"Content-Type": "application/json"})
    assert [reply.status for reply in (fits, too_large, chunked)] == [200, 413, 413]
    assert too_large.error["message"] == "the request body is larger than 1024 bytes; send a smaller one"
    assert chunked.error["code"] == "too_large"


class SignallingAuthenticator(FixedAuthenticator):
    """Sets an event when a request is authenticated. Its body is read next."""

    def __init__(self) -> None:
        super().__init__(Scope.RUNTIME)
        self.called = asyncio.Event()

    async def authenticate(self, authorization: str | None) -> Caller:
        self.called.set()
        return await super().authenticate(authorization)


@pytest.mark.parametrize("disconnect", [asyncio.StreamWriter.write_eof, lambda writer: writer.transport.abort()])
async def test_client_that_disconnects_while_sending_the_body_is_logged_as_400(
    disconnect: Callable[[asyncio.StreamWriter], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authenticator = SignallingAuthenticator()
    async with running_app([POST], AppOptions(authenticator)) as edge:
        _, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(b"POST /items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: 9\r\n\r\n{")
        await authenticator.called.wait()
        disconnect(writer)
        async with asyncio.timeout(60):
            while not (logged := [each for each in caplog.records if "status" in vars(each)]):  # noqa: ASYNC110 - logging has no event
                await asyncio.sleep(0.01)
        writer.close()
    assert [vars(each)["status"] for each in logged] == [400]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_compressed_body_is_rejected_before_it_is_decompressed() -> None:
    async with running_app([POST]) as edge:
        reply = await edge.request("POST", "/items", data=b"x", headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["details"][0]["field"]) == (400, "Content-Encoding")


async def test_body_without_json_content_type_is_rejected() -> None:
    async with running_app([POST]) as edge:
        form = await edge.request("POST", "/items", data={"size": "1"})
        missing = await edge.request("POST", "/items", data=b"{}", skip_auto_headers=["Content-Type"])
        charset = await edge.request(
            "POST", "/items", data=b"{}", headers={"Content-Type": "application/json; charset=utf-8"}
        )
    assert (form.status, missing.status, charset.status) == (400, 400, 200)
    assert form.error["message"].startswith("Content-Type: is 'application/x-www-form-urlencoded'; send")
    assert missing.error["message"] == "Content-Type: is missing; send the body as application/json"


async def test_route_without_body_accepts_no_body_or_an_empty_object() -> None:
    async with running_app([make_route("POST")]) as edge:
        no_body = await edge.request("POST", "/items/a")
        empty = await edge.request("POST", "/items/a", json={})
        unknown_field = await edge.request("POST", "/items/a", json={"force": True})
    assert [reply.status for reply in (no_body, empty, unknown_field)] == [200, 200, 400]
    assert unknown_field.error["message"] == "force: there is no such field; none is allowed here"


async def test_slow_request_times_out_and_its_handler_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def slow(_request: APIRequest[Any, Any]) -> APIResponse:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with running_app(
        [make_route(handler=slow)], AppOptions(limits=replace(RequestLimitSettings(), request_timeout_seconds=0.05))
    ) as edge:
        reply = await edge.request("GET", "/items/a")
        await cancelled.wait()
    assert reply.status == 503
    assert reply.error["message"].startswith("the request was not finished within 0.05 s")


async def test_unauthenticated_is_401_and_missing_scope_is_403() -> None:
    routes = [make_route(), make_route(path="/operator", scope=Scope.OPERATOR), make_route(path="/open", scope=None)]
    good = {"Authorization": "Bearer good"}
    async with running_app(routes, AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME))) as edge:
        authenticated = await edge.request("GET", "/items/a", headers=good)
        unauthenticated = await edge.request("GET", "/items/a")
        forbidden = await edge.request("GET", "/operator", headers=good)
        open_route = await edge.request("GET", "/open")
    assert [reply.status for reply in (authenticated, unauthenticated, forbidden, open_route)] == [200, 401, 403, 200]
    assert authenticated.json["data"]["caller"] == "token:tester"
    assert forbidden.error["message"] == "token:tester lacks the scope operator; it has runtime"


async def test_unauthenticated_request_is_rejected_before_its_body_is_read() -> None:
    async with running_app([POST], AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME))) as edge:
        assert (await edge.request("POST", "/items", data=b"{broken")).status == 401


async def test_rate_limited_response_has_retry_after() -> None:
    open_route = make_route(path="/open", scope=None)
    async with running_app(
        [make_route(), open_route], AppOptions(rate_limiter=CallerRateLimiter(per_second=0.1, burst=2))
    ) as edge:
        replies = [await edge.request("GET", "/items/a") for _ in range(3)]
        unlimited = await edge.request("GET", "/open")
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["Retry-After"]) <= 10
    assert unlimited.status == 200


async def test_unreachable_kubernetes_is_503_except_open_routes_and_invalid_requests() -> None:
    routes = [make_route(), make_route(path="/open", scope=None), POST]
    async with running_app(routes, AppOptions(stale_reason="Kubernetes cannot be reached")) as edge:
        unavailable = await edge.request("GET", "/items/a")
        open_reply = await edge.request("GET", "/open")
        invalid = await edge.request("POST", "/items", json={"sise": 1})
    assert (unavailable.status, unavailable.error["message"]) == (503, "Kubernetes cannot be reached")
    assert (open_reply.status, invalid.status) == (200, 400)


async def test_writes_are_audit_logged_and_reads_are_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_app([make_route(), POST]) as edge:
        await edge.request("GET", "/items/a")
        await edge.request("POST", "/items", json={"operationId": "op-7"}, headers={"X-Request-ID": "r-2"})
        await edge.request("POST", "/items", data=b"{broken", headers={"Content-Type": "application/json"})
    lines = [vars(record) for record in caplog.records if record.name == "gpu_runtime.audit"]
    assert [(line["status"], line.get("operation_id")) for line in lines] == [(200, "op-7"), (400, None)]
    first = {key: lines[0][key] for key in ("method", "route", "path", "caller", "http_request_id")}
    assert first == {
        "method": "POST",
        "route": "postItem",
        "path": "/items",
        "caller": "anonymous",
        "http_request_id": "r-2",
    }
    assert lines[0]["duration_seconds"] >= 0
    assert not [record for record in caplog.records if record.name == "gpu_runtime.access"]


def test_access_record_collects_object_ids() -> None:
    entry = AccessRecord("r-1", "POST", "/items", "postItem")
    entry.note_ids(SimpleNamespace(operation_id="op-7", invocation_id="", name=None))
    entry.note_ids(None)
    entry.note_ids(SimpleNamespace(name="web", invocation_id="inv-1"))
    assert entry.logged_ids == {"operation_id": "op-7", "object_name": "web", "invocation_id": "inv-1"}


async def test_http_metrics_are_labeled_by_route_name() -> None:
    async with running_app([make_route()]) as edge:
        for path in ("/items/a", "/items/b", "/what/ever", "/else"):
            await edge.request("GET", path)
        await edge.request("PROPFIND", "/else")
    text = generate_latest(edge.registry).decode()
    assert 'gpu_runtime_http_requests_total{code="200",method="GET",route="getItem"} 2.0' in text
    assert 'gpu_runtime_http_requests_total{code="404",method="GET",route="unmatched"} 2.0' in text
    assert 'gpu_runtime_http_requests_total{code="404",method="other",route="unmatched"} 1.0' in text
    assert 'gpu_runtime_http_request_duration_seconds_count{route="getItem"} 2.0' in text
    assert "/items/a" not in text


async def test_in_flight_request_finishes_after_shutdown_began() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def slow(_request: APIRequest[Any, Any]) -> APIResponse:
        started.set()
        await release.wait()
        return APIResponse(200, "done")

    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        async with running_app([make_route(handler=slow)]) as edge:
            request = tasks.create_task(_get(session, edge.url("/items/a")))
            await started.wait()
            edge.stopping.set()
            asyncio.get_running_loop().call_later(0.1, release.set)  # after the listener is closed
        status, connection, data = await request
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(edge.url("/items/a"))
    assert (status, connection, data) == (200, "close", {"data": "done"})


async def _get(session: aiohttp.ClientSession, url: str) -> tuple[int, str | None, Any]:
    async with session.get(url) as response:
        return response.status, response.headers.get("Connection"), json.loads(await response.read())


async def test_keep_alive_connection_gets_connection_close_after_shutdown_began() -> None:
    async with running_app([make_route(handler=echo)]) as edge:
        before = await edge.request("GET", "/items/a")
        edge.stopping.set()
        after = await edge.request("GET", "/items/a")
        ready = await edge.request("GET", "/readyz")
    assert before.headers.get("Connection") is None
    assert (after.status, after.headers.get("Connection"), ready.status) == (200, "close", 503)
