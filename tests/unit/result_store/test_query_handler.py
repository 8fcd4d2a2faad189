"""Questions are answered from the database, bad ones with what is wrong with them, and pages fit into a message."""

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
from gpu_runtime.result_store.result_codec import row_from_result

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
async def results(tmp_path: Path) -> AsyncIterator[SQLiteResultRepository]:
    async with open_repository(tmp_path / "results.db") as made:
        yield made


@pytest.fixture
def query_handler(results: SQLiteResultRepository) -> ResultQueryHandler:
    return ResultQueryHandler(results, ResultStoreMetrics())


def result(number: int, message: str = "") -> Result:
    failure = Failure(failure_class=FailureClass.FUNCTION_ERROR, message=message)
    return Result(
        invocation_id=f"inv-{number}",
        serverless_request_id="thumbs",
        state=ResultState.FAILED if message else ResultState.SUCCEEDED,
        failure=failure if message else None,
        timings=Timings(finished_at=NOW),
    )


async def get_result(look_ups: ResultQueryHandler, invocation_id: str) -> GetResultResponse:
    return decode(await look_ups.find_result(encode(GetResultRequest(invocation_id=invocation_id))), GetResultResponse)


async def list_results(look_ups: ResultQueryHandler, **asked: object) -> ListResultsResponse:
    question = ListResultsRequest(serverless_request_id="thumbs", **asked)  # type: ignore[arg-type]
    return decode(await look_ups.list_results(encode(question)), ListResultsResponse)


async def test_find_returns_a_stored_result_with_its_body(
    results: SQLiteResultRepository, query_handler: ResultQueryHandler
) -> None:
    stored = with_body(result(1), "image/png", b"\x89PNG")
    await results.insert([row_from_result(stored)], NOW)
    assert await get_result(query_handler, "inv-1") == GetResultResponse(result=stored)
    assert await get_result(query_handler, "inv-2") == GetResultResponse()


async def test_pages_have_no_bodies_and_continue(
    results: SQLiteResultRepository, query_handler: ResultQueryHandler
) -> None:
    every = [with_body(result(number), "text/plain", b"hello") for number in range(5)]
    await results.insert([row_from_result(each) for each in every], NOW)
    first = await list_results(query_handler, limit=3)
    assert [each.invocation_id for each in first.results] == ["inv-4", "inv-3", "inv-2"]
    assert {(each.body, each.body_bytes) for each in first.results} == {(b"", 5)}
    last = await list_results(query_handler, limit=3, after=first.continue_token)
    assert [each.invocation_id for each in last.results] == ["inv-1", "inv-0"]
    assert last.continue_token == ""


async def test_page_is_shortened_to_the_message_limit_without_gaps(
    results: SQLiteResultRepository, query_handler: ResultQueryHandler
) -> None:
    await results.insert([row_from_result(result(number, "\u00e4" * MAX_REASON_LENGTH)) for number in range(400)], NOW)
    seen: list[str] = []
    after = ""
    while True:
        question = ListResultsRequest(serverless_request_id="thumbs", limit=MAX_PAGE_SIZE, continue_token=after)
        answer = await query_handler.list_results(encode(question))
        assert len(answer) < 1024 * 1024
        page = decode(answer, ListResultsResponse)
        seen += [each.invocation_id for each in page.results]
        if not (after := page.continue_token):
            break
    assert seen == [f"inv-{number}" for number in reversed(range(400))]


async def test_list_filters_by_state(results: SQLiteResultRepository, query_handler: ResultQueryHandler) -> None:
    await results.insert([row_from_result(result(number, "boom" if number % 2 else "")) for number in range(6)], NOW)
    page = await list_results(query_handler, state=ResultState.FAILED)
    assert [each.invocation_id for each in page.results] == ["inv-5", "inv-3", "inv-1"]
    assert (await list_results(query_handler, state=ResultState.EXPIRED)).results == ()


@pytest.mark.parametrize("question", [b"", b"[]", b'{"version":1}', b'{"version":9,"invocationID":"x"}'])
async def test_undecodable_query_is_answered_with_a_problem(query_handler: ResultQueryHandler, question: bytes) -> None:
    assert decode(await query_handler.find_result(question), GetResultResponse).error
    assert decode(await query_handler.list_results(question), ListResultsResponse).error


@pytest.mark.parametrize("after", ["x", "-1", "1e3", "9" * 30, "²"])
async def test_invalid_continue_position_is_answered_with_a_problem(
    query_handler: ResultQueryHandler, after: str
) -> None:
    assert "leave it out" in (await list_results(query_handler, after=after)).error
