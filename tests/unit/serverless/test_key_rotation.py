"""A rotation of the ticket key under load loses no result, although processes read the new keys at different times."""

import asyncio
import random

from msgspec import Raw

from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.runtime_api.invocations.requests import Invoke
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.serverless.in_memory_nats import InMemoryNats, NoFaults
from tests.unit.serverless.simulated_processes import ServerlessPlane, SimulatedFramework, SimulatedFunctions

OLD, NEW = b"o" * 32, b"n" * 32
STEPS = ([OLD, NEW], [NEW, OLD], [NEW])
"""The content of the key file after each step of the documented rotation."""


@on_fake_time
async def test_rotation_under_load_loses_no_result() -> None:
    random.seed(1)
    rng, keyrings = random.Random(1), list[TicketKeyring]()  # noqa: S311
    framework = SimulatedFramework(rng, durations=(0.0, 0.1, 1.0), failure_rate=0.0)
    plane = ServerlessPlane(InMemoryNats(), NoFaults(), SimulatedFunctions({"f"}), framework)

    def new_keyring() -> TicketKeyring:
        keyrings.append(TicketKeyring([OLD]))
        return keyrings[-1]

    plane.new_keyring = new_keyring
    await plane.create_streams()
    (api, service), worker = plane.start_api("api"), plane.start_worker("worker", "f")
    others = plane.start_activator("activator", leads=True), plane.start_result_store("store"), worker
    ids = [f"i{number}" for number in range(400)]

    async def rotate() -> None:
        for keys in STEPS:
            await asyncio.sleep(30)  # longer than the invocations of this test run
            for keyring in rng.sample(keyrings, len(keyrings)):
                await asyncio.sleep(rng.uniform(0, 3))
                keyring.replace(keys)

    rotation = asyncio.create_task(rotate())
    for each in ids:
        request = Invoke(
            invocation_id=each,
            serverless_request_id="f",
            mode="sync" if rng.random() < 0.5 else "async",
            payload=Raw(b"1"),
            timeout_seconds=20.0,
        )
        api.spawn(service.invoke(request))
        await asyncio.sleep(0.4)
    await rotation
    await asyncio.sleep(60)
    states = {each: row.state for each, row in plane.results.rows.items()}
    for process in (api, *others):
        process.kill()
    await asyncio.sleep(0)
    assert states.keys() == set(ids)
    assert set(states.values()) == {ResultState.SUCCEEDED.value}
