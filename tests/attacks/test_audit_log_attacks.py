"""Attacks on the audit log: to fill it, to forge its lines, and to read data without leaving a line."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from gpu_runtime.process import logs
from gpu_runtime.process.shared_settings import LogSettings
from gpu_runtime.runtime_api.dead_letters.routes import DEAD_LETTERS
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope
from gpu_runtime.runtime_api.invocations.routes import INVOCATIONS
from tests.unit.runtime_api.http.http_harness import AppOptions, FixedAuthenticator, make_route, running_app

LONG_PATH = "/items/" + "x" * 8000
GOOD = {"Authorization": "Bearer good"}


@pytest.fixture(params=["json", "text"])
def log_format(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def audit_log(log_format: Literal["json", "text"]) -> Iterator[io.StringIO]:
    """The output of the log, as in a process with this log format."""
    root, stream = logging.getLogger(), io.StringIO()
    handlers, level = root.handlers[:], root.level
    logs.configure_logging(LogSettings(format=log_format), stream)
    yield stream
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def protected_app(*routes: Route) -> Any:
    return running_app(routes, AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME, Scope.OPERATOR)))


async def test_unauthenticated_requests_with_long_paths_do_not_fill_the_audit_log(audit_log: io.StringIO) -> None:
    async with protected_app(make_route("POST", "/items/{name}")) as edge:
        statuses = {(await edge.request("POST", LONG_PATH)).status for _ in range(200)}
    assert statuses <= {401, 429}
    assert len(audit_log.getvalue()) < 100 * 1024


async def test_requests_for_unknown_paths_do_not_fill_the_audit_log(audit_log: io.StringIO) -> None:
    async with protected_app(make_route()) as edge:
        statuses = {(await edge.request("DELETE", f"/nothing/{'x' * 8000}")).status for _ in range(200)}
    assert statuses <= {404, 429}
    assert len(audit_log.getvalue()) < 100 * 1024


async def test_requests_without_the_scope_do_not_fill_the_audit_log(audit_log: io.StringIO) -> None:
    """Every pod of the cluster can get a valid token of a service account that has no scope."""
    options = AppOptions(authenticator=FixedAuthenticator())
    async with running_app([make_route("POST", "/items/{name}")], options) as edge:
        statuses = {(await edge.request("POST", LONG_PATH, headers=GOOD)).status for _ in range(200)}
    assert statuses == {403}
    assert 0 < len(audit_log.getvalue()) < 100 * 1024


async def test_unauthenticated_flood_does_not_hide_the_line_of_an_authenticated_write(audit_log: io.StringIO) -> None:
    async with protected_app(make_route("POST", "/items/{name}")) as edge:
        for _ in range(200):
            await edge.request("POST", "/items/flood")
        await edge.request("POST", "/items/authenticated", headers=GOOD)
        metrics = edge.registry.get_sample_value("gpu_runtime_audit_lines_suppressed_total")
    lines = [line for line in audit_log.getvalue().splitlines() if "gpu_runtime.audit" in line]
    assert [line for line in lines if "/items/authenticated" in line and "token:tester" in line]
    assert len(lines) < 100
    assert metrics
    assert metrics > 100


FORGED_LINE = "2026-11-18T12:00:00.000Z INFO    gpu_runtime.audit: HTTP request completed caller=token:admin status=200"
LINE_BREAKS = {
    "a line feed": "%0A",
    "a carriage return": "%0D",
    "a vertical tab": "%0B",
    "a next line": "%C2%85",
    "a line separator": "%E2%80%A8",
    "a paragraph separator": "%E2%80%A9",
}


@pytest.mark.parametrize("line_break", LINE_BREAKS.values(), ids=LINE_BREAKS)
async def test_line_break_in_a_path_does_not_forge_an_audit_line(audit_log: io.StringIO, line_break: str) -> None:
    path = f"/items/a{line_break}{FORGED_LINE.replace(' ', '%20')}"
    await post(path)
    lines = [line for line in audit_log.getvalue().splitlines() if "HTTP request completed" in line]
    assert len(lines) == 1, lines
    assert not lines[0].startswith(FORGED_LINE[:20])


@pytest.mark.parametrize("log_format", ["text"])
async def test_space_in_a_path_does_not_forge_a_field_of_the_audit_line(audit_log: io.StringIO) -> None:
    await post("/items/a%20caller=token:admin%20status=200")
    [line] = [each for each in audit_log.getvalue().splitlines() if "gpu_runtime.audit" in each]
    assert [each for each in outside_of_quotes(line).split() if each.startswith("caller=")] == ["caller=token:tester"]


def outside_of_quotes(line: str) -> str:
    return "".join(line.replace('\\"', "").split('"')[::2])


@pytest.mark.parametrize("character", ["%1B%5B2J", "%C2%9B2J", "%E2%80%AE", "%7F"])
async def test_control_characters_of_a_path_do_not_reach_the_terminal(audit_log: io.StringIO, character: str) -> None:
    await post(f"/items/a{character}")
    assert "gpu_runtime.audit" in audit_log.getvalue()
    assert not set("\x1b\x9b\u202e\x7f") & set(audit_log.getvalue())


def test_lone_surrogate_in_a_field_does_not_suppress_the_line(
    audit_log: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("gpu_runtime.audit").info("HTTP request completed", extra={"path": "/items/\udcff"})
    assert "Logging error" not in capsys.readouterr().err
    [line] = audit_log.getvalue().splitlines()
    assert r"\udcff" in line


@pytest.mark.parametrize("log_format", ["text"])
def test_line_break_in_an_error_does_not_forge_a_line_below_a_traceback(audit_log: io.StringIO) -> None:
    error = ValueError(f"broken\n{FORGED_LINE}")
    logging.getLogger("gpu_runtime.test").error("failed", exc_info=error, extra={"error": str(error)})
    assert not [line for line in audit_log.getvalue().splitlines() if line == FORGED_LINE]


async def post(path: str) -> None:
    """Send an authenticated request with exactly this path. A client library would change the path."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Length: 0\r\n\r\n"
    async with protected_app(make_route("POST", "/items/{name}")) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(head.encode("utf-8", "surrogateescape"))
        async with asyncio.timeout(60):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()


READS = [
    (route.method, route.path.replace("{invocationID}", "inv-1").replace("{id}", "letter-1"), route)
    for group in (INVOCATIONS, DEAD_LETTERS)
    for route in group.routes
    if route.method == "GET"
]


@pytest.mark.parametrize(("method", "path", "route"), READS, ids=[route.name for _, _, route in READS])
async def test_read_of_a_payload_result_or_dead_letter_leaves_an_audit_line(
    method: str, path: str, route: Route, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(_request: APIRequest[Any, Any]) -> APIResponse:
        return APIResponse(200, "secret-result")

    caplog.set_level(logging.INFO)
    stub = Route(**{**vars(route), "handler": answer, "query": NoQuery})
    async with protected_app(stub) as edge:
        assert (await edge.request(method, path, headers=GOOD)).status == 200
    [line] = [vars(record) for record in caplog.records if record.name == "gpu_runtime.audit"]
    assert (line["caller"], line["route"], line["path"], line["status"]) == ("token:tester", route.name, path, 200)
    assert "secret-result" not in json.dumps({key: str(value) for key, value in line.items()})
