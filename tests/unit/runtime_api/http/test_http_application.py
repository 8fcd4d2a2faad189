"""What a caller gets from the edge, whatever it sends and whatever happens behind it."""

import asyncio
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace
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
from gpu_runtime.runtime_api.http.access_log import AccessRecord
from gpu_runtime.runtime_api.http.caller import Caller
from gpu_runtime.runtime_api.http.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Scope
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

POST = make_route("POST", "/things", body=SampleBody)


def raising(error: BaseException) -> Any:
    async def handler(_call: APIRequest[Any, Any]) -> APIResponse:
        raise error

    return handler


async def test_a_route_gets_body_query_and_path() -> None:
    async with running_app([make_route("PUT", body=SampleBody, query=PagedQuery)]) as edge:
        reply = await edge.request("PUT", "/things/w%20eb%2F1?limit=3", json={"size": 5})
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
    async def page(call: APIRequest[Any, PagedQuery]) -> APIResponse:
        return APIResponse(200, [1, 2], continuation="more" if call.query.limit == 2 else None)

    async with running_app([make_route(handler=page, query=PagedQuery)]) as edge:
        assert (await edge.request("GET", "/things/a?limit=2")).json == {"data": [1, 2], "continue": "more"}
        assert (await edge.request("GET", "/things/a")).json == {"data": [1, 2]}


async def test_an_answer_without_data_has_no_body() -> None:
    async def nothing(_call: APIRequest[Any, Any]) -> APIResponse:
        return APIResponse(204)

    async with running_app([make_route("DELETE", handler=nothing)]) as edge:
        reply = await edge.request("DELETE", "/things/a")
    assert (reply.status, reply.body) == (204, b"")


async def test_head_is_get_without_its_body() -> None:
    async with running_app([make_route()]) as edge:
        get, head = await edge.request("GET", "/things/a"), await edge.request("HEAD", "/things/a")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Length"] == get.headers["Content-Length"] == str(len(get.body))


FAULTS: dict[str, tuple[BaseException, int, str]] = {
    "invalid": (Invalid([FieldError("a.b", "is odd")]), 400, "invalid"),
    "unauthenticated": (Unauthenticated("who?"), 401, "unauthenticated"),
    "forbidden": (Forbidden("no"), 403, "forbidden"),
    "unknown": (NotFound("no"), 404, "not_found"),
    "a conflict": (Conflict("no"), 409, "conflict"),
    "another request": (OperationReused("no"), 409, "operation_reused"),
    "no stock": (NoStock("no"), 409, "no_stock"),
    "a held storage": (StorageInUse("no"), 409, "storage_in_use"),
    "gone": (Gone("no"), 410, "gone"),
    "too large": (TooLarge("no"), 413, "too_large"),
    "overloaded": (Overloaded("no", 2.5), 429, "overloaded"),
    "unavailable": (Unavailable("no"), 503, "unavailable"),
    "Kubernetes away": (kube.KubeUnreachable("no answer", sent=False), 503, "unavailable"),
    "a lost race in Kubernetes": (kube.KubeConflict(kube.ApiStatus(code=409, message="no")), 409, "conflict"),
    "one of several at once": (ExceptionGroup("several", [NoStock("no")]), 409, "no_stock"),
    "a bug": (KeyError("secret"), 500, "internal"),
    "a bug beside a fault": (ExceptionGroup("several", [NoStock("no"), KeyError("secret")]), 500, "internal"),
}


@pytest.mark.parametrize(("error", "status", "code"), FAULTS.values(), ids=FAULTS)
async def test_every_fault_has_its_status_and_code(error: BaseException, status: int, code: str) -> None:
    async with running_app([make_route(handler=raising(error))]) as edge:
        reply = await edge.request("GET", "/things/a", headers={"X-Request-ID": "r-1"})
    assert (reply.status, reply.error["code"], reply.error["requestID"]) == (status, code, "r-1")
    assert reply.headers["X-Request-ID"] == "r-1"
    assert reply.error["message"]
    assert "secret" not in reply.body.decode()
    assert ("WWW-Authenticate" in reply.headers) == (status == 401)
    assert ("Retry-After" in reply.headers) == (status in (429, 503))


async def test_details_name_every_field() -> None:
    error = Invalid([FieldError("a.b", "is odd"), FieldError("c[0]", "is too many")])
    async with running_app([make_route(handler=raising(error))]) as edge:
        reply = await edge.request("GET", "/things/a")
    assert reply.error["message"] == "a.b: is odd; c[0]: is too many"
    assert reply.error["details"] == [
        {"field": "a.b", "message": "is odd"},
        {"field": "c[0]", "message": "is too many"},
    ]


async def test_the_time_to_wait_is_in_whole_seconds() -> None:
    async with running_app([make_route(handler=raising(Overloaded("no", 2.2)))]) as edge:
        assert (await edge.request("GET", "/things/a")).headers["Retry-After"] == "3"


async def test_a_bug_is_in_the_log_under_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    async with running_app([make_route(handler=raising(KeyError("secret")))]) as edge:
        reply = await edge.request("GET", "/things/a")
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert vars(record)["requestID"] == reply.error["requestID"]
    assert "KeyError: 'secret'" in caplog.text


async def test_unencodable_response_is_answered_500() -> None:
    async def odd(_call: APIRequest[Any, Any]) -> APIResponse:
        return APIResponse(200, object())

    async with running_app([make_route(handler=odd)]) as edge:
        assert (await edge.request("GET", "/things/a")).status == 500


@pytest.mark.parametrize("given", ["", "a b", "ä", "x" * 129, "a;b"])
async def test_unprintable_request_id_is_replaced(given: str) -> None:
    async with running_app([make_route()]) as edge:
        reply = await edge.request("GET", "/things/a", headers={"X-Request-ID": given})
    assert len(reply.headers["X-Request-ID"]) == 32


async def test_404_and_405_use_the_error_envelope() -> None:
    async with running_app([make_route(), make_route("PUT", body=SampleBody)]) as edge:
        unknown = await edge.request("GET", "/nothing")
        trailing = await edge.request("GET", "/things/a/")
        wrong = await edge.request("PATCH", "/things/a")
        plain = await edge.request("POST", "/healthz")
    assert (unknown.status, unknown.error["code"]) == (404, "not_found")
    assert (trailing.status, trailing.error["code"]) == (404, "not_found")
    assert (wrong.status, wrong.error["code"], wrong.headers["Allow"]) == (405, "method_not_allowed", "GET, HEAD, PUT")
    assert (plain.status, plain.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/things/%2e%2e", "/things/%00", "/things/%0a"])
async def test_ambiguous_path_never_reaches_a_route(path: str) -> None:
    async with running_app([make_route()]) as edge, edge.session.get(URL(edge.url(path), encoded=True)) as answer:
        assert answer.status in (400, 404)


async def test_body_limit_applies_with_and_without_content_length() -> None:
    limits = replace(RequestLimitSettings(), max_request_bytes=1024)

    async def chunks() -> Any:
        for _ in range(40):
            yield b" " * 100

    async with running_app([POST], AppOptions(limits=limits)) as edge:
        fits = await edge.request("POST", "/things", json={"operationId": "x" * (1024 - 19)})
        told = await edge.request("POST", "/things", json={"operationId": "x" * (1024 - 18)})
        untold = await edge.request("POST", "/things", data=chunks(), headers={"Content-Type": "application/json"})
    assert [reply.status for reply in (fits, told, untold)] == [200, 413, 413]
    assert told.error["message"] == "the body is larger than 1024 bytes"
    assert untold.error["code"] == "too_large"


class SignallingAuthenticator(FixedAuthenticator):
    """Tells when a request has come so far that its body is read next."""

    def __init__(self) -> None:
        super().__init__(Scope.RUNTIME)
        self.asked = asyncio.Event()

    async def authenticate(self, authorization: str | None) -> Caller:
        self.asked.set()
        return await super().authenticate(authorization)


@pytest.mark.parametrize("leave", [asyncio.StreamWriter.write_eof, lambda writer: writer.transport.abort()])
async def test_client_that_disconnects_while_sending_the_body_is_logged_as_400(
    leave: Callable[[asyncio.StreamWriter], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    watching = SignallingAuthenticator()
    async with running_app([POST], AppOptions(watching)) as edge:
        _, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(b"POST /things HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: 9\r\n\r\n{")
        await watching.asked.wait()
        leave(writer)
        async with asyncio.timeout(60):
            while not (written := [each for each in caplog.records if "status" in vars(each)]):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
        writer.close()
    assert [vars(each)["status"] for each in written] == [400]
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


async def test_a_compressed_body_is_refused_before_it_is_unpacked() -> None:
    async with running_app([POST]) as edge:
        reply = await edge.request("POST", "/things", data=b"x", headers={"Content-Encoding": "gzip"})
    assert (reply.status, reply.error["details"][0]["field"]) == (400, "Content-Encoding")


async def test_body_without_json_content_type_is_rejected() -> None:
    async with running_app([POST]) as edge:
        form = await edge.request("POST", "/things", data={"size": "1"})
        untold = await edge.request("POST", "/things", data=b"{}", skip_auto_headers=["Content-Type"])
        charset = await edge.request(
            "POST", "/things", data=b"{}", headers={"Content-Type": "application/json; charset=utf-8"}
        )
    assert (form.status, untold.status, charset.status) == (400, 400, 200)
    assert form.error["message"].startswith("Content-Type: is 'application/x-www-form-urlencoded'; send")
    assert untold.error["message"] == "Content-Type: is missing; send the body as application/json"


async def test_a_route_without_a_body_takes_nothing_or_an_empty_object() -> None:
    async with running_app([make_route("POST")]) as edge:
        nothing = await edge.request("POST", "/things/a")
        empty = await edge.request("POST", "/things/a", json={})
        something = await edge.request("POST", "/things/a", json={"force": True})
    assert [reply.status for reply in (nothing, empty, something)] == [200, 200, 400]
    assert something.error["message"] == "force: there is no such field; there is none"


async def test_slow_request_times_out_and_its_handler_is_cancelled() -> None:
    ended = asyncio.Event()

    async def slow(_call: APIRequest[Any, Any]) -> APIResponse:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with running_app(
        [make_route(handler=slow)], AppOptions(limits=replace(RequestLimitSettings(), request_timeout_seconds=0.05))
    ) as edge:
        reply = await edge.request("GET", "/things/a")
        await ended.wait()
    assert reply.status == 503
    assert reply.error["message"].startswith("not finished within 0.05 s")


async def test_unauthenticated_is_401_and_missing_scope_is_403() -> None:
    routes = [make_route(), make_route(path="/operator", scope=Scope.OPERATOR), make_route(path="/open", scope=None)]
    good = {"Authorization": "Bearer good"}
    async with running_app(routes, AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME))) as edge:
        known = await edge.request("GET", "/things/a", headers=good)
        unknown = await edge.request("GET", "/things/a")
        lacking = await edge.request("GET", "/operator", headers=good)
        free = await edge.request("GET", "/open")
    assert [reply.status for reply in (known, unknown, lacking, free)] == [200, 401, 403, 200]
    assert known.json["data"]["caller"] == "token:tester"
    assert lacking.error["message"] == "token:tester lacks the scope operator; it has runtime"


async def test_unauthenticated_request_is_rejected_before_its_body_is_read() -> None:
    async with running_app([POST], AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME))) as edge:
        assert (await edge.request("POST", "/things", data=b"{broken")).status == 401


async def test_rate_limited_response_has_retry_after() -> None:
    open_route = make_route(path="/open", scope=None)
    async with running_app(
        [make_route(), open_route], AppOptions(rates=CallerRateLimiter(per_second=0.1, burst=2))
    ) as edge:
        replies = [await edge.request("GET", "/things/a") for _ in range(3)]
        free = await edge.request("GET", "/open")
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[2].headers["Retry-After"]) <= 10
    assert free.status == 200


async def test_unreachable_kubernetes_is_503_except_open_routes_and_invalid_requests() -> None:
    routes = [make_route(), make_route(path="/open", scope=None), POST]
    async with running_app(routes, AppOptions(stale_reason="Kubernetes cannot be reached")) as edge:
        away = await edge.request("GET", "/things/a")
        free = await edge.request("GET", "/open")
        bad = await edge.request("POST", "/things", json={"sise": 1})
    assert (away.status, away.error["message"]) == (503, "Kubernetes cannot be reached")
    assert (free.status, bad.status) == (200, 400)


async def test_every_write_is_in_the_audit_log_and_reads_only_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running_app([make_route(), POST]) as edge:
        await edge.request("GET", "/things/a")
        await edge.request("POST", "/things", json={"operationId": "op-7"}, headers={"X-Request-ID": "r-2"})
        await edge.request("POST", "/things", data=b"{broken", headers={"Content-Type": "application/json"})
    lines = [vars(record) for record in caplog.records if record.name == "gpu_runtime.audit"]
    assert [(line["status"], line.get("operationID")) for line in lines] == [(200, "op-7"), (400, None)]
    first = {key: lines[0][key] for key in ("method", "route", "path", "caller", "requestID")}
    assert first == {
        "method": "POST",
        "route": "postThing",
        "path": "/things",
        "caller": "anonymous",
        "requestID": "r-2",
    }
    assert lines[0]["seconds"] >= 0
    assert not [record for record in caplog.records if record.name == "gpu_runtime.access"]


def test_access_record_collects_object_ids() -> None:
    entry = AccessRecord("r-1", "POST", "/things", "postThing")
    entry.note_ids(SimpleNamespace(operation_id="op-7", invocation_id="", name=None))
    entry.note_ids(None)
    entry.note_ids(SimpleNamespace(name="web", invocation_id="inv-1"))
    assert entry.logged_ids == {"operationID": "op-7", "object": "web", "invocationID": "inv-1"}


async def test_http_metrics_are_labeled_by_route_name() -> None:
    async with running_app([make_route()]) as edge:
        for path in ("/things/a", "/things/b", "/what/ever", "/else"):
            await edge.request("GET", path)
        await edge.request("PROPFIND", "/else")
        text = (await edge.request("GET", "/metrics")).body.decode()
    assert 'http_requests_total{code="200",method="GET",route="getThing"} 2.0' in text
    assert 'http_requests_total{code="404",method="GET",route="unmatched"} 2.0' in text
    assert 'http_requests_total{code="404",method="other",route="unmatched"} 1.0' in text
    assert 'http_request_seconds_count{route="getThing"} 2.0' in text
    assert "/things/a" not in text


async def test_in_flight_request_finishes_after_shutdown_began() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_call: APIRequest[Any, Any]) -> APIResponse:
        begun.set()
        await go_on.wait()
        return APIResponse(200, "done")

    async with asyncio.TaskGroup() as tasks, aiohttp.ClientSession() as session:
        async with running_app([make_route(handler=slow)]) as edge:
            asked = tasks.create_task(_get(session, edge.url("/things/a")))
            await begun.wait()
            edge.stopping.set()
            asyncio.get_running_loop().call_later(0.1, go_on.set)  # after the listener has closed
        status, connection, data = await asked
        with pytest.raises(aiohttp.ClientConnectorError):
            await session.get(edge.url("/things/a"))
    assert (status, connection, data) == (200, "close", {"data": "done"})


async def _get(session: aiohttp.ClientSession, url: str) -> tuple[int, str | None, Any]:
    async with session.get(url) as answer:
        return answer.status, answer.headers.get("Connection"), json.loads(await answer.read())


async def test_keep_alive_connection_gets_connection_close_after_shutdown_began() -> None:
    async with running_app([make_route(handler=echo)]) as edge:
        before = await edge.request("GET", "/things/a")
        edge.stopping.set()
        after = await edge.request("GET", "/things/a")
        ready = await edge.request("GET", "/readyz")
    assert before.headers.get("Connection") is None
    assert (after.status, after.headers.get("Connection"), ready.status) == (200, "close", 503)
