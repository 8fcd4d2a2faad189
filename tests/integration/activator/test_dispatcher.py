"""The dispatcher with real NATS and a real API server: dispatch, cancel, expiry, dead letters and redelivery."""

import asyncio
import logging

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.activator.main import Activator
from gpu_runtime.activator.settings import DispatchSettings
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import REVISION_HEADER, RecordAtRevision, RecordState
from gpu_runtime.contract.messages.message_codec import decode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.contract.messages.worker_event import WorkerEventKind
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.stream_messages import next_message
from gpu_runtime.kube.meta import ObjectKey
from tests.bulk_publish import consumer_info
from tests.integration.activator.activator_harness import (
    UNIT_NAMESPACE,
    ActivatorHarness,
    FakeSidecar,
    nats_settings,
    terminated,
    until,
)


async def test_invocation_is_dispatched_and_its_record_is_updated(harness: ActivatorHarness) -> None:
    await harness.create_function("echo", maxWorkers=1)
    async with harness.activator():
        sent = await harness.accept_invocation("echo", body=b'{"n": 1.10}')
        await until(lambda: _has_backlog(harness, "echo", 1), "the invocation was dispatched")
        message = await next_message(
            harness.nats, harness.topology.stream_name(Stream.DISPATCH), "runtime.serverless.dispatch.*", 1
        )
        assert message
        dispatch = decode(message.data, Dispatch)
        assert dispatch.invocation == sent
        assert dispatch.deadline == sent.deadline
        entry = await harness.records.get(sent.invocation_id)
        assert entry
        assert message.headers[REVISION_HEADER] == str(entry.revision)
        assert (await harness.record(sent.invocation_id)).state is RecordState.DISPATCHED
        assert (await consumer_info(harness.nats, harness.topology.dispatch_consumer(harness.function_id("echo"))))[
            "num_pending"
        ] == 1
        await until(lambda: _is_invoke_stream_empty(harness, "echo"), "the INVOKE stream is empty")


async def register_worker(harness: ActivatorHarness, activator: Activator, name: str) -> None:
    """Send one event of the function's own unit, after the activator knows the pod of the unit."""
    sidecar, key = FakeSidecar(harness, name, name), ObjectKey(UNIT_NAMESPACE, name)
    await sidecar.record_pod()

    async def is_pod_known() -> bool:
        unit = activator.functions.units.store.get(key)
        return unit is not None and unit.status.pod_uid == sidecar.pod_uid

    await until(is_pod_known, "the activator knows the pod")
    await sidecar.publish_event(WorkerEventKind.REGISTERED)
    await until(lambda: _is_observed(activator, key), "an event of the worker was received")


async def test_dispatch_to_a_free_worker_skips_the_record_update(harness: ActivatorHarness) -> None:
    await harness.create_function("warm", maxWorkers=1)
    async with harness.activator() as activator:
        await register_worker(harness, activator, "warm")
        sent = [await harness.accept_invocation("warm") for _ in range(2)]
        await until(lambda: _has_backlog(harness, "warm", 2), "both invocations were dispatched")
        states = [(await harness.record(each.invocation_id)).state for each in sent]
        assert sorted(states) == [RecordState.DISPATCHED, RecordState.QUEUED], (
            "the only free slot must be acquired once"
        )


async def test_cancel_after_a_dispatch_without_record_update_ends_as_cancelled(harness: ActivatorHarness) -> None:
    await harness.create_function("warm", maxWorkers=1)
    async with harness.activator() as activator:
        await register_worker(harness, activator, "warm")
        sent = await harness.accept_invocation("warm")
        await until(lambda: _has_backlog(harness, "warm", 1), "the invocation was dispatched")
        await harness.cancel_invocation(sent)
        assert (await harness.wait_result(sent)).state is ResultState.CANCELLED


async def test_redelivery_of_a_dispatched_invocation_dispatches_once(harness: ActivatorHarness) -> None:
    await harness.create_function("twice", maxWorkers=1)
    async with harness.activator():
        sent = await harness.accept_invocation("twice")
        await until(lambda: _has_backlog(harness, "twice", 1), "the invocation was dispatched")
        await harness.publish_invocation(sent, RecordAtRevision(await harness.record(sent.invocation_id), revision=1))
        await harness.publish_invocation(sent, None)
        await until(lambda: _is_invoke_stream_empty(harness, "twice"), "all INVOKE messages are acknowledged")
        assert await harness.backlog("twice") == 1


async def test_cancelled_invocation_is_not_dispatched_and_has_a_result(harness: ActivatorHarness) -> None:
    await harness.create_function("calm", maxWorkers=1)
    sent = await harness.accept_invocation("calm")
    await harness.cancel_invocation(sent)
    async with harness.activator():
        assert (await harness.wait_result(sent)).state is ResultState.CANCELLED
        assert await harness.backlog("calm") == 0


async def test_invocation_past_its_deadline_expires(
    harness: ActivatorHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await harness.create_function("late", maxWorkers=1)
    sent = await harness.accept_invocation("late", seconds=0.001)
    async with harness.activator() as activator:
        result = await harness.wait_result(sent)
        assert (result.state, result.failure and result.failure.failure_class) == (
            ResultState.EXPIRED,
            FailureClass.TIMED_OUT,
        )
    lines = [vars(each) for each in caplog.records if each.name == "gpu_runtime.activator.terminal_results"]
    assert [(each["invocation_id"], each["function"]) for each in lines] == [(sent.invocation_id, "late")]
    assert terminated(activator) == {("expired", "timed_out", "queued"): 1}


async def test_invocation_of_a_missing_function_fails_and_replies_to_the_sync_caller(harness: ActivatorHarness) -> None:
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    reply_to = harness.topology.subjects.reply(harness.function_id("missing"), "a" * 32, "b" * 32)
    await harness.nats.subscribe(reply_to, lambda message: replies.put_nowait(message.data))
    async with harness.activator():
        sent = await harness.accept_invocation("missing", mode="sync", reply_to=reply_to)
        result = await harness.wait_result(sent)
        assert result.failure
        assert result.failure.failure_class is FailureClass.FUNCTION_GONE
        assert msgspec.json.decode(await asyncio.wait_for(replies.get(), 60))["state"] == "failed"


async def test_dispatcher_waits_for_a_function_that_is_not_cached_yet(harness: ActivatorHarness) -> None:
    async with harness.activator(dispatching=DispatchSettings(unknown_function_grace_seconds=600)):
        sent = await harness.accept_invocation("soon")
        await harness.create_function("soon", maxWorkers=1)
        await until(lambda: _has_backlog(harness, "soon", 1), "the invocation was dispatched")
        assert sent.invocation_id not in harness.results


async def test_undecodable_message_is_dead_lettered(harness: ActivatorHarness) -> None:
    async with harness.activator():
        await harness.publisher.publish(
            OutgoingMessage(harness.topology.subjects.invoke(harness.function_id("odd")), b"not JSON")
        )
        stream = harness.topology.dead_letter_stream.name

        async def has_dead_letter() -> bool:
            return await next_message(harness.nats, stream, harness.topology.subjects.all_dead_letters, 1) is not None

        await until(has_dead_letter, "a dead letter exists")
        message = await next_message(harness.nats, stream, harness.topology.subjects.all_dead_letters, 1)
        assert message
        letter = decode(message.data, DeadLetter)
        assert (letter.data, letter.failure_class) == (b"not JSON", FailureClass.BAD_MESSAGE)
        await until(lambda: _is_invoke_stream_empty(harness, "odd"), "the INVOKE stream is empty")


async def test_full_dispatch_subject_blocks_only_its_own_function(harness: ActivatorHarness) -> None:
    await harness.create_function("full", maxWorkers=1)
    await harness.create_function("free", maxWorkers=1)
    settings = nats_settings(harness.nats_url)
    limited = structs.replace(settings, streams=structs.replace(settings.streams, max_messages_per_subject=1))
    async with harness.activator(nats=limited):
        await harness.accept_invocation("full")
        await until(lambda: _has_backlog(harness, "full", 1), "the first invocation was dispatched")
        second = await harness.accept_invocation("full")
        await harness.accept_invocation("free")
        await until(lambda: _has_backlog(harness, "free", 1), "the invocation of the other function was dispatched")
        assert await harness.backlog("full", Stream.INVOKE) == 1
        assert second.invocation_id not in harness.results


async def test_undispatchable_invocation_is_dead_lettered_after_max_deliveries(harness: ActivatorHarness) -> None:
    await harness.create_function("stuck", maxWorkers=1)
    settings = nats_settings(harness.nats_url)
    limited = structs.replace(settings, streams=structs.replace(settings.streams, max_messages_per_subject=1))
    async with harness.activator(nats=limited, dispatching=DispatchSettings(max_deliveries=2)):
        await harness.accept_invocation("stuck", seconds=600)
        await until(lambda: _has_backlog(harness, "stuck", 1), "the first invocation was dispatched")
        second = await harness.accept_invocation("stuck", seconds=600)
        result = await harness.wait_result(second)
        assert result.state is ResultState.DEAD_LETTERED
        await until(lambda: _is_invoke_stream_empty(harness, "stuck"), "the INVOKE stream is empty")


async def test_two_replicas_dispatch_each_invocation_once(harness: ActivatorHarness) -> None:
    await harness.create_function("many", maxWorkers=1)
    async with (
        connect_nats(ConnectionOptions((harness.nats_url,))) as other,
        harness.activator(),
        harness.activator(other),
    ):
        sent = [await harness.accept_invocation("many") for _ in range(40)]
        await until(lambda: _has_backlog(harness, "many", len(sent)), "all invocations were dispatched")
        await until(lambda: _is_invoke_stream_empty(harness, "many"), "the INVOKE stream is empty")
        assert await harness.backlog("many") == len(sent)


async def _has_backlog(harness: ActivatorHarness, request_id: str, count: int) -> bool:
    return await harness.backlog(request_id) == count


async def _is_invoke_stream_empty(harness: ActivatorHarness, request_id: str) -> bool:
    return await harness.backlog(request_id, Stream.INVOKE) == 0


async def _is_observed(activator: Activator, worker: ObjectKey) -> bool:
    return activator.liveness.status_of(worker) is not None
