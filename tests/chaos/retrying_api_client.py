"""An API client that sends a request to random replicas until it gets a final response, and records all responses."""

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

from tests.chaos.request_history import NamedSource, Operation, RecordedResponse, RequestHistory
from tests.integration.runtime_api.live_platform import ApiResponse, send_request

RETRIED_STATUSES = (0, 429, 500, 503)
"""The client sends the same request again after one of these statuses. Zero means that there was no response."""
REQUEST_TIMEOUT_SECONDS = 8.0
"""The timeout of one attempt. It is shorter than some faults and than the request timeout of a replica, so that the
client asks other replicas in the meantime."""


@dataclass
class RetryingApiClient:
    http: aiohttp.ClientSession
    replicas: Sequence[str]
    """The URLs of the API replicas."""
    history: RequestHistory
    name: str
    """The seed of the random generator: the seed of the run, the round, and the path of derived names."""

    @cached_property
    def rng(self) -> random.Random:
        return random.Random(self.name)  # noqa: S311 - the requests must be reproducible

    def derive(self, name: object) -> "RetryingApiClient":
        return replace(self, name=f"{self.name}/{name}")

    async def request_once(self, method: str, path: str, body: Any = None) -> ApiResponse:
        url = self.rng.choice(self.replicas) + path
        response = await send_request(self.http, method, url, body)
        self.history.requests += 1
        self.history.status_counts[response.status] += 1
        if response.status >= 500 and response.status not in (503, 504):
            self.history.violations.append(f"{method} {path} had the response {response}")
        return response

    async def request(self, method: str, path: str, body: Any, expected: Sequence[int]) -> tuple[ApiResponse, bool]:
        """Return the final response, and whether earlier attempts failed.

        A failed attempt is uncertain: the API may still apply it later.
        """
        uncertain = False
        with self._track_pending(f"{method} {path} {body}"):
            while (response := await self.request_once(method, path, body)).status in RETRIED_STATUSES:
                uncertain = True
                await self._wait_before_retry()
        if response.status not in expected:
            self.history.violations.append(f"{method} {path} {body} had the response {response}")
        return response, uncertain

    async def run_operation(self, operation: Operation, expected: Sequence[int]) -> ApiResponse:
        """Send the operation until there is a final response. Some attempts send two concurrent requests."""
        self.history.operations[operation.id] = operation
        with self._track_pending(f"POST {operation.path} {operation.request}"):
            while not (final := await self._try_operation(operation)):
                await self._wait_before_retry()
        best = min(final, key=lambda each: each.status)
        if best.status not in expected:
            self.history.violations.append(f"{operation.request} had the response {best}")
        return best

    async def _try_operation(self, operation: Operation) -> list[ApiResponse]:
        copies = 2 if self.rng.random() < 0.15 else 1
        responses = await asyncio.gather(*(self.send_operation(operation) for _ in range(copies)))
        return [each for each in responses if each.status not in RETRIED_STATUSES]

    @contextmanager
    def _track_pending(self, request: str) -> Iterator[None]:
        self.history.pending_requests[request] += 1
        try:
            yield
        finally:
            self.history.pending_requests -= Counter([request])

    async def _wait_before_retry(self) -> None:
        self.history.retries += 1
        await asyncio.sleep(self.rng.uniform(0.1, 0.6))

    async def send_operation(self, operation: Operation, **changes: Any) -> ApiResponse:
        """Send one request with the operationID, with an optionally changed body."""
        sent_at = time.monotonic()
        response = await self.request_once("POST", operation.path, operation.request | changes)
        if response.status not in RETRIED_STATUSES:
            created = response.body["data"] if response.status < 300 else {}
            identity, source = _object_identity(created) if created else "", _named_source(created)
            recorded = RecordedResponse(
                sent_at, time.monotonic(), response.status, response.code, identity, bool(changes), source
            )
            operation.responses.append(recorded)
        return response


def _object_identity(created: Any) -> str:
    stock = created.get("sourceStock") or {}
    parts = (created.get("name") or created.get("operationID"), created.get("createdAt"), stock.get("uid"))
    return " ".join(filter(None, parts))


def _named_source(created: Any) -> NamedSource | None:
    stock = created.get("sourceStock")
    return NamedSource(stock["grade"], stock["uid"], stock.get("missed") or "") if stock else None
