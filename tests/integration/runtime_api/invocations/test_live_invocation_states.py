"""Invocations can be read, listed and cancelled in every state, and their results come from the result store."""

from datetime import timedelta

import pytest
from msgspec import structs

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import RecordState
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.stream_admin import messages_by_subject
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.invocations.conftest import ApiReplica
from tests.integration.runtime_api.invocations.fake_serverless_backend import (
    FakeServerlessBackend,
    now,
    succeeded_result,
)
from tests.integration.runtime_api.live_platform import until


def invocation(function: str, invocation_id: str, function_id: str = "") -> Invocation:
    return Invocation(
        invocation_id=invocation_id,
        serverless_request_id=function,
        function_id=function_id or function,
        timeout_seconds=60.0,
        enqueued_at=now(),
    )


async def test_every_state_is_shown_and_then_the_result(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    await api.invoke(function, invocationID="i", payload=1)
    assert (await api.get("i")).data["state"] == "queued"
    await backend.advance_record("i", RecordState.DISPATCHED)
    assert (await api.get("i")).data["state"] == "dispatched"
    await backend.advance_record("i", RecordState.RUNNING, "w-1")
    running = (await api.get("i")).data
    assert (running["state"], running["worker"]) == ("running", "w-1")
    await backend.store_result(succeeded_result(invocation(function, "i"), "application/json", b'{"big": 1.10}'))
    unavailable = await api.get("i")
    assert (unavailable.status, "succeeded" in unavailable.error["message"]) == (503, True)
    assert "the result store is not running" in unavailable.error["message"]
    async with backend.running_result_store():
        finished = await api.get("i")
        assert (finished.data["state"], finished.data["payload"], finished.data["statusCode"]) == (
            "succeeded",
            {"big": 1.1},
            200,
        )
        assert finished.data["timings"]["finishedAt"]
        await backend.purge_record("i")
        assert (await api.get("i")).data == finished.data, "the result must outlive the record"
        backend.stored_results.clear()
        assert (await api.get("i")).status == 404


async def test_failure_has_its_class_and_an_expired_result_is_flagged(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    await api.invoke(function, invocationID="i")
    failure = Failure(failure_class=FailureClass.FUNCTION_GONE, message="the function was deleted")
    timings = Timings(enqueued_at=now(), finished_at=now())
    await backend.store_result(
        Result(
            invocation_id="i",
            serverless_request_id=function,
            function_id=function,
            state=ResultState.FAILED,
            failure=failure,
            timings=timings,
        )
    )
    async with backend.running_result_store():
        failed = (await api.get("i")).data
        assert (failed["state"], failed["failure"]) == (
            "failed",
            {"class": "function_gone", "message": "the function was deleted"},
        )
        backend.stored_results.clear()
        expired = (await api.get("i")).data
        assert (expired["state"], expired["resultExpired"]) == ("failed", True)


@pytest.mark.parametrize("unknown", ["none-such", "a.b", "x" * 129])
async def test_unknown_invocation_is_404(api: ApiReplica, backend: FakeServerlessBackend, unknown: str) -> None:
    async with backend.running_result_store():
        assert (await api.get(unknown)).status == 404
        assert (await api.cancel(unknown)).status == 404


async def test_undispatched_invocation_expires_on_read_after_the_grace_period(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    await api.invoke(function, invocationID="undispatched")
    record = await backend.record("undispatched")
    await backend.write_record("undispatched", structs.replace(record, deadline=now() - timedelta(seconds=15)))
    async with backend.running_result_store():
        assert (await api.get("undispatched")).data["state"] == "queued", "the activator may still dispatch it"
        await backend.write_record("undispatched", structs.replace(record, deadline=now() - timedelta(seconds=31)))

        async def expired() -> bool:
            return bool((await api.get("undispatched")).data["state"] == "expired")

        await until(expired, "the invocation has expired")
        assert (await api.get("undispatched")).data["failure"]["class"] == "timed_out"


async def test_cancel_is_published_and_ends_the_invocation(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    await api.invoke(function, invocationID="c")
    async with backend.recording_cancels():
        cancelled = await api.cancel("c")
        assert (cancelled.status, cancelled.data["cancelRequested"]) == (202, True)
        assert (await api.cancel("c")).status == 202, "a repeated cancel is published again"
        await eventually(lambda: backend.cancelled_ids == ["c", "c"], "both cancels were published")
    assert (await api.get("c")).data["cancelRequested"]
    async with backend.running_result_store():

        async def is_cancelled() -> bool:
            return bool((await api.get("c")).data["state"] == "cancelled")

        await until(is_cancelled, "the result is stored")
        assert (await api.cancel("c")).status == 200
        assert (await api.get("c")).data["failure"]["class"] == "cancelled"
        await backend.purge_record("c")
        assert (await api.cancel("c")).status == 200
        assert (await api.invoke(function, invocationID="d")).status == 202
        await backend.store_result(succeeded_result(invocation(function, "d"), "", b""))
        rejected = await api.cancel("d")
    assert (rejected.status, rejected.error["code"]) == (409, "already_finished")
    assert "succeeded" in rejected.error["message"]


async def test_cancel_of_a_running_invocation_leaves_the_result_to_its_worker(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    """The worker may have a result that the unavailable store has not stored yet. That result must win."""
    await api.invoke(function, invocationID="r")
    await backend.advance_record("r", RecordState.RUNNING, "w0")
    async with backend.recording_cancels():
        cancelled = await api.cancel("r")
        assert (cancelled.status, cancelled.data["cancelRequested"]) == (202, True)
        await eventually(lambda: backend.cancelled_ids == ["r"], "the cancel was published")
    results = backend.topology.stream_name(Stream.RESULT)
    assert await messages_by_subject(backend.connection, results, ">") == {}


async def listed(api: ApiReplica, function: str, **query: object) -> list[tuple[str, str]]:
    """Return the entries of all pages in their order."""
    entries: list[tuple[str, str]] = []
    after: dict[str, str] = {}
    while True:
        page = await api.list(function, **query, **after)
        assert (page.status, len(page.data) <= int(str(query.get("limit", 100)))) == (200, True), page
        entries += [(each["invocationID"], each["state"]) for each in page.data]
        if "continue" not in page.body:
            return entries
        after = {"continue": page.body["continue"]}


async def test_list_returns_unfinished_invocations_before_finished_ones(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    function_id = await api.function_id(function)
    for number in range(5):
        await api.invoke(function, invocationID=f"q{number}")
    for number in range(4):
        await backend.dispatch(invocation(function, f"d{number}", function_id))
    await api.invoke(function, invocationID="r")
    await backend.dispatch(invocation(function, "r", function_id))
    await backend.advance_record("r", RecordState.RUNNING)
    for number in range(3):
        await backend.store_result(succeeded_result(invocation(function, f"s{number}"), "", b"large"))
    queued = [(f"q{number}", "queued") for number in range(5)]
    dispatched = [(f"d{number}", "dispatched") for number in range(4)]
    stored = [(f"s{number}", "succeeded") for number in (2, 1, 0)]
    async with backend.running_result_store():
        entries = await listed(api, function, limit=4)
        assert list(dict.fromkeys(entries)) == [*queued, ("r", "running"), *dispatched, *stored]
        assert await listed(api, function, state="queued", limit=2) == queued
        assert await listed(api, function, state="dispatched", limit=3) == dispatched
        assert set(await listed(api, function, state="running")) == {("r", "running")}
        assert await listed(api, function, state="succeeded", limit=2) == stored
        assert await listed(api, function, state="expired") == []
        assert await listed(api, "another") == []
    assert (await api.list(function, state="queued")).status == 200, "queued invocations do not need the result store"
    assert (await api.list(function, state="failed")).status == 503


async def test_list_with_an_invalid_query_is_rejected(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    for query in ({"state": "lost"}, {"limit": "0"}, {"continue": "?"}, {"serverlessRequestID": "a.b"}):
        rejected = await api.request(
            "GET", "/api/v1/serverless/invocations", params={"serverlessRequestID": function} | query
        )
        assert rejected.status == 400, query
    assert (await api.request("GET", "/api/v1/serverless/invocations")).status == 400
    async with backend.running_result_store():
        for number in range(3):
            await backend.store_result(succeeded_result(invocation(function, f"s{number}"), "", b""))
        first = await api.list(function, state="succeeded", limit=1)
        other = await api.list(function, state="queued", **{"continue": first.body["continue"]})
    assert (other.status, other.error["details"][0]["field"]) == (400, "continue")


async def test_undecodable_message_does_not_hide_other_invocations(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    function_id = await api.function_id(function)
    subject = backend.topology.subjects.invoke(function_id)
    await backend.publisher.publish(OutgoingMessage(subject, b"{"))
    await backend.publisher.publish(OutgoingMessage(subject, encode(invocation(function, "readable", function_id))))
    assert await listed(api, function, state="queued") == [("readable", "queued")]
