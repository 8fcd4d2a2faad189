"""The HTTP headers of a framework request: no value can inject another header."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.limits import metadata_errors
from gpu_runtime.framework.settings import FrameworkServerLimits
from gpu_runtime.worker_sidecar.framework_client import invocation_headers

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def headers_of(deadline: datetime = NOW, attempt: int = 1, **fields: Any) -> dict[str, str]:
    invocation = Invocation(serverless_request_id="f", function_id="f", timeout_seconds=60, **fields)
    return invocation_headers(Dispatch(invocation=invocation, deadline=deadline, dispatched_at=NOW), attempt)


def test_headers_of_a_plain_invocation() -> None:
    headers = headers_of(
        invocation_id="inv-1",
        body=b"{}",
        content_type="application/json; charset=utf-8",
        headers={"X-Trace": "a b, c=1"},
        attributes={"tenant": "ü"},
        deadline=datetime(2030, 1, 31, 23, 59, 59, 250999, timezone(timedelta(hours=1))),
        attempt=2,
    )
    assert headers == {
        "Content-Length": "2",
        "Content-Type": "application/json; charset=utf-8",
        "Gpu-Runtime-Invocation-Id": "inv-1",
        "Gpu-Runtime-Attempt": "2",
        "Gpu-Runtime-Deadline": "2030-01-31T22:59:59.250Z",
        "Gpu-Runtime-Attributes": '{"tenant":"\\u00fc"}',
        "Gpu-Runtime-Header-X-Trace": "a b, c=1",
    }


def test_absent_fields_produce_no_header() -> None:
    assert set(headers_of(invocation_id="a", content_type="")) == {
        "Content-Length",
        "Gpu-Runtime-Invocation-Id",
        "Gpu-Runtime-Attempt",
        "Gpu-Runtime-Deadline",
    }


@pytest.mark.parametrize("text", ["a\r\nb: c", "\0", "\x7f", " a ", "ü", "100%", "\ud800", "\t"])
def test_header_values_are_escaped(text: str) -> None:
    headers = headers_of(invocation_id=text, content_type=text, headers={text: text}, attributes={text: text})
    for name, value in headers.items():
        assert name.isascii()
        assert name.isprintable()
        assert not set(name) & set(" :")
        assert value.isascii()
        assert value.isprintable()
        assert value == value.strip()


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "é" * 8180},
        {"é" * 8180: ""},
        {f"{number:02x}é": "" for number in range(1500)},
    ],
    ids=["a long value", "a long name", "many short names"],
)
def test_largest_headers_fit_the_framework_head_limit(headers: dict[str, str]) -> None:
    attributes = {"a": "é" * 8180}
    assert not [*metadata_errors(headers, "headers"), *metadata_errors(attributes, "attributes")]
    largest = headers_of(invocation_id="i" * 256, content_type="", headers=headers, attributes=attributes)
    head = "".join(f"{name}: {value}\r\n" for name, value in largest.items())
    assert 64 * 1024 < len(head) < FrameworkServerLimits().max_head_bytes - 1024
