"""Invocations are taken once, refused with the reason, and answered to whoever waits."""

import asyncio
import base64
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordState
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.jetstream.stream_admin import messages_by_subject
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation, prepare_enqueue
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.settings import InvocationSettings
from localcluster.control_plane import free_port
from localcluster.nats_server import NatsServer, temporary_nats_server
from tests.conftest import enter_or_skip
from tests.integration.jetstream.conftest import account_options
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.invocations.conftest import (
    INVOCATIONS_PATH,
    ApiReplica,
    FunctionCluster,
    StartApi,
    serverless_backend,
)
from tests.integration.runtime_api.invocations.fake_serverless_backend import FakeServerlessBackend, now
from tests.integration.runtime_api.live_platform import until


async def queued_count(other_side: FakeServerlessBackend, function: str) -> int:
    subject = other_side.topology.subjects.invoke(function)
    counts = await messages_by_subject(
        other_side.connection,
        other_side.topology.stream_name(Stream.INVOKE),
        other_side.topology.subjects.all_in_stream(Stream.INVOKE),
    )
    return counts.get(subject, 0)


async def test_replay_of_an_invocation_returns_the_first_response(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    asked: dict[str, Any] = {"invocationID": "inv-1", "payload": {"a": 1, "b": [2]}, "timeoutSeconds": 60}
    first = await api.invoke(function, **asked)
    again = await api.invoke(function, **asked | {"payload": {"b": [2], "a": 1}})
    assert (first.status, first.data["state"], again.status, again.data) == (202, "queued", 200, first.data)
    assert await queued_count(backend, function) == 1
    other = await api.invoke(function, **asked | {"payload": {"a": 2}})
    assert (other.status, other.error["code"]) == (409, "invocation_reused")
    assert (api.invocation_count("async", "accepted"), api.invocation_count("async", "replayed")) == (1, 1)
    assert api.invocation_count("async", "invocation_reused") == 1


async def test_invocation_id_is_generated_if_omitted(api: ApiReplica, function: str) -> None:
    one, other = await api.invoke(function), await api.invoke(function)
    assert (one.status, other.status) == (202, 202)
    assert one.data["invocationID"] != other.data["invocationID"]


async def test_one_of_100_duplicates_on_two_replicas_is_accepted(
    start_api: StartApi, function: str, backend: FakeServerlessBackend
) -> None:
    replicas = [await start_api(), await start_api()]
    answers = await asyncio.gather(
        *(replicas[n % 2].invoke(function, invocationID="same", payload=1) for n in range(100))
    )
    assert Counter(answer.status for answer in answers) == {202: 1, 200: 99}
    assert await queued_count(backend, function) == 1


def recorded_invocation(function: str, invocation_id: str) -> tuple[Invocation, InvocationRecord]:
    """What a replica has written that is killed before it sends the message."""
    request = Invoke(invocation_id=invocation_id, serverless_request_id=function)
    return prepare_enqueue(admit_invocation(request, InvocationLimits()), now())


async def test_replay_publishes_an_invocation_that_was_only_recorded(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    _, record = recorded_invocation(function, "half")
    await backend.records.create("half", encode(record))
    assert await queued_count(backend, function) == 0
    answers = [await api.invoke(function, invocationID="half") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert await queued_count(backend, function) == 1


@dataclass(frozen=True)
class PublisherWithLateRejection(Publisher):
    """Somebody else takes the record back in the very moment before this one sends."""

    backend: FakeServerlessBackend | None = None

    async def publish(self, message: OutgoingMessage) -> PubAck:
        if self.backend is not None and message.message_id == "race":
            await self.backend.purge_record("race")
        return await super().publish(message)


async def test_enqueued_invocation_has_its_record_after_a_race_with_a_rejection(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    invocation, record = recorded_invocation(function, "race")
    await backend.records.create("race", encode(record))
    publisher = PublisherWithLateRejection(backend.connection, backend=backend)
    ingress = replace(api.services.invocations.enqueuer, publisher=publisher)
    assert not (await ingress.enqueue(invocation)).new
    assert await queued_count(backend, function) == 1
    assert await backend.record("race") == record


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown field": ({"payloud": 1}, "payloud"),
    "a mode": ({"mode": "later"}, "mode"),
    "an ID with a dot": ({"invocationID": "a.b"}, "invocationID"),
    "an empty ID": ({"invocationID": ""}, "invocationID"),
    "no time": ({"timeoutSeconds": 0}, "timeoutSeconds"),
    "too much time": ({"timeoutSeconds": 86401}, "timeoutSeconds"),
    "headers that are no text": ({"headers": {"a": 1}}, "headers[...]"),
    "too many attributes": ({"attributes": {"a": "x" * 20000}}, "attributes"),
    "a content type of two lines": ({"contentType": "a\nb"}, "contentType"),
    "bytes that are no base64": ({"contentType": "image/png", "payload": "%%"}, "payload"),
    "bytes as an object": ({"contentType": "image/png", "payload": {}}, "payload"),
    "a function with a dot": ({"serverlessRequestID": "a.b"}, "serverlessRequestID"),
}


async def test_a_wrong_request_is_refused_with_the_field(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    for what, (change, field) in WRONG.items():
        refused = await api.request("POST", INVOCATIONS_PATH, json={"serverlessRequestID": function} | change)
        assert (refused.status, refused.error["details"][0]["field"]) == (400, field), (what, refused)
    missing = await api.request("POST", INVOCATIONS_PATH, json={"mode": "async"})
    assert (missing.status, missing.error["details"][0]["field"]) == (400, "serverlessRequestID")
    assert await queued_count(backend, function) == 0


async def test_a_body_above_the_limit_is_refused_with_the_limit(api: ApiReplica, function: str) -> None:
    largest = base64.b64encode(bytes(MAX_PAYLOAD_BYTES)).decode()
    taken = await api.invoke(function, contentType="application/octet-stream", payload=largest)
    assert taken.status == 202, taken
    larger = base64.b64encode(bytes(MAX_PAYLOAD_BYTES + 1)).decode()
    refused = await api.invoke(function, contentType="application/octet-stream", payload=larger)
    assert (refused.status, str(MAX_PAYLOAD_BYTES) in refused.error["message"]) == (413, True)
    huge = await api.invoke(function, payload="x" * 800 * 1024)
    assert (huge.status, "786432" in huge.error["message"]) == (413, True)


async def test_invoke_of_a_missing_or_ambiguous_function_is_rejected(api: ApiReplica, cluster: FunctionCluster) -> None:
    cluster.create_unit("plain")
    cluster.create_unit("off", serverless={"enabled": False, "requestID": "off"})
    cluster.create_unit("worker", serverless={"enabled": True, "requestID": "lonely", "workerOf": "gone"})
    for unknown in ("none-such", "off", "lonely"):
        refused = await api.invoke(unknown)
        assert (refused.status, unknown in refused.error["message"]) == (404, True)
    cluster.create_function("twice")
    assert (await api.invoke("twice")).status == 202
    cluster.create_function("twice")

    async def refuses() -> bool:
        return (await api.invoke("twice")).status == 409

    await until(refuses, "two functions of one requestID are noticed")


async def test_new_function_can_be_invoked_immediately(api: ApiReplica, cluster: FunctionCluster) -> None:
    for _ in range(5):
        assert (await api.invoke(await asyncio.to_thread(cluster.create_function))).status == 202


async def test_full_queue_is_429_and_leaves_no_record(
    api: ApiReplica, function: str, cluster: FunctionCluster, backend: FakeServerlessBackend
) -> None:
    answers = await asyncio.gather(*(api.invoke(function, invocationID=f"n-{n}") for n in range(160)))
    assert Counter(answer.status for answer in answers) == {202: 150, 429: 10}
    refused = next(n for n, answer in enumerate(answers) if answer.status == 429)
    assert int(answers[refused].headers["Retry-After"]) >= 1
    assert await backend.records.get(f"n-{refused}") is None
    async with backend.running_result_store():
        assert (await api.get(f"n-{refused}")).status == 404
    assert (await api.invoke(cluster.create_function())).status == 202, "another function does not notice"
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: len(backend.stored_results) >= 150, "the queue gets empty")
        assert (await api.invoke(function, invocationID=f"n-{refused}")).status == 202


async def test_sync_invocation_returns_the_function_response(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    async with backend.running_workers(), backend.running_result_store():
        answer = await api.invoke(function, mode="sync", invocationID="s", payload={"n": 1.50}, attributes={"a": "b"})
        assert (answer.status, answer.data["state"], answer.data["payload"]) == (200, "succeeded", {"n": 1.5})
        assert (answer.data["payloadEncoding"], answer.data["worker"]) == ("json", "f-worker")
        bytes_back = await api.invoke(function, mode="sync", contentType="image/png", payload="AAEC")
        assert (bytes_back.data["payload"], bytes_back.data["payloadEncoding"]) == ("AAEC", "base64")
        again = await api.invoke(function, mode="sync", invocationID="s", payload={"n": 1.5}, attributes={"a": "b"})
        assert (again.status, again.data["payload"]) == (200, {"n": 1.5})
    assert (backend.invocations[0].body, backend.invocations[1].body) == (b'{"n": 1.5}', b"\x00\x01\x02")
    assert len(backend.invocations) == 2


async def test_numbers_in_the_payload_are_preserved(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    body = f'{{"serverlessRequestID": {json.dumps(function)}, "payload": [1.00, 123456789012345678901234567890]}}'
    sent = await api.request("POST", INVOCATIONS_PATH, data=body, headers={"Content-Type": "application/json"})
    assert sent.status == 202, sent
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: bool(backend.invocations), "it is called")
    assert backend.invocations[0].body == b"[1.00, 123456789012345678901234567890]"


async def test_sync_invocation_without_reply_is_504_and_finishes_later(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    late = await api.invoke(function, mode="sync", timeoutSeconds=0.2)
    assert (late.status, late.error["code"]) == (504, "sync_timeout")
    (detail,) = late.error["details"]
    assert detail["field"] == "invocationID"
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: detail["value"] in backend.stored_results, "it ends all the same")

        async def has_ended() -> bool:
            return bool((await api.get(detail["value"])).data["state"] == "succeeded")

        await until(has_ended, "its result can be fetched")


async def test_lost_reply_is_replaced_by_the_record(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    backend.sends_replies = False
    async with backend.running_workers(), backend.running_result_store():
        answer = await api.invoke(function, mode="sync", payload="x")
    assert (answer.status, answer.data["payload"]) == (200, "x")


async def test_sync_replay_waits_for_the_running_invocation(
    start_api: StartApi, function: str, backend: FakeServerlessBackend
) -> None:
    one, other, impatient = (
        await start_api(),
        await start_api(),
        await start_api(invocations=InvocationSettings(max_sync_wait_seconds=1)),
    )
    first = asyncio.create_task(one.invoke(function, mode="sync", invocationID="r", payload=7))

    async def is_recorded() -> bool:
        return await backend.records.get("r") is not None

    await until(is_recorded, "the first is taken")
    second = asyncio.create_task(other.invoke(function, mode="sync", invocationID="r", payload=7))
    late = await impatient.invoke(function, mode="sync", invocationID="r", payload=7)
    assert late.status == 504, "nobody works yet"
    async with backend.running_workers(), backend.running_result_store():
        again = await other.invoke(function, mode="sync", invocationID="r", payload=7)
    assert (again.status, again.data["payload"]) == (200, 7)
    assert {(await first).status, (await second).status} <= {200, 504}
    assert len(backend.invocations) == 1


@pytest.mark.parametrize("stage", [RecordState.DISPATCHED, RecordState.RUNNING])
async def test_replay_returns_the_current_state(
    api: ApiReplica, function: str, backend: FakeServerlessBackend, stage: RecordState
) -> None:
    await api.invoke(function, invocationID="far")
    await backend.advance_record("far", stage, "w-1")
    again = await api.invoke(function, invocationID="far")
    assert (again.status, again.data["state"], again.data["worker"]) == (200, stage, "w-1")


async def test_unreachable_nats_is_503_and_other_routes_work(start_api: StartApi, function: str) -> None:
    api = await start_api(
        f"nats://127.0.0.1:{free_port()}", away=True, invocations=InvocationSettings(result_query_timeout_seconds=1)
    )
    refused = await api.invoke(function)
    assert (refused.status, int(refused.headers["Retry-After"]) >= 1) == (503, True)
    assert "NATS" in refused.error["message"]
    assert (await api.get("x")).status == 503
    health = (await api.request("GET", "/api/v1/health")).data
    assert (health["natsConnected"], health["kubernetesConnected"], health["status"]) == (False, True, "degraded")
    assert "not connected to NATS" in health["error"]
    assert (await api.request("GET", "/api/v1/gpu-units")).status == 200


async def test_nats_kill_loses_no_accepted_invocation(start_api: StartApi, function: str) -> None:
    with enter_or_skip(temporary_nats_server()) as server:
        account = server.create_account()
        api = await start_api(account.url)
        accepted: set[str] = set()
        done = asyncio.Event()

        async def call(who: int) -> None:
            number = 0
            while not done.is_set():
                number += 1
                answer = await api.invoke(function, invocationID=f"k-{who}-{number}")
                assert answer.status in (202, 429, 503), answer
                if answer.status == 202:
                    accepted.add(answer.data["invocationID"])

        callers = [asyncio.create_task(call(who)) for who in range(4)]
        await eventually(lambda: len(accepted) > 20, "invocations are taken")
        await asyncio.to_thread(_restart, server)
        before = len(accepted)
        await eventually(lambda: len(accepted) > before + 20, "and again after the restart")
        done.set()
        await asyncio.gather(*callers)
        async with (
            serverless_backend(account_options(account)) as other_side,
            other_side.running_workers(),
            other_side.running_result_store(),
        ):
            await eventually(lambda: accepted <= set(other_side.stored_results), "every accepted one ends")


def _restart(server: NatsServer) -> None:
    server.processes.stop("nats")
    server.start()
