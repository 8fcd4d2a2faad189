"""Workers that come with the load and go without it, from stock and back to it."""

import asyncio
import time
from functools import partial
from pathlib import Path
from signal import Signals

from lightkube.resources.events_v1 import Event

from gpu_runtime.activator.main import Activator
from gpu_runtime.activator.settings import API, Scaling
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from localcluster.nats_server import NatsServer
from tests.integration.activator.plane import IDENTITY, STOCK, UNITS, ActivatorProcess, Fleet, Plane, until
from tests.integration.controller_manager.conftest import UNIT, Object, as_dict

SOURCE = "runtime.lokiwager.io/source-stock-uid"


async def test_work_for_a_stopped_function_makes_a_worker_from_stock(plane: Plane) -> None:
    await plane.stock("warm", 1)
    await plane.function("warm", maxWorkers=3, idleTimeoutSeconds=60, spec={"image": "python:3.13"})
    seldom = Scaling(pass_seconds=600)  # who makes the worker was told that there is work
    async with plane.activator(scaling=seldom), Fleet(plane, "warm").running() as fleet:
        sent = await plane.accept("warm")
        await until(partial(_workers, plane, "warm", 1), "a worker exists")
        assert (await plane.result(sent)).state is ResultState.SUCCEEDED
    (worker,) = await plane.workers("warm")
    assert worker["metadata"]["name"] == "warm-w0"
    assert worker["metadata"]["annotations"][SOURCE]
    assert worker["spec"]["memory"] == "2Gi"
    assert (worker["spec"]["image"], worker["spec"]["serverless"]["requestID"]) == ("python:3.13", "warm")
    assert fleet.done == [sent.invocation_id]
    assert await plane.units(STOCK, "warm") == []


async def test_without_stock_a_worker_is_made_cold_in_the_functions_envelope(plane: Plane) -> None:
    await plane.function("cold", maxWorkers=1)
    async with plane.activator():
        await plane.accept("cold")
        await until(partial(_workers, plane, "cold", 1), "a worker exists")
    (worker,) = await plane.workers("cold")
    assert (worker["spec"]["memory"], worker["spec"]["gpu"], worker["spec"]["running"]) == ("1Gi", 1, True)
    assert SOURCE not in worker["metadata"].get("annotations", {})


async def test_a_burst_has_as_many_workers_as_the_function_may_have_and_then_none(plane: Plane) -> None:
    await plane.stock("burst", 2)
    await plane.function("burst", maxWorkers=3, concurrency=2)
    async with plane.activator(), Fleet(plane, "burst", concurrency=2).running() as fleet:
        fleet.go_on.clear()
        sent = [await plane.accept("burst") for _ in range(20)]
        await until(partial(_workers, plane, "burst", 3), "three workers exist")
        await until(lambda: _in_flight(fleet, 6), "all of them work")
        fleet.go_on.set()
        for each in sent:
            assert (await plane.result(each)).state is ResultState.SUCCEEDED
        await until(partial(_workers, plane, "burst", 0), "all workers are gone")
        await until(lambda: _stocked(plane, "burst", 2), "the stock is back")
    assert fleet.most == 3
    assert sorted(fleet.done) == sorted(each.invocation_id for each in sent)
    assert {each["spec"]["memory"] for each in await plane.units(STOCK, "burst")} == {"2Gi"}


async def test_two_that_both_think_they_lead_make_no_more_workers_than_one(plane: Plane) -> None:
    await plane.stock("pair", 4)
    await plane.function("pair", maxWorkers=2)
    async with (
        connection(Options((plane.nats_url,))) as other,
        plane.activator(),
        plane.activator(other),
        Fleet(plane, "pair").running() as fleet,
    ):
        for _ in range(2):
            sent = [await plane.accept("pair") for _ in range(10)]
            for each in sent:
                assert (await plane.result(each)).state is ResultState.SUCCEEDED
            await until(partial(_workers, plane, "pair", 0), "all workers are gone")
            await until(lambda: _stocked(plane, "pair", 4), "the stock is back")
            for stock in await plane.units(STOCK, "pair"):
                await plane.ready(stock["metadata"]["name"])
    assert fleet.most <= 2
    assert plane.repeated == []


async def test_while_the_runtime_api_is_away_stock_is_waited_for_and_nothing_is_made_cold(plane: Plane) -> None:
    await plane.stock("away", 1)
    await plane.function("away", maxWorkers=1, idleTimeoutSeconds=60)
    async with plane.activator(api=API(url="http://127.0.0.1:9")) as activator:
        await plane.accept("away")
        await until(lambda: _tried(activator), "it was tried")
        assert await plane.workers("away") == []
    async with plane.activator():
        await until(partial(_workers, plane, "away", 1), "a worker exists")
    (worker,) = await plane.workers("away")
    assert worker["metadata"]["annotations"][SOURCE]


async def _tried(activator: Activator) -> bool:
    labels = {"controller": "function", "result": "error"}
    return bool(activator.leading.metrics.registry.get_sample_value("kube_reconciles_total", labels))


async def test_a_worker_with_work_in_hand_is_left_alone(plane: Plane) -> None:
    await plane.function("busy", maxWorkers=2)
    async with plane.activator(), Fleet(plane, "busy").running() as fleet:
        fleet.go_on.clear()
        long = await plane.accept("busy")
        await until(lambda: _in_flight(fleet, 1), "it works")
        short = await plane.accept("busy")
        await until(partial(_workers, plane, "busy", 2), "a second worker exists")
        await until(lambda: _in_flight(fleet, 2), "both work")
        await plane.patch("busy", {"spec": {"serverless": {"maxWorkers": 1}}})
        await until(lambda: _older_than(fleet, 1.5), "the idle timeout is over")
        assert len(await plane.workers("busy")) == 2
        fleet.go_on.set()
        assert {(await plane.result(each)).state for each in (long, short)} == {ResultState.SUCCEEDED}
        await until(partial(_workers, plane, "busy", 0), "all are gone once they are idle")


async def test_workers_that_are_always_kept_are_made_without_work_and_stay(plane: Plane) -> None:
    await plane.function("kept", minAvailableCount=2, maxWorkers=3)
    async with plane.activator(), Fleet(plane, "kept").running() as fleet:
        await until(partial(_workers, plane, "kept", 2), "two workers exist")
        sent = [await plane.accept("kept") for _ in range(6)]
        for each in sent:
            await plane.result(each)
        names = {each["metadata"]["uid"] for each in await plane.workers("kept")}
        await until(lambda: _older_than(fleet, 1.5), "the idle timeout is over")
        assert len(await plane.workers("kept")) >= 2
        assert names & {each["metadata"]["uid"] for each in await plane.workers("kept")}


async def test_a_function_that_is_gone_takes_its_workers_along_and_the_stock_comes_back(plane: Plane) -> None:
    await plane.stock("gone", 1)
    await plane.function("gone", maxWorkers=1, idleTimeoutSeconds=60)
    async with plane.activator(), Fleet(plane, "gone").running():
        await plane.result(await plane.accept("gone"))
        await plane.delete("gone")
        await until(partial(_workers, plane, "gone", 0), "its worker is gone")
        await until(lambda: _stocked(plane, "gone", 1), "the stock is back")


async def test_a_function_that_is_disabled_lets_its_workers_go(plane: Plane) -> None:
    await plane.function("off", maxWorkers=1, idleTimeoutSeconds=60)
    async with plane.activator(), Fleet(plane, "off").running():
        await plane.result(await plane.accept("off"))
        await plane.patch("off", {"spec": {"serverless": {"enabled": False}}})
        await until(partial(_workers, plane, "off", 0), "its worker is gone")


async def test_a_function_with_a_storage_is_woken_for_work_and_sleeps_without(plane: Plane) -> None:
    mounts = [{"name": "models", "mountPath": "/models"}]
    await plane.function("mount", maxWorkers=1, spec={"storageMounts": mounts})
    async with plane.activator(), Fleet(plane, "mount", own=True).running():
        for _ in range(2):
            assert (await plane.result(await plane.accept("mount"))).state is ResultState.SUCCEEDED
            await until(lambda: _asleep(plane, "mount"), "it sleeps")
    assert await plane.workers("mount") == []


async def test_a_new_version_of_a_function_replaces_its_workers(plane: Plane) -> None:
    await plane.function("fresh", minAvailableCount=1, maxWorkers=1)
    async with plane.activator(), Fleet(plane, "fresh").running():
        await until(partial(_workers, plane, "fresh", 1), "a worker exists")
        await plane.patch("fresh", {"spec": {"image": "python:3.13"}})

        async def replaced() -> bool:
            return [each["spec"]["image"] for each in await plane.workers("fresh")] == ["python:3.13"]

        await until(replaced, "its worker has the new image")


async def test_a_new_version_replaces_workers_that_always_have_work(plane: Plane) -> None:
    await plane.function("rolled", minAvailableCount=2, maxWorkers=2)
    async with plane.activator(), Fleet(plane, "rolled").running() as fleet:
        fleet.go_on.clear()
        sent = [await plane.accept("rolled") for _ in range(8)]
        await until(lambda: _in_flight(fleet, 2), "both work")
        await plane.patch("rolled", {"spec": {"image": "python:3.13"}})
        await until(lambda: _takes_no_more(fleet, 1), "the first one finishes")
        fleet.go_on.set()

        async def replaced() -> bool:
            return {each["spec"]["image"] for each in await plane.workers("rolled")} == {"python:3.13"}

        await until(replaced, "its workers have the new image")
        assert {(await plane.result(each)).state for each in sent} == {ResultState.SUCCEEDED}


async def test_workers_that_do_not_come_up_are_replaced_ever_more_slowly(plane: Plane) -> None:
    scaling = Scaling(pass_seconds=0.1, start_seconds=0.5, retry_first_seconds=1, retry_longest_seconds=60)
    function, began = await plane.function("broken", maxWorkers=1), time.monotonic()
    async with plane.activator(scaling=scaling):
        await plane.accept("broken", seconds=600)
        async with asyncio.timeout(60):
            await _made(plane, function, 3)
        assert time.monotonic() - began > 2.4  # 1 and 2, less their spread
        await until(lambda: _told(plane, "broken", "WorkerFailed"), "an Event says so")


async def _made(plane: Plane, function: Object, count: int) -> None:
    """Wait until so many workers were made. Some live for milliseconds: their age is counted in whole seconds."""
    name, since = function["metadata"]["name"], function["metadata"]["resourceVersion"]
    async for event, found in plane.kube.watch(UNIT, namespace=UNITS, resource_version=since):
        if event == "ADDED" and as_dict(found)["spec"].get("serverless", {}).get("workerOf") == name:
            count -= 1
        if count == 0:
            return


async def test_a_restart_of_nats_costs_no_worker_and_no_invocation(shaky_plane: Plane, mortal: NatsServer) -> None:
    plane = shaky_plane
    await plane.function("shaky", maxWorkers=2, idleTimeoutSeconds=60)
    async with plane.activator(), Fleet(plane, "shaky").running():
        await plane.result(await plane.accept("shaky"))
        before = {each["metadata"]["uid"] for each in await plane.workers("shaky")}
        await asyncio.to_thread(mortal.processes.stop, "nats")
        await until(lambda: _is_cut_off(plane), "the connection is gone")
        await asyncio.to_thread(mortal.start)
        await plane.nats.wait(60)
        for _ in range(3):
            assert (await plane.result(await plane.accept("shaky"))).state is ResultState.SUCCEEDED
        assert before <= {each["metadata"]["uid"] for each in await plane.workers("shaky")}


async def _is_cut_off(plane: Plane) -> bool:
    return not plane.nats.connected


async def test_when_a_leader_dies_nothing_is_lost_and_another_goes_on(plane: Plane, tmp_path: Path) -> None:
    await plane.function("lead", maxWorkers=2, idleTimeoutSeconds=60)
    first, second = _process(plane, tmp_path / "first"), _process(plane, tmp_path / "second")
    try:
        first.start().wait_ready().wait_leading()
        second.start().wait_ready()
        async with Fleet(plane, "lead").running():
            await plane.result(await plane.accept("lead"))
            sent = [await plane.accept("lead") for _ in range(30)]
            first.end()
            sent += [await plane.accept("lead") for _ in range(30)]
            for each in sent:
                assert (await plane.result(each)).state is ResultState.SUCCEEDED
            await plane.function("lead-two", maxWorkers=1)
            await plane.accept("lead-two")
            await until(partial(_workers, plane, "lead-two", 1), "the other one makes workers")
        assert second.end(Signals.SIGTERM) == 0
    finally:
        first.end()
        second.end()


def _process(plane: Plane, folder: Path) -> ActivatorProcess:
    streams = {"queueBytes": 8 * 1024**2, "deadLetterBytes": 1024**2, "invokeAckWaitSeconds": 1}
    settings = {
        "nats": {"urls": [plane.nats_url], "streams": streams},
        "api": {"url": plane.api_url},
        "leaderElection": {"leaseSeconds": 5, "renewDeadlineSeconds": 4, "retrySeconds": 0.5},
    }
    return ActivatorProcess(folder, plane.control.kubeconfig_for("activator", IDENTITY), settings)


async def _told(plane: Plane, function: str, reason: str) -> bool:
    events = [as_dict(each) async for each in plane.kube.list(Event, namespace=UNITS)]
    return any(each["regarding"]["name"] == function and each["reason"] == reason for each in events)


async def _workers(plane: Plane, name: str, count: int) -> bool:
    return len(await plane.workers(name)) == count


async def _stocked(plane: Plane, flavour: str, count: int) -> bool:
    return len(await plane.units(STOCK, flavour)) == count


async def _in_flight(fleet: Fleet, count: int) -> bool:
    return sum(each.in_flight for each in fleet.sidecars.values()) == count


async def _takes_no_more(fleet: Fleet, count: int) -> bool:
    return sum(each.draining for each in fleet.sidecars.values()) == count


async def _older_than(fleet: Fleet, seconds: float) -> bool:
    return all(time.monotonic() - each.began > seconds for each in fleet.sidecars.values())


async def _asleep(plane: Plane, name: str) -> bool:
    return not as_dict(await plane.kube.get(UNIT, name, namespace=UNITS))["spec"]["running"]
