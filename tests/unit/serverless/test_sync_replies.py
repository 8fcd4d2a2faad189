"""The caller of a synchronous invocation gets the result at once, whichever process ends the invocation."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from msgspec import Raw

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import Started
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.runtime_api.invocations.requests import Invoke
from gpu_runtime.runtime_api.invocations.service import InvocationService
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.in_memory_nats import InMemoryConnection, InMemoryNats, NoFaults
from tests.unit.serverless.simulated_processes import (
    TOPOLOGY,
    InMemoryResults,
    ServerlessPlane,
    SimulatedFramework,
    SimulatedFunctions,
    simulated_function_id,
)


class Scene:
    """A NATS server, an API and a framework. No result store runs, so only a reply ends the wait of the caller."""

    def __init__(self) -> None:
        framework = SimulatedFramework(random.Random(1), durations=(0.01,), failure_rate=0.0)  # noqa: S311
        functions = SimulatedFunctions({"f"})
        self.plane = ServerlessPlane(InMemoryNats(), NoFaults(), functions, framework, InMemoryResults())
        self.connection = cast(NatsConnection, InMemoryConnection(self.plane.server, "test"))
        self.processes: list[Any] = []

    async def start(self) -> InvocationService:
        await self.plane.create_streams()
        process, service = self.plane.start_api("api")
        self.processes.append(process)
        await asyncio.sleep(0.1)
        return service

    def stop(self) -> None:
        for process in self.processes:
            process.kill()


async def cancelled_by_the_api(scene: Scene, service: InvocationService) -> None:
    await service.cancel("i")


async def terminated_by_the_activator(scene: Scene, service: InvocationService) -> None:
    scene.plane.functions.existing.clear()
    scene.processes.append(scene.plane.start_activator("activator", leads=False))


async def dead_lettered_by_the_activator(scene: Scene, service: InvocationService) -> None:
    """The queue of the function in DISPATCH is full, and the first delivery is the last one."""
    scene.plane.server.streams[TOPOLOGY.stream_name(Stream.DISPATCH)].config["max_msgs_per_subject"] = 1
    await Publisher(scene.connection).publish(
        OutgoingMessage(TOPOLOGY.subjects.dispatch(simulated_function_id("f")), b"{}")
    )
    scene.processes.append(scene.plane.start_activator("activator", leads=False, max_deliveries=1))


async def finished_by_a_worker(scene: Scene, service: InvocationService) -> None:
    scene.processes.append(scene.plane.start_activator("activator", leads=False))
    scene.processes.append(scene.plane.start_worker("worker", "f"))


async def dead_lettered_by_a_worker(scene: Scene, service: InvocationService) -> None:
    scene.plane.framework.failure_rate = scene.plane.framework.crash_rate = 1.0
    await finished_by_a_worker(scene, service)


Ends = Callable[[Scene, InvocationService], Awaitable[None]]
ENDS: list[tuple[Ends, str, FailureClass | None]] = [
    (cancelled_by_the_api, "cancelled", FailureClass.CANCELLED),
    (terminated_by_the_activator, "failed", FailureClass.FUNCTION_GONE),
    (dead_lettered_by_the_activator, "dead_lettered", FailureClass.INTERNAL),
    (finished_by_a_worker, "succeeded", None),
    (dead_lettered_by_a_worker, "dead_lettered", FailureClass.FUNCTION_CRASHED),
]


@pytest.mark.parametrize(("end", "state", "failure_class"), ENDS, ids=[each[0].__name__ for each in ENDS])
@on_fake_time
async def test_caller_gets_the_result_from_the_process_that_ends_the_invocation(
    end: Ends, state: str, failure_class: FailureClass | None
) -> None:
    random.seed(1)
    scene = Scene()
    service = await scene.start()
    request = Invoke(invocation_id="i", serverless_request_id="f", mode="sync", payload=Raw(b"1"), timeout_seconds=30.0)
    try:
        caller = asyncio.create_task(service.invoke(request))
        await asyncio.sleep(0.1)
        await end(scene, service)
        view, _ = await caller
    finally:
        scene.stop()
    assert view.state == state
    assert (view.failure.failure_class if view.failure else None) == failure_class
    assert not scene.plane.results.rows, "the caller must not depend on the result store"


@on_fake_time
async def test_activator_dead_letters_no_running_invocation() -> None:
    """Every acknowledgement of the activators was lost, so the message reached the maximum number of deliveries."""
    random.seed(1)
    scene = Scene()
    service = await scene.start()
    await service.invoke(Invoke(invocation_id="i", serverless_request_id="f", payload=Raw(b"1"), timeout_seconds=30.0))
    await service.records.apply("i", Started(scene.plane.now(), "w"), None)
    scene.processes.append(scene.plane.start_activator("activator", leads=False, max_deliveries=0))
    await asyncio.sleep(1)
    scene.stop()
    streams = scene.plane.server.streams
    assert not streams[TOPOLOGY.dead_letter_stream.name].messages
    assert not streams[TOPOLOGY.stream_name(Stream.RESULT)].messages
    assert not streams[TOPOLOGY.stream_name(Stream.INVOKE)].messages
