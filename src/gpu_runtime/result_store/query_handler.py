"""Answers queries for stored results over NATS. The answer to an invalid query contains an error message."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import Message, MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.result_query import (
    RESULT_COUNT_QUERY,
    RESULT_QUERY,
    RESULTS_QUERY,
    CountResultsRequest,
    CountResultsResponse,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.result_repository.repository import ResultPage, ResultRepository, ResultRow
from gpu_runtime.result_store.metrics import ResultStoreMetrics

MAX_PAGE_BYTES = MAX_PAYLOAD_BYTES
"""Maximum size of the results in one page.

A page contains no bodies. Nevertheless, a page of 500 results with long failure messages would not fit into a message.
"""


@dataclass(frozen=True)
class ResultQueryHandler:
    results: ResultRepository
    metrics: ResultStoreMetrics

    async def find_result(self, query: bytes) -> bytes:
        try:
            request = decode(query, GetResultRequest)
        except MessageDecodeError as error:
            return self._reply(RESULT_QUERY, "invalid", GetResultResponse(error=error.message))
        row = await self.results.get(request.invocation_id)
        if row is None:
            return self._reply(RESULT_QUERY, "not_found", GetResultResponse())
        return self._reply(RESULT_QUERY, "found", GetResultResponse(result=result_from_row(row)))

    async def list_results(self, query: bytes) -> bytes:
        try:
            request = decode(query, ListResultsRequest)
            before = parse_cursor(request.continue_token)
        except MessageDecodeError as error:
            return self._reply(RESULTS_QUERY, "invalid", ListResultsResponse(error=error.message))
        state = request.state.value if request.state else None
        page = await self.results.page(request.serverless_request_id, state, before, request.limit)
        response = list_reply(page)
        return self._reply(RESULTS_QUERY, "found" if response.results else "not_found", response)

    async def count_results(self, query: bytes) -> bytes:
        try:
            request = decode(query, CountResultsRequest)
        except MessageDecodeError as error:
            return self._reply(RESULT_COUNT_QUERY, "invalid", CountResultsResponse(error=error.message))
        count = await self.results.count_since(request.serverless_request_id, request.since)
        response = CountResultsResponse(count=count)
        return self._reply(RESULT_COUNT_QUERY, "found" if count else "not_found", response)

    def _reply(self, query: str, result: str, response: Message) -> bytes:
        self.metrics.queries.labels(query, result).inc()
        return encode(response)


def result_from_row(row: ResultRow) -> Result:
    return msgspec.structs.replace(decode(row.head, Result), body=row.body)


def parse_cursor(continue_token: str) -> int | None:
    """Return the row number before which the page starts, or None for the first page."""
    if not continue_token:
        return None
    if not (continue_token.isascii() and continue_token.isdecimal() and len(continue_token) < 19):
        raise MessageDecodeError(
            f"continueToken: {continue_token!r} is not a token of this server; omit it to start with the newest result"
        )
    return int(continue_token)


def list_reply(page: ResultPage) -> ListResultsResponse:
    """Return the results of the page that fit into one message, and the token of the next page."""
    heads = tuple(_heads_within_limit(page.heads))
    has_more = page.has_more or len(heads) < len(page.heads)
    token = str(heads[-1][0]) if heads and has_more else ""
    return ListResultsResponse(results=tuple(decode(head, Result) for _, head in heads), continue_token=token)


def _heads_within_limit(heads: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield heads with a total size of at most MAX_PAGE_BYTES, but at least one head.

    After an empty page, the client could not continue.
    """
    size = 0
    for number, head in heads:
        size += len(head)
        if size > MAX_PAGE_BYTES and size > len(head):
            return
        yield number, head
