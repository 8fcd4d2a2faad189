"""Dead letters can be looked at, thrown away and sent again, and sending again runs nothing twice."""

import asyncio

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Queue
from tests.integration.kube.waiting import eventually
from tests.integration.runtime_api.invocations.conftest import LETTERS, Api
from tests.integration.runtime_api.invocations.plane import OtherSide, now, succeeded
from tests.integration.runtime_api.invocations.test_live_lives import invocation


async def ids(api: Api, **query: object) -> list[str]:
    found: list[str] = []
    after: dict[str, object] = {}
    while True:
        page = await api.ask("GET", LETTERS, params=query | after)
        assert page.status == 200, page
        found += [each["id"] for each in page.data]
        if "continue" not in page.body:
            return found
        after = {"continue": page.body["continue"]}


async def test_letters_are_listed_shown_and_thrown_away(api: Api, other_side: OtherSide) -> None:
    for number in range(3):
        await other_side.bury(Queue.INVOKE, encode(invocation("f", f"i{number}")), 10 - number, name=f"i{number}")
    await other_side.bury(Queue.RESULT, b"not JSON", 4, request_id="g")
    assert await ids(api, limit=2) == ["invoke-10", "invoke-9", "invoke-8", "result-4"]
    assert await ids(api, source="result") == ["result-4"]
    assert await ids(api, serverlessRequestID="f", limit=3) == ["invoke-10", "invoke-9", "invoke-8"]
    assert await ids(api, source="dispatch") == []
    shown = (await api.ask("GET", f"{LETTERS}/invoke-9")).data
    assert (shown["invocationID"], shown["class"], shown["attempts"]) == ("i1", "function_crashed", 5)
    assert (shown["messageEncoding"], shown["message"]["invocationID"]) == ("json", "i1")
    odd = (await api.ask("GET", f"{LETTERS}/result-4")).data
    assert (odd["messageEncoding"], odd["message"], odd["serverlessRequestID"]) == ("base64", "bm90IEpTT04=", "g")
    assert (await api.ask("DELETE", f"{LETTERS}/invoke-9")).status == 204
    for method in ("GET", "DELETE"):
        assert (await api.ask(method, f"{LETTERS}/invoke-9")).status == 404
    assert await ids(api) == ["invoke-10", "invoke-8", "result-4"]


async def test_what_is_no_letter_is_404_and_no_filter_400(api: Api) -> None:
    for name in ("none-such", "invoke-", "invoke-x", "dlq-1", "invoke-99"):
        assert (await api.ask("GET", f"{LETTERS}/{name}")).status == 404
        assert (await api.ask("POST", f"{LETTERS}/{name}/redrive")).status == 404
    for query in ({"source": "dlq"}, {"serverlessRequestID": "a.b"}, {"continue": "?"}, {"limit": "501"}):
        assert (await api.ask("GET", LETTERS, params=query)).status == 400


async def test_an_invocation_runs_again_under_a_new_id_and_once(api: Api, other_side: OtherSide) -> None:
    waiting = invocation("f", "old")
    on_its_way = Dispatch(invocation=invocation("f", "x" * 128), deadline=now(), dispatched_at=now())
    await other_side.bury(Queue.INVOKE, encode(waiting), 1)
    await other_side.bury(Queue.DISPATCH, encode(on_its_way), 2)
    sent = await asyncio.gather(*(api.ask("POST", f"{LETTERS}/invoke-1/redrive") for _ in range(10)))
    assert {answer.status for answer in sent} <= {202, 404}
    assert {answer.data["invocationID"] for answer in sent if answer.status == 202} == {"old-redrive-invoke-1"}
    other = await api.ask("POST", f"{LETTERS}/dispatch-2/redrive")
    assert other.data["invocationID"] == "x" * 109 + "-redrive-dispatch-2"
    assert await ids(api) == []
    async with other_side.working(), other_side.storing():
        await eventually(lambda: len(other_side.stored) == 2, "both run")
    assert len(other_side.called) == 2


async def test_a_result_goes_to_the_store_again_as_it_is(api: Api, other_side: OtherSide) -> None:
    await other_side.bury(Queue.RESULT, encode(succeeded(invocation("f", "r"), "", b"")), 3, name="r")
    assert (await api.ask("POST", f"{LETTERS}/result-3/redrive")).data["invocationID"] == "r"
    async with other_side.storing():
        await eventually(lambda: "r" in other_side.stored, "it is stored")


async def test_what_cannot_be_read_is_not_sent_again(api: Api, other_side: OtherSide) -> None:
    await other_side.bury(Queue.INVOKE, b"{", 1)
    assert (await api.ask("POST", f"{LETTERS}/invoke-1/redrive")).status == 409
    assert await ids(api) == ["invoke-1"]
