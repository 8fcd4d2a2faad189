"""A warm invocation needs six acknowledged writes to NATS and no read."""

import asyncio
import random

from msgspec import Raw

from gpu_runtime.runtime_api.invocations.requests import Invoke
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.in_memory_nats import InMemoryConnection, InMemoryNats, NoFaults
from tests.unit.serverless.simulated_processes import (
    TOPOLOGY,
    ServerlessPlane,
    SimulatedFramework,
    SimulatedFunctions,
    simulated_function_id,
)


class RequestRecorder(NoFaults):
    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def before_request(self, connection: InMemoryConnection, subject: str) -> None:
        self.requests.append((connection.name, subject))


class FreeWorkers(random.Random):
    """Workers report that no invocation is in flight."""

    def randint(self, a: int, b: int) -> int:
        return min(a, b)


@on_fake_time
async def test_warm_invocation_needs_six_writes_and_no_read() -> None:
    network = RequestRecorder()
    framework = SimulatedFramework(FreeWorkers(1), durations=(0.01,), failure_rate=0.0)
    plane = ServerlessPlane(InMemoryNats(), network, SimulatedFunctions({"f"}), framework)
    await plane.create_streams()
    process, service = plane.start_api("api")
    others = (
        plane.start_activator("activator", leads=False),
        plane.start_worker("worker", "f"),
        plane.start_result_store("store"),
    )
    for invocation_id in ("cold", "warm"):
        await asyncio.sleep(3)
        network.requests.clear()
        request = Invoke(
            invocation_id=invocation_id, serverless_request_id="f", mode="sync", payload=Raw(b"1"), timeout_seconds=30.0
        )
        view, _ = await service.invoke(request)
        assert view.state == "succeeded"
    await asyncio.sleep(1)
    for each in (process, *others):
        each.kill()
    record, subjects = TOPOLOGY.record_bucket.subject("warm"), TOPOLOGY.subjects
    assert network.requests == [
        ("api", record),
        ("api", subjects.invoke(simulated_function_id("f"))),
        ("activator", subjects.dispatch(simulated_function_id("f"))),
        ("worker", record),
        ("worker", subjects.result(simulated_function_id("f"))),
        ("store", record),
    ]
