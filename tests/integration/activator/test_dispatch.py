"""Invocations on their way into their functions' queues."""

import asyncio
import logging

import msgspec
import pytest
from msgspec import structs

from gpu_runtime.activator.main import Activator
from gpu_runtime.activator.settings import Dispatching
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import REVISION, Known, Stage
from gpu_runtime.contract.messages.message_codec import decode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.contract.messages.worker_event import WorkerEventKind
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.stream_admin import consumer_load
from gpu_runtime.jetstream.stream_messages import first_kept
from gpu_runtime.kube.meta import Key
from tests.integration.activator.plane import UNITS, Plane, Sidecar, nats_settings, until


async def test_an_invocation_becomes_a_dispatch_whose_record_says_so(plane: Plane) -> None:
    await plane.function("echo", maxWorkers=1)
    async with plane.activator():
        sent = await plane.accept("echo", body=b'{"n": 1.10}')
        await until(lambda: _has(plane, "echo", 1), "it was dispatched")
        kept = await first_kept(
            plane.nats, plane.topology.stream_name(Queue.DISPATCH), "runtime.serverless.dispatch.*", 1
        )
        assert kept
        dispatch = decode(kept.data, Dispatch)
        assert dispatch.invocation == sent
        assert dispatch.deadline == sent.deadline
        entry = await plane.records.get(sent.invocation_id)
        assert entry
        assert kept.headers[REVISION] == str(entry.revision)
        assert (await plane.record(sent.invocation_id)).stage is Stage.DISPATCHED
        assert (await consumer_load(plane.nats, plane.topology.work("echo"))).waiting == 1
        await until(lambda: _handled(plane, "echo"), "it left its first queue")


async def test_where_a_worker_is_known_to_be_free_the_dispatch_alone_is_stored(plane: Plane) -> None:
    await plane.function("warm", maxWorkers=1)
    async with plane.activator() as activator:
        await Sidecar(plane, "warm", "warm").say(WorkerEventKind.REGISTERED)
        await until(lambda: _heard(activator, Key(UNITS, "warm")), "the worker was heard")
        sent = [await plane.accept("warm") for _ in range(2)]
        await until(lambda: _has(plane, "warm", 2), "both were dispatched")
        stages = [(await plane.record(each.invocation_id)).stage for each in sent]
        assert sorted(stages) == [Stage.DISPATCHED, Stage.QUEUED], "the one place was given away once"


async def test_what_was_cancelled_ends_so_although_the_dispatch_was_stored_alone(plane: Plane) -> None:
    await plane.function("warm", maxWorkers=1)
    async with plane.activator() as activator:
        await Sidecar(plane, "warm", "warm").say(WorkerEventKind.REGISTERED)
        await until(lambda: _heard(activator, Key(UNITS, "warm")), "the worker was heard")
        sent = await plane.accept("warm")
        await until(lambda: _has(plane, "warm", 1), "it was dispatched")
        await plane.cancel(sent)
        assert (await plane.result(sent)).state is ResultState.CANCELLED


async def test_a_second_delivery_of_what_is_dispatched_dispatches_nothing_more(plane: Plane) -> None:
    await plane.function("twice", maxWorkers=1)
    async with plane.activator():
        sent = await plane.accept("twice")
        await until(lambda: _has(plane, "twice", 1), "it was dispatched")
        await plane.send(sent, Known(await plane.record(sent.invocation_id), revision=1))
        await plane.send(sent, None)
        await until(lambda: _handled(plane, "twice"), "all of them are handled")
        assert await plane.waiting("twice") == 1


async def test_what_was_cancelled_is_not_dispatched_and_has_its_result(plane: Plane) -> None:
    await plane.function("calm", maxWorkers=1)
    sent = await plane.accept("calm")
    await plane.cancel(sent)
    async with plane.activator():
        assert (await plane.result(sent)).state is ResultState.CANCELLED
        assert await plane.waiting("calm") == 0


async def test_what_comes_too_late_expires(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await plane.function("late", maxWorkers=1)
    sent = await plane.accept("late", seconds=0.001)
    async with plane.activator():
        result = await plane.result(sent)
        assert (result.state, result.failure and result.failure.failure_class) == (
            ResultState.EXPIRED,
            FailureClass.TIMED_OUT,
        )
    said = [vars(each) for each in caplog.records if each.name == "gpu_runtime.activator.terminal_results"]
    assert [(each["invocationID"], each["function"]) for each in said] == [(sent.invocation_id, "late")]


async def test_an_invocation_of_no_function_fails_and_tells_the_caller_who_waits(plane: Plane) -> None:
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    await plane.nats.subscribe("caller.inbox", lambda message: heard.put_nowait(message.data))
    async with plane.activator():
        sent = await plane.accept("nobody", mode="sync", reply_to="caller.inbox")
        result = await plane.result(sent)
        assert result.failure
        assert result.failure.failure_class is FailureClass.FUNCTION_GONE
        assert msgspec.json.decode(await asyncio.wait_for(heard.get(), 60))["state"] == "failed"


async def test_a_function_that_the_cache_hears_of_late_is_waited_for(plane: Plane) -> None:
    async with plane.activator(dispatching=Dispatching(unknown_seconds=600)):
        sent = await plane.accept("soon")
        await plane.function("soon", maxWorkers=1)
        await until(lambda: _has(plane, "soon", 1), "it was dispatched")
        assert sent.invocation_id not in plane.results


async def test_a_message_that_cannot_be_read_is_a_dead_letter(plane: Plane) -> None:
    async with plane.activator():
        await plane.publisher.publish(Outgoing(plane.topology.subjects.invoke("odd"), b"not JSON"))
        stream = plane.topology.dead_letters.name

        async def buried() -> bool:
            return await first_kept(plane.nats, stream, plane.topology.subjects.all_dead_letters, 1) is not None

        await until(buried, "there is a dead letter")
        kept = await first_kept(plane.nats, stream, plane.topology.subjects.all_dead_letters, 1)
        assert kept
        letter = decode(kept.data, DeadLetter)
        assert (letter.data, letter.failure_class) == (b"not JSON", FailureClass.BAD_MESSAGE)
        await until(lambda: _handled(plane, "odd"), "it left its queue")


async def test_a_full_queue_holds_up_its_own_function_alone(plane: Plane) -> None:
    await plane.function("full", maxWorkers=1)
    await plane.function("free", maxWorkers=1)
    usual = nats_settings(plane.nats_url)
    narrow = structs.replace(usual, streams=structs.replace(usual.streams, queued_per_function=1))
    async with plane.activator(nats=narrow):
        await plane.accept("full")
        await until(lambda: _has(plane, "full", 1), "one was dispatched")
        second = await plane.accept("full")
        await plane.accept("free")
        await until(lambda: _has(plane, "free", 1), "the other function's was dispatched")
        assert await plane.waiting("full", Queue.INVOKE) == 1
        assert second.invocation_id not in plane.results


async def test_what_cannot_be_dispatched_as_often_as_it_may_be_tried_is_a_dead_letter(plane: Plane) -> None:
    await plane.function("stuck", maxWorkers=1)
    usual = nats_settings(plane.nats_url)
    narrow = structs.replace(usual, streams=structs.replace(usual.streams, queued_per_function=1))
    async with plane.activator(nats=narrow, dispatching=Dispatching(attempts=2)):
        await plane.accept("stuck", seconds=600)
        await until(lambda: _has(plane, "stuck", 1), "one was dispatched")
        second = await plane.accept("stuck", seconds=600)
        result = await plane.result(second)
        assert result.state is ResultState.DEAD_LETTERED
        await until(lambda: _handled(plane, "stuck"), "it left its first queue")


async def test_two_replicas_share_the_work_and_dispatch_each_once(plane: Plane) -> None:
    await plane.function("many", maxWorkers=1)
    async with connection(Options((plane.nats_url,))) as other, plane.activator(), plane.activator(other):
        sent = [await plane.accept("many") for _ in range(40)]
        await until(lambda: _has(plane, "many", len(sent)), "all were dispatched")
        await until(lambda: _handled(plane, "many"), "they left their first queue")
        assert await plane.waiting("many") == len(sent)


async def _has(plane: Plane, request_id: str, count: int) -> bool:
    return await plane.waiting(request_id) == count


async def _handled(plane: Plane, request_id: str) -> bool:
    return await plane.waiting(request_id, Queue.INVOKE) == 0


async def _heard(activator: Activator, worker: Key) -> bool:
    return activator.workers.of(worker) is not None
