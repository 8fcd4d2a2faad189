"""Dead letters can be listed, read, deleted and redriven, and a redrive runs nothing twice."""

import asyncio

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Stream
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.invocations.conftest import DEAD_LETTERS_PATH, ApiReplica
from tests.integration.runtime_api.invocations.fake_serverless_backend import (
    FakeServerlessBackend,
    now,
    succeeded_result,
)
from tests.integration.runtime_api.invocations.test_live_invocation_states import invocation


async def listed_ids(api: ApiReplica, **query: object) -> list[str]:
    ids: list[str] = []
    after: dict[str, object] = {}
    while True:
        page = await api.request("GET", DEAD_LETTERS_PATH, params=query | after)
        assert page.status == 200, page
        ids += [each["id"] for each in page.data]
        if "continue" not in page.body:
            return ids
        after = {"continue": page.body["continue"]}


async def test_dead_letters_are_listed_read_and_deleted(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    function_id = await api.function_id(function)
    for number in range(3):
        sent = invocation(function, f"i{number}", function_id)
        await backend.publish_dead_letter(Stream.INVOKE, encode(sent), 10 - number, function_id, sent)
    await backend.publish_dead_letter(Stream.RESULT, b"not JSON", 4, "g")
    assert await listed_ids(api, limit=2) == ["1", "2", "3", "4"]
    assert await listed_ids(api, source="result") == ["4"]
    assert await listed_ids(api, serverlessRequestID=function, limit=3) == ["1", "2", "3"]
    assert await listed_ids(api, functionID=function_id) == ["1", "2", "3"]
    assert await listed_ids(api, functionID="g") == ["4"], "letters of a deleted function can be listed"
    assert await listed_ids(api, functionID="g", serverlessRequestID=function) == []
    assert await listed_ids(api, serverlessRequestID="deleted") == []
    assert await listed_ids(api, source="dispatch") == []
    shown = (await api.request("GET", f"{DEAD_LETTERS_PATH}/2")).data
    assert (shown["invocationID"], shown["class"], shown["deliveryCount"]) == ("i1", "function_crashed", 5)
    assert (shown["messageEncoding"], shown["message"]["invocationID"]) == ("json", "i1")
    malformed = (await api.request("GET", f"{DEAD_LETTERS_PATH}/4")).data
    assert (malformed["messageEncoding"], malformed["message"]) == ("base64", "bm90IEpTT04=")
    assert (malformed["functionID"], malformed["serverlessRequestID"]) == ("g", "unknown")
    assert (await api.request("DELETE", f"{DEAD_LETTERS_PATH}/2")).status == 204
    for method in ("GET", "DELETE"):
        assert (await api.request(method, f"{DEAD_LETTERS_PATH}/2")).status == 404
    assert await listed_ids(api) == ["1", "3", "4"]


async def test_unknown_dead_letter_is_404_and_invalid_filter_is_400(api: ApiReplica) -> None:
    for name in ("none-such", "invoke-1", "-1", "0", "00", "1e1", "99", "9" * 30):
        assert (await api.request("GET", f"{DEAD_LETTERS_PATH}/{name}")).status == 404
        assert (await api.request("POST", f"{DEAD_LETTERS_PATH}/{name}/redrive")).status == 404
    for query in (
        {"source": "dlq"},
        {"serverlessRequestID": "a.b"},
        {"functionID": "a.b"},
        {"continue": "?"},
        {"limit": "501"},
    ):
        assert (await api.request("GET", DEAD_LETTERS_PATH, params=query)).status == 400


async def test_redriven_invocation_runs_once_with_a_new_id(api: ApiReplica, backend: FakeServerlessBackend) -> None:
    queued = invocation("f", "old")
    dispatched = Dispatch(invocation=invocation("f", "x" * 128), deadline=now(), dispatched_at=now())
    await backend.publish_dead_letter(Stream.INVOKE, encode(queued), 1, decoded=queued)
    await backend.publish_dead_letter(Stream.DISPATCH, encode(dispatched), 2, decoded=dispatched.invocation)
    redrives = await asyncio.gather(*(api.request("POST", f"{DEAD_LETTERS_PATH}/1/redrive") for _ in range(10)))
    assert {response.status for response in redrives} <= {202, 404}
    assert {response.data["invocationID"] for response in redrives if response.status == 202} == {"old-redrive-1"}
    other = await api.request("POST", f"{DEAD_LETTERS_PATH}/2/redrive")
    assert other.data["invocationID"] == "x" * 118 + "-redrive-2"
    assert await listed_ids(api) == []
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: len(backend.stored_results) == 2, "both invocations have run")
    assert len(backend.invocations) == 2


async def test_redriven_result_is_stored_unchanged(api: ApiReplica, backend: FakeServerlessBackend) -> None:
    sent = invocation("f", "r")
    await backend.publish_dead_letter(Stream.RESULT, encode(succeeded_result(sent, "", b"")), 3, decoded=sent)
    assert (await api.request("POST", f"{DEAD_LETTERS_PATH}/1/redrive")).data["invocationID"] == "r"
    async with backend.running_result_store():
        await eventually(lambda: "r" in backend.stored_results, "the result is stored")


async def test_redrive_of_an_undecodable_dead_letter_is_409(api: ApiReplica, backend: FakeServerlessBackend) -> None:
    await backend.publish_dead_letter(Stream.INVOKE, b"{", 1, decoded=invocation("f", "i"))
    rejected = await api.request("POST", f"{DEAD_LETTERS_PATH}/1/redrive")
    assert (rejected.status, rejected.error["code"]) == (409, "not_redrivable")
    assert await listed_ids(api) == ["1"]


async def test_redrive_of_a_dead_letter_without_a_ticket_is_409(
    api: ApiReplica, backend: FakeServerlessBackend
) -> None:
    await backend.publish_dead_letter(Stream.INVOKE, encode(invocation("f", "i")), 1)
    rejected = await api.request("POST", f"{DEAD_LETTERS_PATH}/1/redrive")
    assert (rejected.status, rejected.error["code"]) == (409, "not_redrivable")
    assert "no valid ticket" in rejected.error["message"]
