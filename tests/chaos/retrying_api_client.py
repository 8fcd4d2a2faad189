"""Somebody who asks the API, as often as it takes: what nobody answered is sent again, to whichever replica."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import aiohttp

from tests.chaos.request_history import Operation, RecordedResponse, RequestHistory
from tests.integration.runtime_api.live_platform import ApiResponse, send_request

RETRIED_STATUSES = (0, 429, 500, 503)
"""After these the same request is sent again."""
REQUEST_TIMEOUT_SECONDS = 8.0
"""Seconds for an answer. Shorter than some faults last, and than a replica takes: others are asked meanwhile."""


@dataclass
class RetryingApiClient:
    http: aiohttp.ClientSession
    replicas: Sequence[str]
    """Their URLs."""
    history: RequestHistory
    name: str
    """What its chance comes from: the seed, the round, and who it is."""

    @cached_property
    def rng(self) -> random.Random:
        return random.Random(self.name)  # noqa: S311 - it is to be the same every time

    def derive(self, name: object) -> "RetryingApiClient":
        return replace(self, name=f"{self.name}/{name}")

    async def request_once(self, method: str, path: str, body: Any = None) -> ApiResponse:
        url = self.rng.choice(self.replicas) + path
        answer = await send_request(self.http, method, url, body)
        self.history.requests += 1
        self.history.status_counts[answer.status] += 1
        if answer.status >= 500 and answer.status not in (503, 504):
            self.history.violations.append(f"{method} {path} was answered {answer}")
        return answer

    async def request(self, method: str, path: str, body: Any, expected: Sequence[int]) -> tuple[ApiResponse, bool]:
        """The answer, and whether there were none before: then what was asked may be carried out later as well."""
        doubtful = False
        with self._track_pending(f"{method} {path} {body}"):
            while (answer := await self.request_once(method, path, body)).status in RETRIED_STATUSES:
                doubtful = True
                await self._wait_before_retry()
        if answer.status not in expected:
            self.history.violations.append(f"{method} {path} {body} was answered {answer}")
        return answer, doubtful

    async def run_operation(self, operation: Operation, expected: Sequence[int]) -> ApiResponse:
        """Ask for it until there is an answer, sometimes two replicas at once."""
        self.history.operations[operation.id] = operation
        with self._track_pending(f"POST {operation.path} {operation.request}"):
            while not (known := await self._try_operation(operation)):
                await self._wait_before_retry()
        best = min(known, key=lambda each: each.status)
        if best.status not in expected:
            self.history.violations.append(f"{operation.request} was answered {best}")
        return best

    async def _try_operation(self, operation: Operation) -> list[ApiResponse]:
        copies = 2 if self.rng.random() < 0.15 else 1
        answers = await asyncio.gather(*(self.send_operation(operation) for _ in range(copies)))
        return [each for each in answers if each.status not in RETRIED_STATUSES]

    @contextmanager
    def _track_pending(self, what: str) -> Iterator[None]:
        self.history.pending_requests[what] += 1
        try:
            yield
        finally:
            self.history.pending_requests -= Counter([what])

    async def _wait_before_retry(self) -> None:
        self.history.retries += 1
        await asyncio.sleep(self.rng.uniform(0.1, 0.6))

    async def send_operation(self, operation: Operation, **changes: Any) -> ApiResponse:
        """One request under its ID, maybe with another body."""
        sent = time.monotonic()
        answer = await self.request_once("POST", operation.path, operation.request | changes)
        if answer.status not in RETRIED_STATUSES:
            identity = _object_identity(answer.body["data"]) if answer.status < 300 else ""
            said = RecordedResponse(sent, time.monotonic(), answer.status, answer.code, identity, bool(changes))
            operation.responses.append(said)
        return answer


def _object_identity(made: Any) -> str:
    stock = made.get("sourceStock") or {}
    parts = (made.get("name") or made.get("operationID"), made.get("createdAt"), stock.get("uid"))
    return " ".join(filter(None, parts))
