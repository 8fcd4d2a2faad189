"""The sidecar's side of the framework contract: HTTP over the unix socket of the user's container.

No two calls share a connection at a time. One after another they do, which halves a call's CPU time, but only where
the framework's health check says how long it keeps idle connections (`Keep-Alive: timeout=60`): elsewhere a call could
meet the moment at which it closes them, and an invocation must not be sent twice to find out.
"""

import asyncio
import logging
import re
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self
from urllib.parse import quote

from gpu_runtime.worker_sidecar.framework_connections import FrameworkConnectionPool, FrameworkUnreachable
from gpu_runtime.worker_sidecar.framework_request import FrameworkRequest, http_headers
from gpu_runtime.worker_sidecar.framework_response import (
    FrameworkFailed,
    FrameworkFailureKind,
    FrameworkOutcome,
    HandlerSucceeded,
    TimedOut,
    is_success,
    outcome_of,
    replace_surrogates,
)
from gpu_runtime.worker_sidecar.http_response_parser import IncompleteResponse, MalformedResponse, ParsedResponse

logger = logging.getLogger(__name__)

DEADLINE_GRACE_SECONDS = 0.5
"""Seconds past the deadline in which the framework may still say itself that it has passed."""

MIN_KEEP_ALIVE_SECONDS = 15
"""Seconds for which the framework must keep an idle connection. Here one rests for less."""

HEALTH_TIMEOUT_SECONDS = 2.0
INITIAL_HEALTH_BACKOFF_SECONDS, MAX_HEALTH_BACKOFF_SECONDS = 0.02, 1.0
"""Seconds between two looks at a framework that is not healthy yet."""

MAX_ERROR_BODY_BYTES = 64 * 1024
"""Of an error's body, more is not read: its message is cut off anyway."""

KEEP_ALIVE_TIMEOUT_PATTERN = re.compile(r"\btimeout=([0-9]{1,9})\b", re.ASCII)


class FrameworkClient:
    """Used as a context. How many calls there are at a time is the caller's decision."""

    def __init__(self, socket: str, invoke_path: str, health_path: str, response_limit: int) -> None:
        self._socket = socket
        self._invoke_head, self._health_head = _request_head("POST", invoke_path), _request_head("GET", health_path)
        self._max_response_bytes = response_limit
        self._connection_pool = FrameworkConnectionPool(socket)
        self._keep_alive = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection_pool.close_idle()

    async def invoke(self, invocation: FrameworkRequest) -> FrameworkOutcome:
        """Never raises for what the framework does, and never takes much longer than the deadline."""
        remaining = _remaining_seconds(invocation.deadline)
        if remaining is not None and remaining <= 0:
            return TimedOut("the deadline passed before the framework was called")
        try:
            async with asyncio.timeout(None if remaining is None else remaining + DEADLINE_GRACE_SECONDS):
                return await self._call(invocation)
        except TimeoutError:
            return TimedOut("the framework did not answer before the deadline")

    async def check_health(self) -> str | None:
        """Nothing where the framework can take invocations, else the sentence that says why not."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                answer = await self._connection_pool.round_trip(
                    self._health_head + b"\r\n", lambda _: MAX_ERROR_BODY_BYTES, self._update_keep_alive
                )
        except TimeoutError:
            return f"its health check does not answer within {HEALTH_TIMEOUT_SECONDS:g} s"
        except (FrameworkUnreachable, IncompleteResponse, MalformedResponse) as error:
            return _framework_failed(error).reason
        return None if is_success(answer.status) else f"its health check answers with status {answer.status}"

    async def wait_until_healthy(self) -> None:
        """Look again and again, less and less often. Whoever waits decides for how long."""
        wait, said = INITIAL_HEALTH_BACKOFF_SECONDS, ""
        while problem := await self.check_health():
            if problem != said:
                logger.info("waiting for the framework: %s", problem, extra={"socket": self._socket})
            said = problem
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, MAX_HEALTH_BACKOFF_SECONDS)

    def _update_keep_alive(self, health: ParsedResponse) -> bool:
        """Whether the framework keeps idle connections, as its answer to the health check says."""
        self._keep_alive = _keep_alive_seconds(health.headers.get("keep-alive", "")) >= MIN_KEEP_ALIVE_SECONDS
        if not self._keep_alive:
            self._connection_pool.close_idle()
        return self._keep_alive

    async def _call(self, invocation: FrameworkRequest) -> FrameworkOutcome:
        fields = "".join(f"{name}: {value}\r\n" for name, value in http_headers(invocation).items())
        request = b"".join((self._invoke_head, fields.encode("ascii"), b"\r\n", invocation.body))
        try:
            answer = await self._connection_pool.round_trip(request, self._max_body_bytes, lambda _: self._keep_alive)
        except (FrameworkUnreachable, IncompleteResponse, MalformedResponse) as error:
            return _framework_failed(error)
        return self._outcome(answer)

    def _max_body_bytes(self, status: int) -> int:
        return self._max_response_bytes if is_success(status) else MAX_ERROR_BODY_BYTES

    def _outcome(self, answer: ParsedResponse) -> FrameworkOutcome:
        coding = answer.headers.get("content-encoding", "identity")
        if coding != "identity":
            reason = f"the answer is encoded with {replace_surrogates(coding[:64])!r}, which was not asked for"
            return FrameworkFailed(FrameworkFailureKind.MALFORMED_RESPONSE, reason)
        outcome = outcome_of(answer.status, answer.headers, answer.body)
        if isinstance(outcome, HandlerSucceeded) and not answer.complete:
            return replace(outcome, full_body_bytes=max(answer.content_length, len(answer.body) + 1))
        return outcome


def _request_head(method: str, path: str) -> bytes:
    """Of every request to that path. What HTTP cannot carry in it is percent-encoded."""
    target = quote(path, safe="/?[]@!$&'()*+,;=:%-._~", errors="replace")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: framework\r\nUser-Agent: gpu-runtime-worker-sidecar\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\n"
    ).encode("ascii")


def _keep_alive_seconds(said: str) -> int:
    match = KEEP_ALIVE_TIMEOUT_PATTERN.search(said)
    return int(match[1]) if match else 0


def _remaining_seconds(deadline: datetime | None) -> float | None:
    return None if deadline is None else (deadline - datetime.now(UTC)).total_seconds()


def _framework_failed(error: FrameworkUnreachable | IncompleteResponse | MalformedResponse) -> FrameworkFailed:
    match error:
        case FrameworkUnreachable():
            return FrameworkFailed(
                FrameworkFailureKind.UNREACHABLE, f"the framework cannot be reached: {_one_line(error)}"
            )
        case IncompleteResponse():
            return FrameworkFailed(
                FrameworkFailureKind.CONNECTION_LOST, f"the connection ended before the answer did: {_one_line(error)}"
            )
        case MalformedResponse():
            return FrameworkFailed(
                FrameworkFailureKind.MALFORMED_RESPONSE, f"the framework's answer is not HTTP: {_one_line(error)}"
            )


def _one_line(error: object) -> str:
    return " ".join(replace_surrogates(str(error)).split())[:256] or type(error).__name__
