"""What a handler receives, and the responses to its return values and exceptions, over the socket of a process."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.framework.framework_process import FrameworkProcess, running_framework

SOURCE = """
import dataclasses, hashlib, math, sys, time
from gpu_runtime.framework import Reject, Response, Retry, handler, serve

class StrRaisesError(Exception):
    def __str__(self):
        raise ValueError("no")

class CustomError(Exception):
    pass

class StrExits(Exception):
    def __str__(self):
        sys.exit("no")

class RetryWithoutInit(Retry):
    def __init__(self):
        pass

def fail(error):
    raise error

ACTIONS = {
    "inspect": lambda r: {
        "payload": r.payload if not isinstance(r.payload, bytes) else r.payload.hex(),
        "id": r.invocation_id, "headers": dict(r.headers), "attributes": r.attributes, "attempt": r.attempt,
        "deadline": r.deadline and r.deadline.isoformat(), "bounded": r.remaining() < math.inf, "type": r.content_type,
        "any case": r.headers.get("X-TRACE"),
    },
    "none": lambda r: None,
    "text": lambda r: "größer",
    "bytes": lambda r: bytes(range(256)),
    "bytearray": lambda r: bytearray(b"\\0"),
    "list": lambda r: [1, "ü", None],
    "true": lambda r: True,
    "csv": lambda r: Response("a,b", "text/csv"),
    "created": lambda r: Response({"a": 1}, status=201),
    "teapot": lambda r: Response("short and stout", status=418),
    "digest": lambda r: hashlib.sha256(r.payload).hexdigest(),
    "echo": lambda r: Response(r.payload, r.content_type),
    "zeros": lambda r: bytes(10_000_000),
    "set": lambda r: {1},
    "nan": lambda r: math.nan,
    "lone surrogate": lambda r: "\\ud800",
    "redirect": lambda r: Response(status=302),
    "header injection": lambda r: Response("", "text/plain\\r\\nX: y"),
    "body with 204": lambda r: Response("x", status=204),
    "fail": lambda r: fail(CustomError("the sentence")),
    "str raises error": lambda r: fail(StrRaisesError()),
    "long": lambda r: fail(ValueError("x" * 100_000)),
    "exit": lambda r: sys.exit(3),
    "retry": lambda r: fail(Retry("not now")),
    "retry after": lambda r: fail(Retry("not now", after=1.2)),
    "retry after infinity": lambda r: fail(Retry("not now", after=math.inf)),
    "retry without init": lambda r: fail(RetryWithoutInit()),
    "str exits": lambda r: fail(StrExits()),
    "reject": lambda r: fail(Reject("never")),
    "coroutine": lambda r: later(),
    "missing key": lambda r: r.payload["missing"],
}

async def later():
    pass

def run(request):
    do = request.headers.get("do") or request.payload["do"]
    return ACTIONS[do](request)

async def run_async(request):
    return run(request)

handler(run_async if IS_ASYNC else run)
serve()
"""


@pytest.fixture(scope="module", params=[False, True], ids=["sync", "async"])
def framework(request: pytest.FixtureRequest, module_socket_dir: Path) -> Iterator[FrameworkProcess]:
    with running_framework(f"IS_ASYNC = {request.param}\n{SOURCE}", module_socket_dir) as running:
        yield running


RETURNED: list[tuple[str, int, str | None, bytes]] = [
    ("none", 204, None, b""),
    ("text", 200, "text/plain; charset=utf-8", "größer".encode()),
    ("bytes", 200, "application/octet-stream", bytes(range(256))),
    ("bytearray", 200, "application/octet-stream", b"\0"),
    ("list", 200, "application/json", b'[1,"\\u00fc",null]'),
    ("true", 200, "application/json", b"true"),
    ("csv", 200, "text/csv", b"a,b"),
    ("created", 201, "application/json", b'{"a":1}'),
    ("teapot", 418, "text/plain; charset=utf-8", b"short and stout"),
]


@pytest.mark.parametrize(("do", "status", "content_type", "body"), RETURNED, ids=[row[0] for row in RETURNED])
def test_return_value_becomes_a_response(
    framework: FrameworkProcess, do: str, status: int, content_type: str | None, body: bytes
) -> None:
    reply = framework.invoke({"do": do})
    assert (reply.status, reply.headers.get("Content-Type"), reply.body) == (status, content_type, body)


@pytest.mark.parametrize(
    ("do", "status", "kind", "part"),
    [
        ("fail", 500, "CustomError", "the sentence"),
        ("str raises error", 500, "StrRaisesError", "__str__ failed"),
        ("str exits", 500, "StrExits", "__str__ failed"),
        ("retry after infinity", 500, "ValueError", "after is inf"),
        ("retry without init", 503, "Retry", ""),
        ("long", 500, "ValueError", "(cut off)"),
        ("exit", 500, "SystemExit", "3"),
        ("missing key", 500, "KeyError", "missing"),
        ("set", 500, "TypeError", "return a JSON-compatible value, bytes, str, None or a Response"),
        ("nan", 500, "TypeError", "not JSON"),
        ("lone surrogate", 500, "UnicodeEncodeError", ""),
        ("redirect", 500, "ValueError", "status is 302"),
        ("header injection", 500, "ValueError", "content_type"),
        ("body with 204", 500, "ValueError", "has no body"),
        ("retry", 503, "Retry", "not now"),
        ("reject", 422, "Reject", "never"),
    ],
)
def test_exception_becomes_an_error_response(
    framework: FrameworkProcess, do: str, status: int, kind: str, part: str
) -> None:
    reply = framework.invoke({"do": do})
    assert reply.status == status
    assert reply.error[0] == kind
    assert part in reply.error[1]
    assert len(reply.body) < 10_000


def test_traceback_is_only_in_the_log(framework: FrameworkProcess) -> None:
    reply = framework.invoke({"do": "fail"}, {"Gpu-Runtime-Invocation-Id": "inv-traced"})
    assert reply.error == ("CustomError", "the sentence")
    log = framework.log.partition("'inv-traced'")[2]
    assert "Traceback (most recent call last)" in log
    assert "in fail" in log
    assert "CustomError: the sentence" in log


def test_sync_handler_that_returns_a_coroutine_fails(framework: FrameworkProcess) -> None:
    assert framework.invoke({"do": "coroutine"}).status == 500


def test_retry_error_sets_retry_after(framework: FrameworkProcess) -> None:
    assert framework.invoke({"do": "retry after"}).headers["Retry-After"] == "2"
    assert "Retry-After" not in framework.invoke({"do": "retry"}).headers


def test_request_context_is_read_from_headers(framework: FrameworkProcess) -> None:
    context = {
        "Gpu-Runtime-Invocation-Id": "inv-1",
        "Gpu-Runtime-Attempt": "3",
        "Gpu-Runtime-Deadline": "2999-01-31T23:59:59.500+01:00",
        "Gpu-Runtime-Attributes": json.dumps({"tenant": "größe", "n": 1}),
        "Gpu-Runtime-Header-Do": "inspect",
        "Gpu-Runtime-Header-X-Trace": "a%20%C3%BC",
    }
    inspected = framework.invoke({"n": 1}, context).json
    assert inspected == {
        "payload": {"n": 1},
        "id": "inv-1",
        "headers": {"do": "inspect", "x-trace": "a ü"},
        "attributes": {"tenant": "größe", "n": 1},
        "attempt": 3,
        "deadline": "2999-01-31T22:59:59.500000+00:00",
        "bounded": True,
        "type": "application/json",
        "any case": "a ü",
    }


DO_INSPECT = {"Gpu-Runtime-Header-Do": "inspect"}


@pytest.mark.parametrize(
    ("content_type", "body", "payload"),
    [
        ("application/json; charset=utf-8", b'{"a": 1}', {"a": 1}),
        ("application/cloudevents+json", b"[]", []),
        ("application/json", b"", None),
        ("text/plain", b"abc", "616263"),
        ("text/plain", b"", ""),
        ("application/octet-stream", b"\0\r\n\xff", "000d0aff"),
    ],
)
def test_json_payload_is_decoded_and_other_payloads_stay_bytes(
    framework: FrameworkProcess, content_type: str, body: bytes, payload: object
) -> None:
    reply = framework.request("POST", "/invoke", body, {**DO_INSPECT, "Content-Type": content_type})
    assert reply.json["payload"] == payload


def test_empty_body_without_content_type_is_none(framework: FrameworkProcess) -> None:
    inspected = framework.request("POST", "/invoke", None, DO_INSPECT).json
    assert (inspected["payload"], inspected["attempt"], inspected["deadline"], inspected["bounded"]) == (
        None,
        1,
        None,
        False,
    )


@pytest.mark.parametrize(
    ("headers", "body", "part"),
    [
        ({}, b"{", "the payload is not JSON"),
        ({}, b"[" * 100_000, "the payload is not JSON"),
        ({}, b"\xff\xfe\xff", "the payload is not JSON"),
        ({"Gpu-Runtime-Attempt": "0"}, b"{}", "Gpu-Runtime-Attempt"),
        ({"Gpu-Runtime-Deadline": "tomorrow"}, b"{}", "Gpu-Runtime-Deadline"),
        ({"Gpu-Runtime-Deadline": "2030-01-31T23:59:59"}, b"{}", "Gpu-Runtime-Deadline"),
        ({"Gpu-Runtime-Deadline": "0001-01-01T00:00:00+23:59"}, b"{}", "Gpu-Runtime-Deadline"),
        ({"Gpu-Runtime-Attributes": "[]"}, b"{}", "Gpu-Runtime-Attributes is not a JSON object"),
    ],
)
def test_invalid_request_is_answered_400(
    framework: FrameworkProcess, headers: dict[str, str], body: bytes, part: str
) -> None:
    reply = framework.request("POST", "/invoke", body, {"Content-Type": "application/json", **DO_INSPECT, **headers})
    assert reply.status == 400
    assert part in reply.error[1]


def test_large_request_and_response_bodies(framework: FrameworkProcess) -> None:
    large = bytes(range(256)) * 40_000
    headers = {"Content-Type": "application/x-blob"}
    assert framework.invoke(large, {**headers, "Gpu-Runtime-Header-Do": "digest"}).body.decode() == (
        hashlib.sha256(large).hexdigest()
    )
    echoed = framework.invoke(large, {**headers, "Gpu-Runtime-Header-Do": "echo"})
    assert echoed.body == large
    assert echoed.headers["Content-Type"] == "application/x-blob"
    assert len(framework.invoke({"do": "zeros"}).body) == 10_000_000


def test_chunked_request_body_is_read(framework: FrameworkProcess) -> None:
    headers = {"Content-Type": "x/y", "Gpu-Runtime-Header-Do": "digest"}
    reply = framework.request("POST", "/invoke", iter([b"ab", b"c" * 300_000, b"d"]), headers)
    assert reply.body.decode() == hashlib.sha256(b"ab" + b"c" * 300_000 + b"d").hexdigest()


def test_health_check_supports_get_and_head(framework: FrameworkProcess) -> None:
    assert framework.request("GET", "/healthz").json == {"status": "ok"}
    head = framework.request("HEAD", "/healthz")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "15")
