"""Queries are answered from the database, invalid queries with an error, and every page fits into a message."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.limits import MAX_REASON_LENGTH
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.result_query import (
    MAX_PAGE_SIZE,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.result_repository.sqlite_repository import SQLiteResultRepository, open_repository
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.result_store.query_handler import ResultQueryHandler
from gpu_runtime.result_store.result_consumer import row_from_result

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
async def results(tmp_path: Path) -> AsyncIterator[SQLiteResultRepository]:
    async with open_repository(tmp_path / "results.db") as repository:
        yield repository


@pytest.fixture
def query_handler(results: SQLiteResultRepository) -> ResultQueryHandler:
    return ResultQueryHandler(results, ResultStoreMetrics())


def result(number: int, message: str = "") -> Result:
    failure = Failure(failure_class=FailureClass.FUNCTION_ERROR, message=message)
    return Result(
        invocation_id=f"inv-{number}",
        serverless_request_id="thumbs",
        function_id="thumbs",
        state=ResultState.FAILED if message else ResultState.SUCCEEDED,
        failure=failure if message else None,
        timings=Timings(finished_at=NOW),
    )


async def get_result(handler: ResultQueryHandler, invocation_id: str) -> GetResultResponse:
    return decode(await handler.find_result(encode(GetResultRequest(invocation_id=invocation_id))), GetResultResponse)


async def list_results(handler: ResultQueryHandler, **fields: object) -> ListResultsResponse:
    request = ListResultsRequest(serverless_request_id="thumbs", **fields)  # type: ignore[arg-type]
    return decode(await handler.list_results(encode(request)), ListResultsResponse)


async def test_find_returns_a_stored_result_with_its_body(
    results: SQLiteResultRepository, query_handler: ResultQueryHandler
) -> None:
    stored = with_body(result(1), "image/png", b"\x89PNG")
    await results.insert([row_from_result(stored, NOW)], NOW)
    assert await get_result(query_handler, "inv-1") == GetResultResponse(result=stored)
    assert await get_result(query_handler, "inv-2") == GetResultResponse()


async def test_pages_have_no_bodies_and_continue(
    results: SQLiteResultRepository, query_handler: ResultQueryHandler
) -> None:
    stored = [with_body(result(number), "text/plain", b"hello") for number in range(5)]
    await results.insert([row_from_result(each, NOW) for each in stored], NOW)
    first = await list_results(query_handler, limit=3)
    assert [each.invocation_id for each in first.results] == ["inv-4", "inv-3", "inv-2"]
    assert {(each.body, each.body_bytes) for each in first.results} == {(b"", 5)}
    last = await list_results(query_handler, limit=3, continue_token=first.continue_token)
    assert [each.invocation_id for each in last.results] == ["inv-1", "inv-0"]
    assert last.continue_token == ""


async def test_page_is_shortened_to_the_message_limit_without_gaps(
    results: SQLiteResultRepository, query_handler: ResultQueryHandler
) -> None:
    await results.insert(
        [row_from_result(result(number, "\u00e4" * MAX_REASON_LENGTH), NOW) for number in range(400)], NOW
    )
    seen: list[str] = []
    token = ""
    while True:
        request = ListResultsRequest(serverless_request_id="thumbs", limit=MAX_PAGE_SIZE, continue_token=token)
        response = await query_handler.list_results(encode(request))
        assert len(response) < 1024 * 1024
        page = decode(response, ListResultsResponse)
        seen += [each.invocation_id for each in page.results]
        if not (token := page.continue_token):
            break
    assert seen == [f"inv-{number}" for number in reversed(range(400))]


async def test_list_filters_by_state(results: SQLiteResultRepository, query_handler: ResultQueryHandler) -> None:
    await results.insert(
        [row_from_result(result(number, "boom" if number % 2 else ""), NOW) for number in range(6)], NOW
    )
    page = await list_results(query_handler, state=ResultState.FAILED)
    assert [each.invocation_id for each in page.results] == ["inv-5", "inv-3", "inv-1"]
    assert (await list_results(query_handler, state=ResultState.EXPIRED)).results == ()


@pytest.mark.parametrize("query", [b"", b"[]", b'{"version":1}', b'{"version":9,"invocationID":"x"}'])
async def test_undecodable_query_is_answered_with_an_error(query_handler: ResultQueryHandler, query: bytes) -> None:
    assert decode(await query_handler.find_result(query), GetResultResponse).error
    assert decode(await query_handler.list_results(query), ListResultsResponse).error


@pytest.mark.parametrize("token", ["x", "-1", "1e3", "9" * 30, "²"])
async def test_invalid_continue_token_is_answered_with_an_error(query_handler: ResultQueryHandler, token: str) -> None:
    assert "omit it" in (await list_results(query_handler, continue_token=token)).error
