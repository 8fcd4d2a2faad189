"""HTTP client for the framework: invocations and health checks over the unix socket of the user's container.

A connection carries one call at a time. Calls reuse idle connections only if the framework announces, in its response
to the health check, for how long it keeps idle connections open (for example `Keep-Alive: timeout=60`). Reuse halves
the CPU time of a call. Without the announcement, the framework could close a connection while the client sends a call.
The client could not repeat this call, because the framework may already have received it.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from string import ascii_letters, digits
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from gpu_runtime.contract.framework_protocol import (
    ATTEMPT_HEADER,
    ATTRIBUTES_HEADER,
    CALLER_HEADER_PREFIX,
    DEADLINE_HEADER,
    INVOCATION_ID_HEADER,
)
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.timing import WORKER_DEADLINE_GRACE_SECONDS
from gpu_runtime.worker_sidecar.framework_connections import (
    LARGE_RESPONSE_SLOTS,
    FrameworkConnectionPool,
    FrameworkUnreachable,
    ResponseSlot,
)
from gpu_runtime.worker_sidecar.framework_response import (
    FrameworkFailed,
    FrameworkFailureKind,
    FrameworkOutcome,
    HandlerSucceeded,
    IncompleteResponse,
    MalformedResponse,
    ParsedResponse,
    TimedOut,
    is_success,
    outcome_of,
    replace_surrogates,
)

logger = logging.getLogger(__name__)

MIN_KEEP_ALIVE_SECONDS = 15
"""Minimum keep-alive timeout of the framework for which the client reuses connections.

The pool closes idle connections before this timeout.
"""

HEALTH_TIMEOUT_SECONDS = 2.0
INITIAL_HEALTH_BACKOFF_SECONDS, MAX_HEALTH_BACKOFF_SECONDS = 0.02, 1.0
"""Delays between health checks of a framework that is not healthy yet."""

MAX_ERROR_BODY_BYTES = 64 * 1024
"""Maximum number of bytes that the client reads of an error body. The error message is truncated anyway."""

MAX_HEALTH_BODY_BYTES = 8 * 1024
"""Maximum number of bytes of the response to a health check. Such a response needs no slot for large responses."""

HEADER_NAME_CHARACTERS = "!#$&'*+-.^_`|~"
HEADER_VALUE_CHARACTERS = HEADER_NAME_CHARACTERS + ' "(),/:;<=>?@[\\]{}'

KEEP_ALIVE_TIMEOUT_PATTERN = re.compile(r"\btimeout=([0-9]{1,9})\b", re.ASCII)


class FrameworkClient:
    """Calls the framework. Use the client as an async context manager.

    It limits the number of large responses in memory, but not the number of calls.
    """

    def __init__(self, socket: str, invoke_path: str, health_path: str, max_response_bytes: int) -> None:
        self._socket = socket
        self._invoke_head, self._health_head = _request_head("POST", invoke_path), _request_head("GET", health_path)
        self._max_response_bytes = max_response_bytes
        self._connection_pool = FrameworkConnectionPool(socket)
        self._response_slots = asyncio.Semaphore(LARGE_RESPONSE_SLOTS)
        self._keep_alive = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection_pool.close_idle()

    @contextmanager
    def response_slot(self) -> Iterator[ResponseSlot]:
        """Yield a slot for `invoke`. While the block runs, the response may be in memory."""
        slot = ResponseSlot(self._response_slots)
        try:
            yield slot
        finally:
            slot.release()

    async def invoke(self, dispatch: Dispatch, slot: ResponseSlot, attempt: int = 1) -> FrameworkOutcome:
        """Send one attempt of an invocation and return its outcome.

        A failure of the framework is an outcome, not an exception. If the call has not ended
        WORKER_DEADLINE_GRACE_SECONDS after the deadline, the client aborts it.
        """
        remaining = (dispatch.deadline - datetime.now(UTC)).total_seconds()
        if remaining <= 0:
            return TimedOut("the deadline passed before the framework was called")
        try:
            async with asyncio.timeout(remaining + WORKER_DEADLINE_GRACE_SECONDS):
                return await self._call(dispatch, slot, attempt)
        except TimeoutError:
            return TimedOut("the framework did not answer before the deadline")

    async def check_health(self) -> str | None:
        """Return None if the framework can serve invocations. Otherwise return the reason."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                response = await self._request_health()
        except TimeoutError:
            return f"the framework did not answer the health check within {HEALTH_TIMEOUT_SECONDS:g} s"
        except (FrameworkUnreachable, IncompleteResponse, MalformedResponse) as error:
            return _framework_failed(error).reason
        if is_success(response.status):
            return None
        return f"the framework answered the health check with status {response.status}"

    async def _request_health(self) -> ParsedResponse:
        request = self._health_head + b"\r\n"
        with self.response_slot() as slot:
            return await self._connection_pool.round_trip(
                request, slot, lambda _: MAX_HEALTH_BODY_BYTES, self._update_keep_alive
            )

    async def wait_until_healthy(self) -> None:
        """Repeat the health check with backoff until it succeeds. There is no timeout; the caller may set one."""
        delay, logged_problem = INITIAL_HEALTH_BACKOFF_SECONDS, ""
        while problem := await self.check_health():
            if problem != logged_problem:
                logger.info(
                    "framework health check failed; the sidecar will retry",
                    extra={"reason": problem, "socket": self._socket},
                )
            logged_problem = problem
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, MAX_HEALTH_BACKOFF_SECONDS)

    def _update_keep_alive(self, health: ParsedResponse) -> bool:
        """Return whether the framework keeps idle connections long enough, according to its health check response.

        Store the result for later calls. If it is False, close the idle connections.
        """
        announced = KEEP_ALIVE_TIMEOUT_PATTERN.search(health.headers.get("keep-alive", ""))
        self._keep_alive = announced is not None and int(announced[1]) >= MIN_KEEP_ALIVE_SECONDS
        if not self._keep_alive:
            self._connection_pool.close_idle()
        return self._keep_alive

    async def _call(self, dispatch: Dispatch, slot: ResponseSlot, attempt: int) -> FrameworkOutcome:
        headers = "".join(f"{name}: {value}\r\n" for name, value in invocation_headers(dispatch, attempt).items())
        data = b"".join((self._invoke_head, headers.encode("ascii"), b"\r\n", dispatch.invocation.body))
        try:
            response = await self._connection_pool.round_trip(
                data, slot, self._max_body_bytes, lambda _: self._keep_alive
            )
        except (FrameworkUnreachable, IncompleteResponse, MalformedResponse) as error:
            return _framework_failed(error)
        return self._outcome(response)

    def _max_body_bytes(self, status: int) -> int:
        return self._max_response_bytes if is_success(status) else MAX_ERROR_BODY_BYTES

    def _outcome(self, response: ParsedResponse) -> FrameworkOutcome:
        coding = response.headers.get("content-encoding", "identity")
        if coding != "identity":
            reason = (
                f"the response has the content encoding {replace_surrogates(coding[:64])!r}; do not encode responses"
            )
            return FrameworkFailed(FrameworkFailureKind.MALFORMED_RESPONSE, reason)
        outcome = outcome_of(response.status, response.headers, response.body)
        if isinstance(outcome, HandlerSucceeded) and not response.complete:
            return replace(outcome, full_body_bytes=max(response.content_length, len(response.body) + 1))
        return outcome


def _request_head(method: str, path: str) -> bytes:
    """Build the part of the request head that is the same for all requests to a path.

    Percent-encode invalid characters of the path.
    """
    target = quote(path, safe="/?[]@!$&'()*+,;=:%-._~", errors="replace")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: framework\r\nUser-Agent: gpu-runtime-worker-sidecar\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\n"
    ).encode("ascii")


def invocation_headers(dispatch: Dispatch, attempt: int) -> dict[str, str]:
    """Build the HTTP headers of one attempt of an invocation. All names and values are printable ASCII.

    Callers may use any characters in header names and values. Characters that HTTP does not allow are percent-encoded.
    """
    invocation = dispatch.invocation
    headers = {
        INVOCATION_ID_HEADER: _encode_value(invocation.invocation_id),
        ATTEMPT_HEADER: str(attempt),
        "Content-Length": str(len(invocation.body)),
    }
    if invocation.content_type:
        headers["Content-Type"] = quote(
            invocation.content_type.strip(), safe=HEADER_VALUE_CHARACTERS + "%", errors="replace"
        )
    if invocation.attributes:
        headers[ATTRIBUTES_HEADER] = json.dumps(invocation.attributes, separators=(",", ":"))
    deadline = dispatch.deadline.astimezone(UTC).replace(tzinfo=None)
    headers[DEADLINE_HEADER] = f"{deadline.isoformat(timespec='milliseconds')}Z"
    for name, value in invocation.headers.items():
        encoded_name = quote(name, safe=HEADER_NAME_CHARACTERS + ascii_letters + digits, errors="replace")
        headers[CALLER_HEADER_PREFIX + encoded_name] = _encode_value(value)
    return headers


def _encode_value(value: str) -> str:
    """Percent-encode a value. If it begins or ends with a space, encode all spaces, because HTTP parsers strip them."""
    safe = HEADER_VALUE_CHARACTERS if value == value.strip(" ") else HEADER_VALUE_CHARACTERS.replace(" ", "")
    return quote(value, safe=safe, errors="replace")


_FAILURES: Mapping[type[Exception], tuple[FrameworkFailureKind, str]] = MappingProxyType(
    {
        FrameworkUnreachable: (FrameworkFailureKind.UNREACHABLE, "the framework is unreachable"),
        IncompleteResponse: (
            FrameworkFailureKind.CONNECTION_LOST,
            "the connection closed before the end of the response",
        ),
        MalformedResponse: (FrameworkFailureKind.MALFORMED_RESPONSE, "the response of the framework is malformed"),
    }
)


def _framework_failed(error: FrameworkUnreachable | IncompleteResponse | MalformedResponse) -> FrameworkFailed:
    kind, reason = _FAILURES[type(error)]
    details = " ".join(replace_surrogates(str(error)).split())[:256] or type(error).__name__
    return FrameworkFailed(kind, f"{reason}: {details}")
