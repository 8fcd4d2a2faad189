"""The sidecar's side of the framework contract: HTTP over the unix socket of the user's container.

No two calls share a connection at a time. One after another they do, which halves a call's CPU time, but only where
the framework's health check says how long it keeps idle connections (`Keep-Alive: timeout=60`): elsewhere a call could
meet the moment at which it closes them, and an invocation must not be sent twice to find out.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from gpu_runtime.worker_sidecar.invocation import Invocation, http_headers
from gpu_runtime.worker_sidecar.outcomes import (
    Answered,
    Break,
    Broken,
    Outcome,
    TimedOut,
    is_result,
    outcome_of,
    sendable,
)

logger = logging.getLogger(__name__)

DEADLINE_GRACE = 0.5
"""Seconds past the deadline in which the framework may still say itself that it has passed."""

IDLE_SECONDS, KEPT_AT_LEAST = 5.0, 15
"""How long a connection is kept here, and how long the framework must keep it for that."""

HEALTH_TIMEOUT = 2.0
FIRST_WAIT, LONGEST_WAIT = 0.02, 1.0
"""Seconds between two looks at a framework that is not healthy yet."""

ERROR_LIMIT = 64 * 1024
"""Of an error's body, more is not read: its message is cut off anyway."""

SLICE = 256 * 1024

KEPT = re.compile(r"\btimeout=([0-9]{1,9})\b", re.ASCII)


class FrameworkClient:
    """Used as a context. How many calls there are at a time is the caller's decision."""

    def __init__(self, socket: str, invoke_path: str, health_path: str, response_limit: int) -> None:
        self._socket = socket
        self._invoke = URL(f"http://framework{invoke_path}")
        self._health = URL(f"http://framework{health_path}")
        self._response_limit = response_limit
        self._fresh: aiohttp.ClientSession
        self._kept: aiohttp.ClientSession
        self._keeps = False

    async def __aenter__(self) -> Self:
        self._fresh = _session(aiohttp.UnixConnector(self._socket, limit=0, force_close=True))
        self._kept = _session(aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=IDLE_SECONDS))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fresh.close()
        await self._kept.close()

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
            async with (
                asyncio.timeout(HEALTH_TIMEOUT),
                self._kept.get(self._health, allow_redirects=False) as answer,
            ):
                self._keeps = _kept_seconds(answer.headers.get("Keep-Alive", "")) >= KEPT_AT_LEAST
                return None if is_result(answer.status) else f"its health check answers with status {answer.status}"
        except TimeoutError:
            return f"its health check does not answer within {HEALTH_TIMEOUT:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _broken(error).reason

    async def wait_until_healthy(self) -> None:
        """Look again and again, less and less often. Whoever waits decides for how long."""
        wait, said = FIRST_WAIT, ""
        while problem := await self.health():
            if problem != said:
                logger.info("waiting for the framework: %s", problem, extra={"socket": self._socket})
            said = problem
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, LONGEST_WAIT)

    async def _called(self, invocation: Invocation) -> Outcome:
        data = invocation.body if len(invocation.body) <= SLICE else Slices(invocation.body)
        session = self._kept if self._keeps else self._fresh
        try:
            async with session.post(
                self._invoke, data=data, headers=http_headers(invocation), allow_redirects=False
            ) as answer:
                return await self._outcome(answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            return _broken(error)

    async def _outcome(self, answer: aiohttp.ClientResponse) -> Outcome:
        coding = answer.headers.get("Content-Encoding", "identity")
        if coding != "identity":
            return Broken(Break.GARBLED, f"the answer is encoded with {coding[:64]!r}, which was not asked for")
        limit = self._response_limit if is_result(answer.status) else ERROR_LIMIT
        body, whole = await _up_to(answer, limit)
        outcome = outcome_of(answer.status, answer.headers, body)
        if isinstance(outcome, Answered) and not whole:
            return replace(outcome, size=max(answer.content_length or 0, limit + 1))
        return outcome


def _session(connector: aiohttp.UnixConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        auto_decompress=False,
        headers={"Accept-Encoding": "identity", "User-Agent": "gpu-runtime-worker-sidecar"},
        skip_auto_headers=("Content-Type",),
    )


def _kept_seconds(said: str) -> int:
    match = KEPT.search(said)
    return int(match[1]) if match else 0


class Slices:
    """A large body, handed over piece by piece as the framework takes it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        view = memoryview(self._body)
        for start in range(0, len(view), SLICE):
            yield bytes(view[start : start + SLICE])


async def _up_to(answer: aiohttp.ClientResponse, limit: int) -> tuple[bytes, bool]:
    """So many bytes of the body, and whether they are all of it."""
    body = bytearray()
    async for part in answer.content.iter_any():
        body += part
        if len(body) > limit:
            return bytes(body[:limit]), False
    return bytes(body), True


def _remaining(deadline: datetime | None) -> float | None:
    return None if deadline is None else (deadline - datetime.now(UTC)).total_seconds()


def _broken(error: Exception) -> Broken:
    match error:
        case aiohttp.ClientConnectorError() | FileNotFoundError() | ConnectionRefusedError() | PermissionError():
            return Broken(Break.UNREACHABLE, f"the framework cannot be reached: {error.strerror or error}")
        case aiohttp.ClientResponseError():
            return Broken(Break.GARBLED, f"the framework's answer is not HTTP: {_line(error.message)}")
        case aiohttp.ClientPayloadError() | aiohttp.ClientOSError() | aiohttp.ServerConnectionError() | OSError():
            return Broken(Break.LOST, f"the connection ended before the answer did: {_line(error)}")
        case _:
            return Broken(Break.GARBLED, f"the framework's answer cannot be read: {_line(error)}")


def _line(error: object) -> str:
    return " ".join(sendable(str(error)).split())[:256] or type(error).__name__
