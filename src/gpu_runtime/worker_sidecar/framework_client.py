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

from gpu_runtime.worker_sidecar.framework_connections import Connections, Unreachable
from gpu_runtime.worker_sidecar.framework_request import Invocation, http_headers
from gpu_runtime.worker_sidecar.framework_response import (
    Answered,
    Break,
    Broken,
    Outcome,
    TimedOut,
    is_result,
    outcome_of,
    sendable,
)
from gpu_runtime.worker_sidecar.http_response_parser import Answer, Garbled, Lost

logger = logging.getLogger(__name__)

DEADLINE_GRACE = 0.5
"""Seconds past the deadline in which the framework may still say itself that it has passed."""

KEPT_AT_LEAST = 15
"""Seconds for which the framework must keep an idle connection. Here one rests for less."""

HEALTH_TIMEOUT = 2.0
FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two looks at a framework that is not healthy yet."""

ERROR_LIMIT = 64 * 1024
"""Of an error's body, more is not read: its message is cut off anyway."""

KEPT = re.compile(r"\btimeout=([0-9]{1,9})\b", re.ASCII)


class FrameworkClient:
    """Used as a context. How many calls there are at a time is the caller's decision."""

    def __init__(self, socket: str, invoke_path: str, health_path: str, response_limit: int) -> None:
        self._socket = socket
        self._invoke, self._health = _beginning("POST", invoke_path), _beginning("GET", health_path)
        self._response_limit = response_limit
        self._connections = Connections(socket)
        self._keeps = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()

    async def invoke(self, invocation: Invocation) -> Outcome:
        """Never raises for what the framework does, and never takes much longer than the deadline."""
        remaining = _remaining(invocation.deadline)
        if remaining is not None and remaining <= 0:
            return TimedOut("the deadline passed before the framework was called")
        try:
            async with asyncio.timeout(None if remaining is None else remaining + DEADLINE_GRACE):
                return await self._called(invocation)
        except TimeoutError:
            return TimedOut("the framework did not answer before the deadline")

    async def health(self) -> str | None:
        """Nothing where the framework can take invocations, else the sentence that says why not."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT):
                answer = await self._connections.ask(self._health + b"\r\n", lambda _: ERROR_LIMIT, self._is_kept)
        except TimeoutError:
            return f"its health check does not answer within {HEALTH_TIMEOUT:g} s"
        except (Unreachable, Lost, Garbled) as error:
            return _broken(error).reason
        return None if is_result(answer.status) else f"its health check answers with status {answer.status}"

    async def wait_until_healthy(self) -> None:
        """Look again and again, less and less often. Whoever waits decides for how long."""
        wait, said = FIRST_WAIT, ""
        while problem := await self.health():
            if problem != said:
                logger.info("waiting for the framework: %s", problem, extra={"socket": self._socket})
            said = problem
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, LONGEST_WAIT)

    def _is_kept(self, health: Answer) -> bool:
        """Whether the framework keeps idle connections, as its answer to the health check says."""
        self._keeps = _kept_seconds(health.headers.get("keep-alive", "")) >= KEPT_AT_LEAST
        if not self._keeps:
            self._connections.close()
        return self._keeps

    async def _called(self, invocation: Invocation) -> Outcome:
        fields = "".join(f"{name}: {value}\r\n" for name, value in http_headers(invocation).items())
        request = b"".join((self._invoke, fields.encode("ascii"), b"\r\n", invocation.body))
        try:
            answer = await self._connections.ask(request, self._limit, lambda _: self._keeps)
        except (Unreachable, Lost, Garbled) as error:
            return _broken(error)
        return self._outcome(answer)

    def _limit(self, status: int) -> int:
        return self._response_limit if is_result(status) else ERROR_LIMIT

    def _outcome(self, answer: Answer) -> Outcome:
        coding = answer.headers.get("content-encoding", "identity")
        if coding != "identity":
            reason = f"the answer is encoded with {sendable(coding[:64])!r}, which was not asked for"
            return Broken(Break.GARBLED, reason)
        outcome = outcome_of(answer.status, answer.headers, answer.body)
        if isinstance(outcome, Answered) and not answer.whole:
            return replace(outcome, size=max(answer.announced, len(answer.body) + 1))
        return outcome


def _beginning(method: str, path: str) -> bytes:
    """Of every request to that path. What HTTP cannot carry in it is percent-encoded."""
    target = quote(path, safe="/?[]@!$&'()*+,;=:%-._~", errors="replace")
    return (
        f"{method} {target} HTTP/1.1\r\nHost: framework\r\nUser-Agent: gpu-runtime-worker-sidecar\r\n"
        "Accept: */*\r\nAccept-Encoding: identity\r\n"
    ).encode("ascii")


def _kept_seconds(said: str) -> int:
    match = KEPT.search(said)
    return int(match[1]) if match else 0


def _remaining(deadline: datetime | None) -> float | None:
    return None if deadline is None else (deadline - datetime.now(UTC)).total_seconds()


def _broken(error: Unreachable | Lost | Garbled) -> Broken:
    match error:
        case Unreachable():
            return Broken(Break.UNREACHABLE, f"the framework cannot be reached: {_line(error)}")
        case Lost():
            return Broken(Break.LOST, f"the connection ended before the answer did: {_line(error)}")
        case Garbled():
            return Broken(Break.GARBLED, f"the framework's answer is not HTTP: {_line(error)}")


def _line(error: object) -> str:
    return " ".join(sendable(str(error)).split())[:256] or type(error).__name__
