"""Invocations are taken once, refused with the reason, and answered to whoever waits."""

import asyncio
import base64
import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Stage
from gpu_runtime.contract.messages.limits import BODY_LIMIT
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.publisher import Publisher, Stored
from gpu_runtime.jetstream.stream_admin import messages_by_subject
from gpu_runtime.runtime_api.invocations.invocation_admission import Terms, accepted, enqueued
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.settings import Invocations
from localcluster.control_plane import free_port
from localcluster.nats_server import NatsServer, nats_server
from tests.conftest import available
from tests.integration.jetstream.conftest import options
from tests.integration.kube.waiting import eventually
from tests.integration.runtime_api.invocations.conftest import PATH, Api, Apis, Cluster, other_side_of
from tests.integration.runtime_api.invocations.plane import OtherSide, now
from tests.integration.runtime_api.live import until


async def queued(other_side: OtherSide, function: str) -> int:
    subject = other_side.topology.subjects.invoke(function)
    counts = await messages_by_subject(
        other_side.connection,
        other_side.topology.stream_name(Queue.INVOKE),
        other_side.topology.subjects.all_of(Queue.INVOKE),
    )
    return counts.get(subject, 0)


async def test_an_invocation_is_taken_and_its_replay_is_the_same_one(
    api: Api, function: str, other_side: OtherSide
) -> None:
    asked: dict[str, Any] = {"invocationID": "inv-1", "payload": {"a": 1, "b": [2]}, "timeoutSeconds": 60}
    first = await api.invoke(function, **asked)
    again = await api.invoke(function, **asked | {"payload": {"b": [2], "a": 1}})
    assert (first.status, first.data["state"], again.status, again.data) == (202, "queued", 200, first.data)
    assert await queued(other_side, function) == 1
    other = await api.invoke(function, **asked | {"payload": {"a": 2}})
    assert (other.status, other.error["code"]) == (409, "invocation_reused")
    assert (api.counted("async", "accepted"), api.counted("async", "replayed")) == (1, 1)
    assert api.counted("async", "invocation_reused") == 1


async def test_without_an_id_one_is_made(api: Api, function: str) -> None:
    one, other = await api.invoke(function), await api.invoke(function)
    assert (one.status, other.status) == (202, 202)
    assert one.data["invocationID"] != other.data["invocationID"]


async def test_of_a_hundred_duplicates_on_two_replicas_one_is_accepted(
    apis: Apis, function: str, other_side: OtherSide
) -> None:
    replicas = [await apis(), await apis()]
    answers = await asyncio.gather(
        *(replicas[n % 2].invoke(function, invocationID="same", payload=1) for n in range(100))
    )
    assert Counter(answer.status for answer in answers) == {202: 1, 200: 99}
    assert await queued(other_side, function) == 1


def recorded_only(function: str, invocation_id: str) -> tuple[Invocation, InvocationRecord]:
    """What a replica has written that is killed before it sends the message."""
    request = Invoke(invocation_id=invocation_id, serverless_request_id=function)
    return enqueued(accepted(request, Terms()), now())


async def test_who_recorded_it_and_died_is_helped_by_who_asks_again(
    api: Api, function: str, other_side: OtherSide
) -> None:
    _, record = recorded_only(function, "half")
    await other_side.state.create("half", encode(record))
    assert await queued(other_side, function) == 0
    answers = [await api.invoke(function, invocationID="half") for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 200]
    assert await queued(other_side, function) == 1


@dataclass(frozen=True)
class LateRefusal(Publisher):
    """Somebody else takes the record back in the very moment before this one sends."""

    other_side: OtherSide | None = None

    async def publish(self, message: Outgoing) -> Stored:
        if self.other_side is not None and message.message_id == "race":
            await self.other_side.forget("race")
        return await super().publish(message)


async def test_what_is_in_the_queue_has_its_record_also_after_a_race_with_a_refusal(
    api: Api, function: str, other_side: OtherSide
) -> None:
    invocation, record = recorded_only(function, "race")
    await other_side.state.create("race", encode(record))
    publisher = LateRefusal(other_side.connection, other_side=other_side)
    ingress = replace(api.services.invocations.ingress, publisher=publisher)
    assert not (await ingress.take(invocation)).new
    assert await queued(other_side, function) == 1
    assert await other_side.record("race") == record


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


async def test_a_wrong_request_is_refused_with_the_field(api: Api, function: str, other_side: OtherSide) -> None:
    for what, (change, field) in WRONG.items():
        refused = await api.ask("POST", PATH, json={"serverlessRequestID": function} | change)
        assert (refused.status, refused.error["details"][0]["field"]) == (400, field), (what, refused)
    missing = await api.ask("POST", PATH, json={"mode": "async"})
    assert (missing.status, missing.error["details"][0]["field"]) == (400, "serverlessRequestID")
    assert await queued(other_side, function) == 0


async def test_a_body_above_the_limit_is_refused_with_the_limit(api: Api, function: str) -> None:
    largest = base64.b64encode(bytes(BODY_LIMIT)).decode()
    taken = await api.invoke(function, contentType="application/octet-stream", payload=largest)
    assert taken.status == 202, taken
    larger = base64.b64encode(bytes(BODY_LIMIT + 1)).decode()
    refused = await api.invoke(function, contentType="application/octet-stream", payload=larger)
    assert (refused.status, str(BODY_LIMIT) in refused.error["message"]) == (413, True)
    huge = await api.invoke(function, payload="x" * 800 * 1024)
    assert (huge.status, "786432" in huge.error["message"]) == (413, True)


async def test_a_function_must_be_there_and_be_the_only_one_of_its_name(api: Api, cluster: Cluster) -> None:
    cluster.unit("plain")
    cluster.unit("off", serverless={"enabled": False, "requestID": "off"})
    cluster.unit("worker", serverless={"enabled": True, "requestID": "lonely", "workerOf": "gone"})
    for unknown in ("none-such", "off", "lonely"):
        refused = await api.invoke(unknown)
        assert (refused.status, unknown in refused.error["message"]) == (404, True)
    cluster.function("twice")
    assert (await api.invoke("twice")).status == 202
    cluster.function("twice")

    async def refuses() -> bool:
        return (await api.invoke("twice")).status == 409

    await until(refuses, "two functions of one requestID are noticed")


async def test_a_function_can_be_called_as_soon_as_it_is_made(api: Api, cluster: Cluster) -> None:
    for _ in range(5):
        assert (await api.invoke(await asyncio.to_thread(cluster.function))).status == 202


async def test_too_deep_a_queue_is_429_and_leaves_nothing_behind(
    api: Api, function: str, cluster: Cluster, other_side: OtherSide
) -> None:
    answers = await asyncio.gather(*(api.invoke(function, invocationID=f"n-{n}") for n in range(160)))
    assert Counter(answer.status for answer in answers) == {202: 150, 429: 10}
    refused = next(n for n, answer in enumerate(answers) if answer.status == 429)
    assert int(answers[refused].headers["Retry-After"]) >= 1
    assert await other_side.state.get(f"n-{refused}") is None
    async with other_side.storing():
        assert (await api.get(f"n-{refused}")).status == 404
    assert (await api.invoke(cluster.function())).status == 202, "another function does not notice"
    async with other_side.working(), other_side.storing():
        await eventually(lambda: len(other_side.stored) >= 150, "the queue gets empty")
        assert (await api.invoke(function, invocationID=f"n-{refused}")).status == 202


async def test_a_synchronous_call_is_answered_with_what_the_function_answers(
    api: Api, function: str, other_side: OtherSide
) -> None:
    async with other_side.working(), other_side.storing():
        answer = await api.invoke(function, mode="sync", invocationID="s", payload={"n": 1.50}, attributes={"a": "b"})
        assert (answer.status, answer.data["state"], answer.data["payload"]) == (200, "succeeded", {"n": 1.5})
        assert (answer.data["payloadEncoding"], answer.data["worker"]) == ("json", "f-worker")
        bytes_back = await api.invoke(function, mode="sync", contentType="image/png", payload="AAEC")
        assert (bytes_back.data["payload"], bytes_back.data["payloadEncoding"]) == ("AAEC", "base64")
        again = await api.invoke(function, mode="sync", invocationID="s", payload={"n": 1.5}, attributes={"a": "b"})
        assert (again.status, again.data["payload"]) == (200, {"n": 1.5})
    assert (other_side.called[0].body, other_side.called[1].body) == (b'{"n": 1.5}', b"\x00\x01\x02")
    assert len(other_side.called) == 2


async def test_numbers_reach_the_function_as_they_were_written(api: Api, function: str, other_side: OtherSide) -> None:
    body = f'{{"serverlessRequestID": {json.dumps(function)}, "payload": [1.00, 123456789012345678901234567890]}}'
    sent = await api.ask("POST", PATH, data=body, headers={"Content-Type": "application/json"})
    assert sent.status == 202, sent
    async with other_side.working(), other_side.storing():
        await eventually(lambda: bool(other_side.called), "it is called")
    assert other_side.called[0].body == b"[1.00, 123456789012345678901234567890]"


async def test_a_synchronous_call_without_an_answer_is_504_and_the_result_comes_later(
    api: Api, function: str, other_side: OtherSide
) -> None:
    late = await api.invoke(function, mode="sync", timeoutSeconds=0.2)
    assert (late.status, late.error["code"]) == (504, "sync_timeout")
    (detail,) = late.error["details"]
    assert detail["field"] == "invocationID"
    async with other_side.working(), other_side.storing():
        await eventually(lambda: detail["value"] in other_side.stored, "it ends all the same")

        async def has_ended() -> bool:
            return bool((await api.get(detail["value"])).data["state"] == "succeeded")

        await until(has_ended, "its result can be fetched")


async def test_a_reply_that_got_lost_is_made_good_by_the_record(api: Api, function: str, other_side: OtherSide) -> None:
    other_side.replies = False
    async with other_side.working(), other_side.storing():
        answer = await api.invoke(function, mode="sync", payload="x")
    assert (answer.status, answer.data["payload"]) == (200, "x")


async def test_a_synchronous_replay_waits_for_the_call_that_runs(
    apis: Apis, function: str, other_side: OtherSide
) -> None:
    one, other, impatient = await apis(), await apis(), await apis(invocations=Invocations(sync_wait_seconds=1))
    first = asyncio.create_task(one.invoke(function, mode="sync", invocationID="r", payload=7))

    async def is_recorded() -> bool:
        return await other_side.state.get("r") is not None

    await until(is_recorded, "the first is taken")
    second = asyncio.create_task(other.invoke(function, mode="sync", invocationID="r", payload=7))
    late = await impatient.invoke(function, mode="sync", invocationID="r", payload=7)
    assert late.status == 504, "nobody works yet"
    async with other_side.working(), other_side.storing():
        again = await other.invoke(function, mode="sync", invocationID="r", payload=7)
    assert (again.status, again.data["payload"]) == (200, 7)
    assert {(await first).status, (await second).status} <= {200, 504}
    assert len(other_side.called) == 1


@pytest.mark.parametrize("stage", [Stage.DISPATCHED, Stage.RUNNING])
async def test_a_replay_tells_how_far_it_has_come(api: Api, function: str, other_side: OtherSide, stage: Stage) -> None:
    await api.invoke(function, invocationID="far")
    await other_side.reach("far", stage, "w-1")
    again = await api.invoke(function, invocationID="far")
    assert (again.status, again.data["state"], again.data["worker"]) == (200, stage, "w-1")


async def test_while_nats_is_away_the_api_says_so_and_the_rest_goes_on(apis: Apis, function: str) -> None:
    api = await apis(f"nats://127.0.0.1:{free_port()}", away=True, invocations=Invocations(store_seconds=1))
    refused = await api.invoke(function)
    assert (refused.status, int(refused.headers["Retry-After"]) >= 1) == (503, True)
    assert "NATS" in refused.error["message"]
    assert (await api.get("x")).status == 503
    health = (await api.ask("GET", "/api/v1/health")).data
    assert (health["natsConnected"], health["kubernetesConnected"], health["status"]) == (False, True, "degraded")
    assert "not connected to NATS" in health["error"]
    assert (await api.ask("GET", "/api/v1/gpu-units")).status == 200


async def test_nats_is_killed_in_the_middle_and_nothing_that_was_accepted_is_lost(apis: Apis, function: str) -> None:
    with available(nats_server()) as server:
        account = server.account()
        api = await apis(account.url)
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
        async with other_side_of(options(account)) as other_side, other_side.working(), other_side.storing():
            await eventually(lambda: accepted <= set(other_side.stored), "every accepted one ends")


def _restart(server: NatsServer) -> None:
    server.processes.stop("nats")
    server.start()
