"""Questions are answered from the database, bad ones with what is wrong with them, and pages fit into a message."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.limits import REASON_LIMIT
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.result_query import PAGE_LIMIT, FindResult, FoundResult, ListedResults, ListResults
from gpu_runtime.result_repository.sqlite_repository import SQLiteResults, opened
from gpu_runtime.result_store.metrics import StoreMetrics
from gpu_runtime.result_store.query_handler import LookUps
from gpu_runtime.result_store.result_codec import row_of

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


@pytest.fixture
async def results(tmp_path: Path) -> AsyncIterator[SQLiteResults]:
    async with opened(tmp_path / "results.db") as made:
        yield made


@pytest.fixture
def look_ups(results: SQLiteResults) -> LookUps:
    return LookUps(results, StoreMetrics())


def result(number: int, message: str = "") -> Result:
    failure = Failure(failure_class=FailureClass.FUNCTION_ERROR, message=message)
    return Result(
        invocation_id=f"inv-{number}",
        serverless_request_id="thumbs",
        state=ResultState.FAILED if message else ResultState.SUCCEEDED,
        failure=failure if message else None,
        timings=Timings(finished_at=NOW),
    )


async def found(look_ups: LookUps, invocation_id: str) -> FoundResult:
    return decode(await look_ups.result(encode(FindResult(invocation_id=invocation_id))), FoundResult)


async def listed(look_ups: LookUps, **asked: object) -> ListedResults:
    question = ListResults(serverless_request_id="thumbs", **asked)  # type: ignore[arg-type]
    return decode(await look_ups.page(encode(question)), ListedResults)


async def test_a_stored_result_is_found_with_its_body_and_another_is_not(
    results: SQLiteResults, look_ups: LookUps
) -> None:
    stored = with_body(result(1), "image/png", b"\x89PNG")
    await results.insert([row_of(stored)], NOW)
    assert await found(look_ups, "inv-1") == FoundResult(result=stored)
    assert await found(look_ups, "inv-2") == FoundResult()


async def test_pages_have_no_bodies_and_lead_to_each_other(results: SQLiteResults, look_ups: LookUps) -> None:
    every = [with_body(result(number), "text/plain", b"hello") for number in range(5)]
    await results.insert([row_of(each) for each in every], NOW)
    first = await listed(look_ups, limit=3)
    assert [each.invocation_id for each in first.results] == ["inv-4", "inv-3", "inv-2"]
    assert {(each.body, each.body_bytes) for each in first.results} == {(b"", 5)}
    last = await listed(look_ups, limit=3, after=first.after)
    assert [each.invocation_id for each in last.results] == ["inv-1", "inv-0"]
    assert last.after == ""


async def test_a_page_of_long_failures_is_shorter_and_nothing_is_left_out(
    results: SQLiteResults, look_ups: LookUps
) -> None:
    await results.insert([row_of(result(number, "\u00e4" * REASON_LIMIT)) for number in range(400)], NOW)
    seen: list[str] = []
    after = ""
    while True:
        question = ListResults(serverless_request_id="thumbs", limit=PAGE_LIMIT, after=after)
        answer = await look_ups.page(encode(question))
        assert len(answer) < 1024 * 1024
        page = decode(answer, ListedResults)
        seen += [each.invocation_id for each in page.results]
        if not (after := page.after):
            break
    assert seen == [f"inv-{number}" for number in reversed(range(400))]


async def test_only_those_that_ended_so(results: SQLiteResults, look_ups: LookUps) -> None:
    await results.insert([row_of(result(number, "boom" if number % 2 else "")) for number in range(6)], NOW)
    page = await listed(look_ups, state=ResultState.FAILED)
    assert [each.invocation_id for each in page.results] == ["inv-5", "inv-3", "inv-1"]
    assert (await listed(look_ups, state=ResultState.EXPIRED)).results == ()


@pytest.mark.parametrize("question", [b"", b"[]", b'{"version":1}', b'{"version":9,"invocationID":"x"}'])
async def test_a_question_that_is_none_is_answered_with_the_problem(look_ups: LookUps, question: bytes) -> None:
    assert decode(await look_ups.result(question), FoundResult).problem
    assert decode(await look_ups.page(question), ListedResults).problem


@pytest.mark.parametrize("after", ["x", "-1", "1e3", "9" * 30, "²"])
async def test_a_place_that_no_page_named_is_a_problem(look_ups: LookUps, after: str) -> None:
    assert "leave it out" in (await listed(look_ups, after=after)).problem
