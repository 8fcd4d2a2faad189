"""Answers to questions about stored results. A bad question is answered with what is wrong with it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result_query import (
    RESULT_QUERY,
    RESULTS_QUERY,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.result_repository.repository import ResultPage, ResultRepository
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.result_store.result_codec import result_from_head, result_from_row

MAX_PAGE_BYTES = MAX_PAYLOAD_BYTES
"""How much one page may hold: results without bodies are small, but 500 long failures would fit into no message."""


@dataclass(frozen=True)
class ResultQueryHandler:
    results: ResultRepository
    metrics: ResultStoreMetrics

    async def find_result(self, question: bytes) -> bytes:
        try:
            asked = decode(question, GetResultRequest)
        except MessageDecodeError as bad:
            return self._reply(RESULT_QUERY, "problem", GetResultResponse(error=bad.message))
        row = await self.results.get(asked.invocation_id)
        if row is None:
            return self._reply(RESULT_QUERY, "none", GetResultResponse())
        return self._reply(RESULT_QUERY, "found", GetResultResponse(result=result_from_row(row)))

    async def list_results(self, question: bytes) -> bytes:
        try:
            asked = decode(question, ListResultsRequest)
            before = parse_cursor(asked.continue_token)
        except MessageDecodeError as bad:
            return self._reply(RESULTS_QUERY, "problem", ListResultsResponse(error=bad.message))
        state = asked.state.value if asked.state else None
        page = await self.results.page(asked.serverless_request_id, state, before, asked.limit)
        listed = list_reply(page)
        return self._reply(RESULTS_QUERY, "found" if listed.results else "none", listed)

    def _reply(self, question: str, answer: str, message: GetResultResponse | ListResultsResponse) -> bytes:
        self.metrics.queries.labels(question, answer).inc()
        return encode(message)


def parse_cursor(after: str) -> int | None:
    """Where a page ended, as the repository knows it. None: nowhere yet."""
    if not after:
        return None
    if not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise MessageDecodeError(f"after: {after!r} is not where a page ended; leave it out to begin with the newest")
    return int(after)


def list_reply(page: ResultPage) -> ListResultsResponse:
    """As much of the page as fits into a message, and where the next one begins."""
    shown = tuple(_heads_within_limit(page.heads))
    more = page.has_more or len(shown) < len(page.heads)
    after = str(shown[-1][0]) if shown and more else ""
    return ListResultsResponse(results=tuple(result_from_head(head) for _, head in shown), continue_token=after)


def _heads_within_limit(heads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """At least one: a page that never moves on would be asked for for ever."""
    size = 0
    for number, head in heads:
        size += len(head)
        if size > MAX_PAGE_BYTES and size > len(head):
            return
        yield number, head
