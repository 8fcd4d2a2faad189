"""Invocations are accepted once, rejected with a reason, and answered to synchronous callers."""

import asyncio
import base64
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from msgspec import structs

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordState
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.jetstream.stream_admin import messages_by_subject
from gpu_runtime.runtime_api.api_informers import FUNCTION_INDEX
from gpu_runtime.runtime_api.invocations.enqueue import prepare_enqueue
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.settings import InvocationSettings
from localcluster.free_ports import free_port
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


async def queued_count(api: ApiReplica, backend: FakeServerlessBackend, function: str) -> int:
    subject = backend.topology.subjects.invoke(await api.function_id(function))
    stream, subjects = backend.topology.stream_name(Stream.INVOKE), backend.topology.subjects
    counts = await messages_by_subject(backend.connection, stream, subjects.all_functions(Stream.INVOKE))
    assert set(counts) <= {subject}
    return counts.get(subject, 0)


async def test_replay_of_an_invocation_returns_the_first_response(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    body: dict[str, Any] = {"invocationID": "inv-1", "payload": {"a": 1, "b": [2]}, "timeoutSeconds": 60}
    first = await api.invoke(function, **body)
    replay = await api.invoke(function, **body | {"payload": {"b": [2], "a": 1}})
    assert (first.status, first.data["state"], replay.status, replay.data) == (202, "queued", 200, first.data)
    assert await queued_count(api, backend, function) == 1
    other = await api.invoke(function, **body | {"payload": {"a": 2}})
    assert (other.status, other.error["code"]) == (409, "invocation_reused")
    assert (api.invocation_count("async", "accepted"), api.invocation_count("async", "replayed")) == (1, 1)
    assert api.invocation_count("async", "invocation_reused") == 1


async def test_invocation_id_is_generated_if_omitted(api: ApiReplica, function: str) -> None:
    first, second = await api.invoke(function), await api.invoke(function)
    assert (first.status, second.status) == (202, 202)
    assert first.data["invocationID"] != second.data["invocationID"]


async def test_one_of_100_duplicates_on_two_replicas_is_accepted(
    start_api: StartApi, function: str, backend: FakeServerlessBackend
) -> None:
    replicas = [await start_api(), await start_api()]
    responses = await asyncio.gather(
        *(replicas[n % 2].invoke(function, invocationID="same", payload=1) for n in range(100))
    )
    assert Counter(response.status for response in responses) == {202: 1, 200: 99}
    assert await queued_count(replicas[0], backend, function) == 1


async def recorded_invocation(
    api: ApiReplica, function: str, invocation_id: str
) -> tuple[Invocation, InvocationRecord]:
    """The message and the record of a replica that was killed before it published the message."""
    request = Invoke(invocation_id=invocation_id, serverless_request_id=function)
    admitted = admit_invocation(request, InvocationLimits())
    return prepare_enqueue(structs.replace(admitted, function_id=await api.function_id(function)), now())


async def test_replay_publishes_an_invocation_that_was_only_recorded(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    _, record = await recorded_invocation(api, function, "half")
    await backend.records.create("half", encode(record))
    assert await queued_count(api, backend, function) == 0
    responses = [await api.invoke(function, invocationID="half") for _ in range(3)]
    assert [response.status for response in responses] == [200, 200, 200]
    assert await queued_count(api, backend, function) == 1


@dataclass(frozen=True)
class PublisherWithLateRejection(Publisher):
    """Before it publishes, it purges the record as its creator does after a full stream: if it has not changed."""

    backend: FakeServerlessBackend | None = None
    revision: int = 0

    async def publish(self, message: OutgoingMessage) -> PubAck:
        if self.backend is not None and ".invoke." in message.subject:
            await self.backend.records.purge("race", self.revision)
        return await super().publish(message)


async def test_enqueued_invocation_has_its_record_after_a_race_with_a_rejection(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    invocation, record = await recorded_invocation(api, function, "race")
    revision = await backend.records.create("race", encode(record))
    publisher = PublisherWithLateRejection(backend.connection, backend=backend, revision=revision or 0)
    enqueuer = replace(api.services.invocations.enqueuer, publisher=publisher)
    assert not (await enqueuer.enqueue(invocation)).new
    assert await queued_count(api, backend, function) == 1
    assert (await backend.record("race")).request_hash == record.request_hash


INVALID_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"payloud": 1}, "payloud"),
    "unknown mode": ({"mode": "later"}, "mode"),
    "ID with a dot": ({"invocationID": "a.b"}, "invocationID"),
    "empty ID": ({"invocationID": ""}, "invocationID"),
    "zero timeout": ({"timeoutSeconds": 0}, "timeoutSeconds"),
    "too long timeout": ({"timeoutSeconds": 86401}, "timeoutSeconds"),
    "header that is not a string": ({"headers": {"a": 1}}, "headers[...]"),
    "too large attributes": ({"attributes": {"a": "x" * 20000}}, "attributes"),
    "content type with a line break": ({"contentType": "a\nb"}, "contentType"),
    "binary payload that is not base64": ({"contentType": "image/png", "payload": "%%"}, "payload"),
    "binary payload as an object": ({"contentType": "image/png", "payload": {}}, "payload"),
    "function with a dot": ({"serverlessRequestID": "a.b"}, "serverlessRequestID"),
}


async def test_invalid_invocation_is_rejected_with_the_field(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    for case, (change, field) in INVALID_REQUESTS.items():
        rejected = await api.request("POST", INVOCATIONS_PATH, json={"serverlessRequestID": function} | change)
        assert (rejected.status, rejected.error["details"][0]["field"]) == (400, field), (case, rejected)
    missing = await api.request("POST", INVOCATIONS_PATH, json={"mode": "async"})
    assert (missing.status, missing.error["details"][0]["field"]) == (400, "serverlessRequestID")
    assert await queued_count(api, backend, function) == 0


async def test_payload_above_the_limit_is_rejected_with_the_limit(api: ApiReplica, function: str) -> None:
    largest = base64.b64encode(bytes(MAX_PAYLOAD_BYTES)).decode()
    accepted = await api.invoke(function, contentType="application/octet-stream", payload=largest)
    assert accepted.status == 202, accepted
    larger = base64.b64encode(bytes(MAX_PAYLOAD_BYTES + 1)).decode()
    rejected = await api.invoke(function, contentType="application/octet-stream", payload=larger)
    assert (rejected.status, str(MAX_PAYLOAD_BYTES) in rejected.error["message"]) == (413, True)
    huge = await api.invoke(function, payload="x" * 800 * 1024)
    assert (huge.status, "786432" in huge.error["message"]) == (413, True)


async def test_invoke_of_a_missing_function_is_rejected(api: ApiReplica, cluster: FunctionCluster) -> None:
    cluster.create_unit("plain")
    cluster.create_unit("off", serverless={"enabled": False, "requestID": "off"})
    cluster.create_unit("worker", serverless={"enabled": True, "requestID": "lonely", "workerOf": "gone"})
    for unknown in ("none-such", "off", "lonely"):
        rejected = await api.invoke(unknown)
        assert (rejected.status, unknown in rejected.error["message"]) == (404, True)


async def test_invocations_go_to_the_function_that_owns_the_request_id(
    api: ApiReplica, cluster: FunctionCluster
) -> None:
    cluster.create_function("twice")
    owner = await api.function_id("twice")
    cluster.create_function("twice")
    await eventually(
        lambda: len(api.services.informers.units.store.by_index(FUNCTION_INDEX, "twice")) == 2, "both are cached"
    )
    assert (await api.invoke("twice")).status == 202
    assert await api.function_id("twice") == owner


async def test_invoke_of_a_function_without_a_queue_is_503(api: ApiReplica, cluster: FunctionCluster) -> None:
    cluster.create_unit("early", serverless={"enabled": True, "requestID": "early"})
    rejected = await api.invoke("early")
    assert (rejected.status, rejected.headers["Retry-After"]) == (503, "1")
    assert "has no queue yet" in rejected.error["message"]


async def test_new_function_can_be_invoked_immediately(api: ApiReplica, cluster: FunctionCluster) -> None:
    for _ in range(5):
        assert (await api.invoke(await asyncio.to_thread(cluster.create_function))).status == 202


async def test_full_queue_is_429_and_leaves_no_record(
    api: ApiReplica, function: str, cluster: FunctionCluster, backend: FakeServerlessBackend
) -> None:
    responses = await asyncio.gather(*(api.invoke(function, invocationID=f"n-{n}") for n in range(160)))
    assert Counter(response.status for response in responses) == {202: 150, 429: 10}
    rejected = next(n for n, response in enumerate(responses) if response.status == 429)
    assert int(responses[rejected].headers["Retry-After"]) >= 1
    assert await backend.records.get(f"n-{rejected}") is None
    async with backend.running_result_store():
        assert (await api.get(f"n-{rejected}")).status == 404
    assert (await api.invoke(cluster.create_function())).status == 202, "other functions are not affected"
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: len(backend.stored_results) >= 150, "the queue is empty")
        assert (await api.invoke(function, invocationID=f"n-{rejected}")).status == 202


async def test_sync_invocation_returns_the_function_response(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    async with backend.running_workers(), backend.running_result_store():
        response = await api.invoke(function, mode="sync", invocationID="s", payload={"n": 1.50}, attributes={"a": "b"})
        assert (response.status, response.data["state"], response.data["payload"]) == (200, "succeeded", {"n": 1.5})
        assert (response.data["payloadEncoding"], response.data["worker"]) == ("json", "f-worker")
        binary = await api.invoke(function, mode="sync", contentType="image/png", payload="AAEC")
        assert (binary.data["payload"], binary.data["payloadEncoding"]) == ("AAEC", "base64")
        replay = await api.invoke(function, mode="sync", invocationID="s", payload={"n": 1.5}, attributes={"a": "b"})
        assert (replay.status, replay.data["payload"]) == (200, {"n": 1.5})
    assert (backend.invocations[0].body, backend.invocations[1].body) == (b'{"n": 1.5}', b"\x00\x01\x02")
    assert len(backend.invocations) == 2


async def test_numbers_in_the_payload_are_preserved(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    body = f'{{"serverlessRequestID": {json.dumps(function)}, "payload": [1.00, 123456789012345678901234567890]}}'
    sent = await api.request("POST", INVOCATIONS_PATH, data=body, headers={"Content-Type": "application/json"})
    assert sent.status == 202, sent
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: bool(backend.invocations), "the function was called")
    assert backend.invocations[0].body == b"[1.00, 123456789012345678901234567890]"


async def test_sync_invocation_without_reply_is_504_and_finishes_later(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    late = await api.invoke(function, mode="sync", timeoutSeconds=0.2)
    assert (late.status, late.error["code"]) == (504, "sync_timeout")
    (detail,) = late.error["details"]
    assert detail["field"] == "invocationID"
    async with backend.running_workers(), backend.running_result_store():
        await eventually(lambda: detail["value"] in backend.stored_results, "the invocation has finished")

        async def has_succeeded() -> bool:
            return bool((await api.get(detail["value"])).data["state"] == "succeeded")

        await until(has_succeeded, "the API returns the result")


async def test_lost_reply_is_replaced_by_the_record(
    api: ApiReplica, function: str, backend: FakeServerlessBackend
) -> None:
    backend.sends_replies = False
    async with backend.running_workers(), backend.running_result_store():
        response = await api.invoke(function, mode="sync", payload="x")
    assert (response.status, response.data["payload"]) == (200, "x")


async def test_sync_replay_waits_for_the_running_invocation(
    start_api: StartApi, function: str, backend: FakeServerlessBackend
) -> None:
    one, other, with_short_wait = (
        await start_api(),
        await start_api(),
        await start_api(invocations=InvocationSettings(max_sync_wait_seconds=1)),
    )
    first = asyncio.create_task(one.invoke(function, mode="sync", invocationID="r", payload=7))

    async def is_recorded() -> bool:
        return await backend.records.get("r") is not None

    await until(is_recorded, "the first request is recorded")
    second = asyncio.create_task(other.invoke(function, mode="sync", invocationID="r", payload=7))
    late = await with_short_wait.invoke(function, mode="sync", invocationID="r", payload=7)
    assert late.status == 504, "no worker runs yet"
    async with backend.running_workers(), backend.running_result_store():
        replay = await other.invoke(function, mode="sync", invocationID="r", payload=7)
    assert (replay.status, replay.data["payload"]) == (200, 7)
    assert {(await first).status, (await second).status} <= {200, 504}
    assert len(backend.invocations) == 1


@pytest.mark.parametrize("state", [RecordState.DISPATCHED, RecordState.RUNNING])
async def test_replay_returns_the_current_state(
    api: ApiReplica, function: str, backend: FakeServerlessBackend, state: RecordState
) -> None:
    await api.invoke(function, invocationID="i")
    await backend.advance_record("i", state, "w-1")
    replay = await api.invoke(function, invocationID="i")
    assert (replay.status, replay.data["state"], replay.data["worker"]) == (200, state, "w-1")


async def test_unreachable_nats_is_503_and_other_routes_work(start_api: StartApi, function: str) -> None:
    api = await start_api(
        f"nats://127.0.0.1:{free_port()}",
        unreachable=True,
        invocations=InvocationSettings(result_query_timeout_seconds=1),
    )
    rejected = await api.invoke(function)
    assert (rejected.status, int(rejected.headers["Retry-After"]) >= 1) == (503, True)
    assert "NATS" in rejected.error["message"]
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

        async def call(caller: int) -> None:
            number = 0
            while not done.is_set():
                number += 1
                response = await api.invoke(function, invocationID=f"k-{caller}-{number}")
                assert response.status in (202, 429, 503), response
                if response.status == 202:
                    accepted.add(response.data["invocationID"])

        callers = [asyncio.create_task(call(number)) for number in range(4)]
        await eventually(lambda: len(accepted) > 20, "invocations are accepted")
        await asyncio.to_thread(_restart, server)
        before = len(accepted)
        await eventually(lambda: len(accepted) > before + 20, "invocations are accepted after the restart")
        done.set()
        await asyncio.gather(*callers)
        async with (
            serverless_backend(account_options(account)) as backend,
            backend.running_workers(),
            backend.running_result_store(),
        ):
            await eventually(lambda: accepted <= set(backend.stored_results), "every accepted invocation has a result")


def _restart(server: NatsServer) -> None:
    server.processes.stop("nats")
    server.start()
