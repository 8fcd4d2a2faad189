"""Answers to questions about stored results. A bad question is answered with what is wrong with it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_runtime.contract.messages.limits import BODY_LIMIT
from gpu_runtime.contract.messages.message_codec import Unreadable, decode, encode
from gpu_runtime.contract.messages.result_query import (
    RESULT,
    RESULTS,
    FindResult,
    FoundResult,
    ListedResults,
    ListResults,
)
from gpu_runtime.result_repository.repository import Page, Results
from gpu_runtime.result_store.metrics import StoreMetrics
from gpu_runtime.result_store.result_codec import head_of, result_of

PAGE_BYTES = BODY_LIMIT
"""How much one page may hold: results without bodies are small, but 500 long failures would fit into no message."""


@dataclass(frozen=True)
class LookUps:
    results: Results
    metrics: StoreMetrics

    async def result(self, question: bytes) -> bytes:
        try:
            asked = decode(question, FindResult)
        except Unreadable as bad:
            return self._answered(RESULT, "problem", FoundResult(problem=bad.message))
        row = await self.results.get(asked.invocation_id)
        if row is None:
            return self._answered(RESULT, "none", FoundResult())
        return self._answered(RESULT, "found", FoundResult(result=result_of(row)))

    async def page(self, question: bytes) -> bytes:
        try:
            asked = decode(question, ListResults)
            before = place(asked.after)
        except Unreadable as bad:
            return self._answered(RESULTS, "problem", ListedResults(problem=bad.message))
        state = asked.state.value if asked.state else None
        page = await self.results.page(asked.serverless_request_id, state, before, asked.limit)
        listed = listing(page)
        return self._answered(RESULTS, "found" if listed.results else "none", listed)

    def _answered(self, question: str, answer: str, message: FoundResult | ListedResults) -> bytes:
        self.metrics.look_ups.labels(question, answer).inc()
        return encode(message)


def place(after: str) -> int | None:
    """Where a page ended, as the repository knows it. None: nowhere yet."""
    if not after:
        return None
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise Unreadable(f"after: {after!r} is not where a page ended; leave it out to begin with the newest")
    return int(after)


def listing(page: Page) -> ListedResults:
    """As much of the page as fits into a message, and where the next one begins."""
    shown = tuple(_fitting(page.heads))
    more = page.more or len(shown) < len(page.heads)
    after = str(shown[-1][0]) if shown and more else ""
    return ListedResults(results=tuple(head_of(head) for _, head in shown), after=after)


def _fitting(heads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """At least one: a page that never moves on would be asked for for ever."""
    size = 0
    for number, head in heads:
        size += len(head)
        if size > PAGE_BYTES and size > len(head):
            return
        yield number, head
