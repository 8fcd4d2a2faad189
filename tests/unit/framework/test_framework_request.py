"""The request that a handler receives. Users can also construct it in their own tests."""

import math
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gpu_runtime.framework import Headers, Request
from gpu_runtime.framework.request import request_of


@pytest.fixture
def other_time_zone() -> Iterator[None]:
    """Run the test in a time zone other than UTC."""
    previous = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if previous is not None:
        os.environ["TZ"] = previous
    time.tzset()


def test_request_can_be_constructed_in_user_tests() -> None:
    request = Request({"n": 1})
    assert (request.payload, request.attempt, request.remaining()) == ({"n": 1}, 1, math.inf)


def test_headers_are_case_insensitive() -> None:
    headers = Headers({"X-Trace": "1"})
    assert (headers["x-TRACE"], "X-trace" in headers, "y" in headers, len(headers)) == ("1", True, False, 1)


@pytest.mark.usefixtures("other_time_zone")
def test_remaining_time_does_not_depend_on_the_time_zone() -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=100)
    request = request_of({"gpu-runtime-deadline": deadline.isoformat()}, b"")
    assert request.deadline == deadline
    assert 40 < request.remaining() <= 100
