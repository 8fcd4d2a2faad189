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

from tests.chaos.history import History, Operation, Said
from tests.integration.runtime_api.live import Answer, ask

UNANSWERED = (0, 429, 500, 503)
"""After these the same request is sent again."""
PATIENCE = 8.0
"""Seconds for an answer. Shorter than some faults last, and than a replica takes: others are asked meanwhile."""


@dataclass
class Caller:
    http: aiohttp.ClientSession
    replicas: Sequence[str]
    """Their URLs."""
    history: History
    name: str
    """What its chance comes from: the seed, the round, and who it is."""

    @cached_property
    def chance(self) -> random.Random:
        return random.Random(self.name)  # noqa: S311 - it is to be the same every time

    def other(self, name: object) -> "Caller":
        return replace(self, name=f"{self.name}/{name}")

    async def once(self, method: str, path: str, body: Any = None) -> Answer:
        url = self.chance.choice(self.replicas) + path
        answer = await ask(self.http, method, url, body)
        self.history.requests += 1
        self.history.answers[answer.status] += 1
        if answer.status >= 500 and answer.status not in (503, 504):
            self.history.complaints.append(f"{method} {path} was answered {answer}")
        return answer

    async def answered(self, method: str, path: str, body: Any, expected: Sequence[int]) -> tuple[Answer, bool]:
        """The answer, and whether there were none before: then what was asked may be carried out later as well."""
        doubtful = False
        with self._waiting(f"{method} {path} {body}"):
            while (answer := await self.once(method, path, body)).status in UNANSWERED:
                doubtful = True
                await self._pause()
        if answer.status not in expected:
            self.history.complaints.append(f"{method} {path} {body} was answered {answer}")
        return answer, doubtful

    async def operate(self, operation: Operation, expected: Sequence[int]) -> Answer:
        """Ask for it until there is an answer, sometimes two replicas at once."""
        self.history.operations[operation.id] = operation
        with self._waiting(f"POST {operation.path} {operation.request}"):
            while not (known := await self._try(operation)):
                await self._pause()
        best = min(known, key=lambda each: each.status)
        if best.status not in expected:
            self.history.complaints.append(f"{operation.request} was answered {best}")
        return best

    async def _try(self, operation: Operation) -> list[Answer]:
        copies = 2 if self.chance.random() < 0.15 else 1
        answers = await asyncio.gather(*(self.try_once(operation) for _ in range(copies)))
        return [each for each in answers if each.status not in UNANSWERED]

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        self.history.waiting[what] += 1
        try:
            yield
        finally:
            self.history.waiting -= Counter([what])

    async def _pause(self) -> None:
        self.history.again += 1
        await asyncio.sleep(self.chance.uniform(0.1, 0.6))

    async def try_once(self, operation: Operation, **changes: Any) -> Answer:
        """One request under its ID, maybe with another body."""
        sent = time.monotonic()
        answer = await self.once("POST", operation.path, operation.request | changes)
        if answer.status not in UNANSWERED:
            identity = _identity(answer.body["data"]) if answer.status < 300 else ""
            said = Said(sent, time.monotonic(), answer.status, answer.code, identity, bool(changes))
            operation.said.append(said)
        return answer


def _identity(made: Any) -> str:
    stock = made.get("sourceStock") or {}
    parts = (made.get("name") or made.get("operationID"), made.get("createdAt"), stock.get("uid"))
    return " ".join(filter(None, parts))
