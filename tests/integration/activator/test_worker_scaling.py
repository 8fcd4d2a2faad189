"""The activator scales workers with the backlog, creates them from stock, and returns the stock."""

import asyncio
import time
from functools import partial
from pathlib import Path
from signal import Signals

from lightkube.resources.events_v1 import Event
from msgspec import structs

from gpu_runtime.activator.main import Activator
from gpu_runtime.activator.settings import RuntimeAPIClientSettings, ScalingSettings
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from localcluster.nats_server import NatsServer
from tests.integration.activator.activator_harness import (
    ACTIVATOR_USER,
    STOCK_NAMESPACE,
    UNIT_NAMESPACE,
    ActivatorHarness,
    ActivatorProcess,
    SidecarFleet,
    nats_settings,
    until,
)
from tests.integration.controller_manager.conftest import UNIT, Object, as_dict

SOURCE_STOCK_UID = "runtime.lokiwager.io/source-stock-uid"
CLAIMED_BY = "runtime.lokiwager.io/claimed-by"


async def test_invocation_of_a_stopped_function_creates_a_worker_from_stock(harness: ActivatorHarness) -> None:
    await harness.create_stock("warm", 1)
    await harness.create_function("warm", maxWorkers=3, idleTimeoutSeconds=60, spec={"image": "python:3.13"})
    demand_only = ScalingSettings(poll_interval_seconds=600)  # without polling, only demand can create the worker
    async with harness.activator(scaling=demand_only), SidecarFleet(harness, "warm").running() as fleet:
        sent = await harness.accept_invocation("warm")
        await until(partial(_workers, harness, "warm", 1), "a worker exists")
        assert (await harness.wait_result(sent)).state is ResultState.SUCCEEDED
    (worker,) = await harness.list_workers("warm")
    assert worker["metadata"]["name"] == "warm-w0"
    assert worker["metadata"]["annotations"][SOURCE_STOCK_UID]
    assert worker["spec"]["memory"] == "2Gi"
    assert (worker["spec"]["image"], worker["spec"]["serverless"]["requestID"]) == ("python:3.13", "warm")
    assert fleet.finished_ids == [sent.invocation_id]
    await until(lambda: _has_stock(harness, "warm", 0), "the consumed stock unit is deleted")


async def test_worker_is_cold_started_with_the_function_reservation_without_stock(harness: ActivatorHarness) -> None:
    await harness.create_function("cold", maxWorkers=1)
    async with harness.activator():
        await harness.accept_invocation("cold")
        await until(partial(_workers, harness, "cold", 1), "a worker exists")
    (worker,) = await harness.list_workers("cold")
    assert (worker["spec"]["memory"], worker["spec"]["gpu"], worker["spec"]["running"]) == ("1Gi", 1, True)
    assert SOURCE_STOCK_UID not in worker["metadata"].get("annotations", {})


async def test_burst_scales_up_to_max_workers_and_then_to_zero(harness: ActivatorHarness) -> None:
    await harness.create_stock("burst", 2)
    await harness.create_function("burst", maxWorkers=3, concurrency=2)
    async with harness.activator(), SidecarFleet(harness, "burst", concurrency=2).running() as fleet:
        fleet.may_finish.clear()
        sent = [await harness.accept_invocation("burst") for _ in range(20)]
        await until(partial(_workers, harness, "burst", 3), "three workers exist")
        await until(lambda: _in_flight(fleet, 6), "all workers are busy")
        fleet.may_finish.set()
        for each in sent:
            assert (await harness.wait_result(each)).state is ResultState.SUCCEEDED
        await until(partial(_workers, harness, "burst", 0), "all workers are deleted")
        await until(lambda: _has_stock(harness, "burst", 2), "the stock is returned")
    assert fleet.max_units == 3
    assert sorted(fleet.finished_ids) == sorted(each.invocation_id for each in sent)
    assert {each["spec"]["memory"] for each in await harness.list_units(STOCK_NAMESPACE, "burst")} == {"2Gi"}


async def test_two_concurrent_leaders_create_no_extra_workers(harness: ActivatorHarness) -> None:
    await harness.create_stock("pair", 4)
    await harness.create_function("pair", maxWorkers=2)
    async with (
        connect_nats(ConnectionOptions((harness.nats_url,))) as other,
        harness.activator(),
        harness.activator(other),
        SidecarFleet(harness, "pair").running() as fleet,
    ):
        for _ in range(2):
            sent = [await harness.accept_invocation("pair") for _ in range(10)]
            for each in sent:
                assert (await harness.wait_result(each)).state is ResultState.SUCCEEDED
            await until(partial(_workers, harness, "pair", 0), "all workers are deleted")
            await until(lambda: _has_stock(harness, "pair", 4), "the stock is returned")
            for stock in await harness.list_units(STOCK_NAMESPACE, "pair"):
                await harness.mark_stock_ready(stock["metadata"]["name"])
    assert fleet.max_units <= 2
    assert harness.duplicate_results == []


async def test_unreachable_runtime_api_causes_no_cold_start(harness: ActivatorHarness) -> None:
    await harness.create_stock("away", 1)
    await harness.create_function("away", maxWorkers=1, idleTimeoutSeconds=60)
    async with harness.activator(runtime_api=RuntimeAPIClientSettings(url="http://127.0.0.1:9")) as activator:
        await harness.accept_invocation("away")
        await until(lambda: _has_reconciled(activator), "a reconciliation failed")
        assert await harness.list_workers("away") == []
    async with harness.activator():
        await until(partial(_workers, harness, "away", 1), "a worker exists")
    (worker,) = await harness.list_workers("away")
    assert worker["metadata"]["annotations"][SOURCE_STOCK_UID]


async def _has_reconciled(activator: Activator) -> bool:
    labels = {"controller": "function", "result": "error"}
    return bool(activator.leader.metrics.registry.get_sample_value("controller_runtime_reconcile_total", labels))


async def test_busy_worker_is_not_scaled_down(harness: ActivatorHarness) -> None:
    await harness.create_function("busy", maxWorkers=2)
    async with harness.activator(), SidecarFleet(harness, "busy").running() as fleet:
        fleet.may_finish.clear()
        long = await harness.accept_invocation("busy")
        await until(lambda: _in_flight(fleet, 1), "the first worker is busy")
        short = await harness.accept_invocation("busy")
        await until(partial(_workers, harness, "busy", 2), "a second worker exists")
        await until(lambda: _in_flight(fleet, 2), "both workers are busy")
        await harness.patch_unit("busy", {"spec": {"serverless": {"maxWorkers": 1}}})
        await until(lambda: _older_than(fleet, 1.5), "the idle timeout has passed")
        assert len(await harness.list_workers("busy")) == 2
        fleet.may_finish.set()
        assert {(await harness.wait_result(each)).state for each in (long, short)} == {ResultState.SUCCEEDED}
        await until(partial(_workers, harness, "busy", 0), "all workers are deleted after they are idle")


async def test_min_available_workers_are_created_and_retained(harness: ActivatorHarness) -> None:
    await harness.create_function("retained", minAvailableCount=2, maxWorkers=3)
    async with harness.activator(), SidecarFleet(harness, "retained").running() as fleet:
        await until(partial(_workers, harness, "retained", 2), "two workers exist")
        sent = [await harness.accept_invocation("retained") for _ in range(6)]
        for each in sent:
            await harness.wait_result(each)
        names = {each["metadata"]["uid"] for each in await harness.list_workers("retained")}
        await until(lambda: _older_than(fleet, 1.5), "the idle timeout has passed")
        assert len(await harness.list_workers("retained")) >= 2
        assert names & {each["metadata"]["uid"] for each in await harness.list_workers("retained")}


async def test_deleted_function_deletes_its_workers_and_returns_the_stock(harness: ActivatorHarness) -> None:
    await harness.create_stock("deleted", 1)
    await harness.create_function("deleted", maxWorkers=1, idleTimeoutSeconds=60)
    async with harness.activator(), SidecarFleet(harness, "deleted").running():
        await harness.wait_result(await harness.accept_invocation("deleted"))
        await harness.delete_unit("deleted")
        await until(partial(_workers, harness, "deleted", 0), "its worker is deleted")
        await until(lambda: _has_stock(harness, "deleted", 1), "the stock is returned")


async def test_disabled_function_deletes_its_workers(harness: ActivatorHarness) -> None:
    await harness.create_function("off", maxWorkers=1, idleTimeoutSeconds=60)
    async with harness.activator(), SidecarFleet(harness, "off").running():
        await harness.wait_result(await harness.accept_invocation("off"))
        await harness.patch_unit("off", {"spec": {"serverless": {"enabled": False}}})
        await until(partial(_workers, harness, "off", 0), "its worker is deleted")


async def test_function_with_a_storage_is_started_for_work_and_stopped_when_idle(harness: ActivatorHarness) -> None:
    mounts = [{"name": "models", "mountPath": "/models"}]
    await harness.create_function("mount", maxWorkers=1, spec={"storageMounts": mounts})
    async with harness.activator(), SidecarFleet(harness, "mount", uses_function_unit=True).running():
        for _ in range(2):
            assert (await harness.wait_result(await harness.accept_invocation("mount"))).state is ResultState.SUCCEEDED
            await until(lambda: _is_stopped(harness, "mount"), "the function's own unit is stopped")
    assert await harness.list_workers("mount") == []


async def test_changed_function_replaces_its_workers(harness: ActivatorHarness) -> None:
    await harness.create_function("fresh", minAvailableCount=1, maxWorkers=1)
    async with harness.activator(), SidecarFleet(harness, "fresh").running():
        await until(partial(_workers, harness, "fresh", 1), "a worker exists")
        await harness.patch_unit("fresh", {"spec": {"image": "python:3.13"}})

        async def replaced() -> bool:
            return [each["spec"]["image"] for each in await harness.list_workers("fresh")] == ["python:3.13"]

        await until(replaced, "the worker has the new image")


async def test_changed_function_replaces_busy_workers(harness: ActivatorHarness) -> None:
    await harness.create_function("rolled", minAvailableCount=2, maxWorkers=2)
    async with harness.activator(), SidecarFleet(harness, "rolled").running() as fleet:
        fleet.may_finish.clear()
        sent = [await harness.accept_invocation("rolled") for _ in range(8)]
        await until(lambda: _in_flight(fleet, 2), "both workers are busy")
        await harness.patch_unit("rolled", {"spec": {"image": "python:3.13"}})
        await until(lambda: _are_draining(fleet, 1), "the first worker is draining")
        fleet.may_finish.set()

        async def replaced() -> bool:
            return {each["spec"]["image"] for each in await harness.list_workers("rolled")} == {"python:3.13"}

        await until(replaced, "the workers have the new image")
        assert {(await harness.wait_result(each)).state for each in sent} == {ResultState.SUCCEEDED}


async def test_failing_workers_are_replaced_with_backoff(harness: ActivatorHarness) -> None:
    scaling = ScalingSettings(
        poll_interval_seconds=0.1,
        worker_liveness_timeout_seconds=0.5,
        initial_backoff_seconds=1,
        max_backoff_seconds=60,
    )
    nats = nats_settings(harness.nats_url)
    nats = structs.replace(nats, streams=structs.replace(nats.streams, dispatch_ack_wait_seconds=0.5))
    function, start = await harness.create_function("failing", maxWorkers=1), time.monotonic()
    async with harness.activator(scaling=scaling, nats=nats):
        await harness.accept_invocation("failing", seconds=600)
        async with asyncio.timeout(60):
            await _wait_created(harness, function, 3)
        assert time.monotonic() - start > 2.4  # the backoff of 1 s and 2 s, minus jitter
        await until(lambda: _has_event(harness, "failing", "WorkerFailed"), "an Event reports the failure")


async def _wait_created(harness: ActivatorHarness, function: Object, count: int) -> None:
    """Wait until `count` workers were created. Use a watch, because a worker may exist for only milliseconds."""
    name, since = function["metadata"]["name"], function["metadata"]["resourceVersion"]
    async for event, unit in harness.kube.watch(UNIT, namespace=UNIT_NAMESPACE, resource_version=since):
        if event == "ADDED" and as_dict(unit)["spec"].get("serverless", {}).get("workerOf") == name:
            count -= 1
        if count == 0:
            return


async def test_nats_restart_loses_no_worker_and_no_invocation(
    restartable_harness: ActivatorHarness, own_nats_server: NatsServer
) -> None:
    harness = restartable_harness
    await harness.create_function("shaky", maxWorkers=2, idleTimeoutSeconds=60)
    async with harness.activator(), SidecarFleet(harness, "shaky").running():
        await harness.wait_result(await harness.accept_invocation("shaky"))
        before = {each["metadata"]["uid"] for each in await harness.list_workers("shaky")}
        await asyncio.to_thread(own_nats_server.processes.stop, "nats")
        await until(lambda: _is_disconnected(harness), "the connection is closed")
        await asyncio.to_thread(own_nats_server.start)
        await harness.nats.wait_connected(60)
        for _ in range(3):
            assert (await harness.wait_result(await harness.accept_invocation("shaky"))).state is ResultState.SUCCEEDED
        assert before <= {each["metadata"]["uid"] for each in await harness.list_workers("shaky")}


async def _is_disconnected(harness: ActivatorHarness) -> bool:
    return not harness.nats.connected


async def test_killed_leader_loses_nothing_and_is_replaced(harness: ActivatorHarness, tmp_path: Path) -> None:
    await harness.create_function("lead", maxWorkers=2, idleTimeoutSeconds=60)
    first, second = _process(harness, tmp_path / "first"), _process(harness, tmp_path / "second")
    try:
        first.start().wait_ready().wait_leading()
        second.start().wait_ready()
        async with SidecarFleet(harness, "lead").running():
            await harness.wait_result(await harness.accept_invocation("lead"))
            sent = [await harness.accept_invocation("lead") for _ in range(30)]
            first.stop()
            sent += [await harness.accept_invocation("lead") for _ in range(30)]
            for each in sent:
                assert (await harness.wait_result(each)).state is ResultState.SUCCEEDED
            await harness.create_function("lead-two", maxWorkers=1)
            await harness.accept_invocation("lead-two")
            await until(partial(_workers, harness, "lead-two", 1), "the other replica creates workers")
        assert second.stop(Signals.SIGTERM) == 0
    finally:
        first.stop()
        second.stop()


def _process(harness: ActivatorHarness, folder: Path) -> ActivatorProcess:
    streams = {"maxStreamBytes": 8 * 1024**2, "maxDeadLetterBytes": 1024**2, "invokeAckWaitSeconds": 1}
    settings = {
        "nats": {"urls": [harness.nats_url], "streams": streams},
        "runtimeAPI": {"url": harness.api_url},
        "leaderElection": {"leaseDurationSeconds": 5, "renewDeadlineSeconds": 4, "retryPeriodSeconds": 0.5},
    }
    return ActivatorProcess(folder, harness.control_plane.kubeconfig_for("activator", ACTIVATOR_USER), settings)


async def _has_event(harness: ActivatorHarness, function: str, reason: str) -> bool:
    events = [as_dict(each) async for each in harness.kube.list(Event, namespace=UNIT_NAMESPACE)]
    return any(each["regarding"]["name"] == function and each["reason"] == reason for each in events)


async def _workers(harness: ActivatorHarness, name: str, count: int) -> bool:
    return len(await harness.list_workers(name)) == count


async def _has_stock(harness: ActivatorHarness, flavor: str, count: int) -> bool:
    """Whether the flavor has `count` stock units. A claimed unit does not count: a handoff will delete it."""
    stock = await harness.list_units(STOCK_NAMESPACE, flavor)
    return len(stock) == count and not any(CLAIMED_BY in each["metadata"].get("annotations", {}) for each in stock)


async def _in_flight(fleet: SidecarFleet, count: int) -> bool:
    return sum(each.in_flight for each in fleet.sidecars.values()) == count


async def _are_draining(fleet: SidecarFleet, count: int) -> bool:
    return sum(each.draining for each in fleet.sidecars.values()) == count


async def _older_than(fleet: SidecarFleet, seconds: float) -> bool:
    return all(time.monotonic() - each.started_at > seconds for each in fleet.sidecars.values())


async def _is_stopped(harness: ActivatorHarness, name: str) -> bool:
    return not as_dict(await harness.kube.get(UNIT, name, namespace=UNIT_NAMESPACE))["spec"]["running"]
