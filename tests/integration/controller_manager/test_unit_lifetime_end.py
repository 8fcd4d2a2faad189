"""Units end at their time, on a real API server: not earlier, not twice, and not while their handoff is under way."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import OPERATIONS
from gpu_runtime.contract.crd.well_known import Annotation, operation_name
from gpu_runtime.controller_manager.controller_informers import new_informers
from gpu_runtime.controller_manager.function_queues import FunctionQueues
from gpu_runtime.controller_manager.gpu_unit.adoption import PodAdopter
from gpu_runtime.controller_manager.gpu_unit.lifetime import UnitLifetimes
from gpu_runtime.controller_manager.gpu_unit.reconcile import GPUUnitReconciler
from gpu_runtime.controller_manager.gpu_unit.stock_releaser import StockReleaser
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.controller import RequeueAfter
from gpu_runtime.kube.errors import KubeConflict
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import QUICK_ELECTION, UNIT, ControllerCluster, Object

SPEC = {"specName": "g1.1", "image": "python:3.12"}
FUNCTION = {"enabled": True, "requestID": "f"}


def seconds_since(timestamp: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(timestamp)).total_seconds()


def test_unit_is_deleted_at_its_time(cluster: ControllerCluster, namespace: str) -> None:
    created = cluster.create(UNIT, namespace, "short", SPEC | {"deleteAfterSeconds": 4})
    unit = cluster.wait_for(UNIT, namespace, "short", lambda found: "deletesAt" in found.get("status", {}))
    assert seconds_since(created["metadata"]["creationTimestamp"]) < 4
    deadline = datetime.fromisoformat(unit["status"]["deletesAt"])
    wait_until(lambda: cluster.is_deleted(UNIT, namespace, "short"), 60, lambda: "the unit lives on")
    assert deadline <= datetime.now(UTC) < deadline + timedelta(seconds=5)


def test_unit_stops_after_its_maximum_duration_and_can_be_started_again(
    cluster: ControllerCluster, namespace: str
) -> None:
    cluster.create(UNIT, namespace, "timed", SPEC | {"maxDurationSeconds": 3})
    ready = cluster.wait_reason(UNIT, namespace, "timed", "UnitReady")
    status = ready["status"]
    assert seconds_since(status["firstReadyTime"]) < 10
    assert datetime.fromisoformat(status["stopsAt"]) - datetime.fromisoformat(status["firstReadyTime"]) == timedelta(
        seconds=3
    )
    stopped = cluster.wait_reason(UNIT, namespace, "timed", "ScaledToZero")
    assert stopped["spec"]["running"] is False
    assert "stopsAt" not in stopped["status"]
    cluster.merge_patch(UNIT, namespace, "timed", {"spec": {"running": True, "maxDurationSeconds": 600}})
    again = cluster.wait_reason(UNIT, namespace, "timed", "UnitReady")
    assert again["status"]["startTime"] > status["startTime"]
    assert again["spec"]["running"] is True


def test_start_right_after_the_end_is_not_stopped_again(cluster: ControllerCluster, namespace: str) -> None:
    """The start arrives before the controller manager has observed its own stop."""
    cluster.create(UNIT, namespace, "restarted", SPEC | {"stopUnlessExtendedSeconds": 3})
    first = cluster.wait_for(UNIT, namespace, "restarted", lambda found: "startTime" in found.get("status", {}))
    cluster.wait_for(UNIT, namespace, "restarted", lambda found: found["spec"]["running"] is False)
    cluster.merge_patch(UNIT, namespace, "restarted", {"spec": {"running": True, "stopUnlessExtendedSeconds": 600}})
    again = cluster.wait_for(
        UNIT,
        namespace,
        "restarted",
        lambda found: found["status"].get("startTime", "") > first["status"]["startTime"],
    )
    assert again["spec"]["running"] is True
    assert seconds_since(again["status"]["startTime"]) < 10


def test_extension_postpones_the_stop(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "extended", SPEC | {"stopUnlessExtendedSeconds": 4})
    until = (datetime.now(UTC) + timedelta(seconds=600)).strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.merge_patch(UNIT, namespace, "extended", {"spec": {"extendedUntil": until}})
    cluster.wait_for(UNIT, namespace, "extended", lambda found: found.get("status", {}).get("stopsAt") == until)
    time.sleep(6)
    unit = cluster.get(UNIT, namespace, "extended")
    assert unit
    assert unit["spec"]["running"] is True


def test_event_announces_the_end(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "announced", SPEC | {"deleteAfterSeconds": 120})

    def messages() -> list[str]:
        listed = cluster.control_plane.kubectl("get", "events", f"--namespace={namespace}", "--output=json")
        return [each["message"] for each in json.loads(listed)["items"] if each["reason"] == "DeletesSoon"]

    wait_until(lambda: bool(messages()), 30, lambda: "no Event announces the end")
    assert "will delete the unit at" in messages()[0]


@pytest.mark.parametrize(
    "serverless", [{"enabled": True, "requestID": "f"}, {"enabled": True, "requestID": "f", "workerOf": "x"}]
)
def test_lifetime_of_a_function_or_worker_is_an_invalid_spec(
    cluster: ControllerCluster, namespace: str, serverless: Object
) -> None:
    cluster.create(UNIT, namespace, "function", SPEC | {"deleteAfterSeconds": 1, "serverless": serverless})
    cluster.wait_reason(UNIT, namespace, "function", "InvalidSpec")
    time.sleep(2)
    assert not cluster.is_deleted(UNIT, namespace, "function")


def test_next_leader_ends_the_unit(unmanaged_cluster: ControllerCluster, unmanaged_namespace: str) -> None:
    cluster = unmanaged_cluster
    first = cluster.start_manager(leaderElection=QUICK_ELECTION).wait_leading()
    cluster.start_manager(leaderElection=QUICK_ELECTION).wait_ready()
    cluster.create(UNIT, unmanaged_namespace, "inherited", SPEC | {"deleteAfterSeconds": 5})
    unit = cluster.wait_for(
        UNIT, unmanaged_namespace, "inherited", lambda found: "deletesAt" in found.get("status", {})
    )
    first.stop()
    killed = datetime.now(UTC)
    wait_until(lambda: cluster.is_deleted(UNIT, unmanaged_namespace, "inherited"), 60, lambda: "the unit lives on")
    latest_takeover = killed + timedelta(seconds=QUICK_ELECTION["leaseDurationSeconds"] + 2)
    assert datetime.now(UTC) < max(latest_takeover, datetime.fromisoformat(unit["status"]["deletesAt"])) + timedelta(
        seconds=5
    )


@pytest.fixture
async def kube_client(unmanaged_cluster: ControllerCluster) -> AsyncIterator[KubeClient]:
    config = load_cluster_config(unmanaged_cluster.control_plane.kubeconfig)
    async with open_kube_client(config, field_manager="test") as client:
        yield client


class Clock:
    """A clock that the test can set wrong."""

    offset = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.offset


class ClientWithHook:
    """The real client, which calls a hook before each live read of a unit and before each write."""

    def __init__(self, client: KubeClient, before_write: Callable[[], Any]) -> None:
        self._client, self._before_write = client, before_write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def delete(self, *args: Any, **options: Any) -> None:
        await asyncio.to_thread(self._before_write)
        await self._client.delete(*args, **options)

    async def merge_patch(self, *args: Any, **options: Any) -> Any:
        await asyncio.to_thread(self._before_write)
        return await self._client.merge_patch(*args, **options)


def lifetimes_of(client: Any, clock: Callable[[], datetime]) -> UnitLifetimes:
    settings = ControllerManagerSettings(images=ImageSettings(stock="i", placeholder="i"))
    writer = StatusWriter(client, EventRecorder(client, "test", "test"), clock)
    return UnitLifetimes(client, new_informers(client, KubeMetrics(), 600), writer, settings)


async def expired_unit(cluster: ControllerCluster, client: KubeClient, namespace: str, **metadata: Any) -> GPUUnit:
    """Return a unit that no controller manager manages, and whose time is over."""
    await asyncio.to_thread(cluster.create, UNIT, namespace, "old", SPEC | {"deleteAfterSeconds": 1}, **metadata)
    await asyncio.sleep(2)
    return await client.get(GPU_UNITS, ObjectKey(namespace, "old"))


def operation_manifest(id_: str, namespace: str, name: str) -> Object:
    target = {"kind": "GPUUnit", "namespace": namespace, "name": name}
    spec = {"operationID": id_, "type": "CreateUnit", "requestHash": "0" * 64, "target": target}
    return {"metadata": {"namespace": "runtime-system", "name": operation_name(id_)}, "spec": spec}


async def test_wrong_clock_ends_nothing(
    unmanaged_cluster: ControllerCluster, kube_client: KubeClient, unmanaged_namespace: str
) -> None:
    cluster, namespace = unmanaged_cluster, unmanaged_namespace
    await asyncio.to_thread(cluster.create, UNIT, namespace, "young", SPEC | {"deleteAfterSeconds": 1800})
    unit = await kube_client.get(GPU_UNITS, ObjectKey(namespace, "young"))
    clock = Clock()
    lifetimes = lifetimes_of(kube_client, clock)
    clock.offset = timedelta(hours=1)
    assert await lifetimes.end_if_due(unit) == 30.0
    assert (await kube_client.get(GPU_UNITS, unit.metadata.key)).metadata.deletion_timestamp is None
    clock.offset = timedelta(0)
    remaining = await lifetimes.end_if_due(unit)
    assert remaining is not None
    assert 1000 < remaining < 1800


async def test_wrong_clock_records_no_times(
    unmanaged_cluster: ControllerCluster, kube_client: KubeClient, unmanaged_namespace: str
) -> None:
    """A time of an hour ago would stop the unit as soon as the clock is right."""
    spec = SPEC | {"maxDurationSeconds": 1800}
    await asyncio.to_thread(unmanaged_cluster.create, UNIT, unmanaged_namespace, "young", spec)
    unit = await kube_client.get(GPU_UNITS, ObjectKey(unmanaged_namespace, "young"))
    clock = Clock()
    clock.offset = -timedelta(hours=1)
    lifetimes = lifetimes_of(kube_client, clock)
    assert await lifetimes.agreed_time(unit) is None
    settings, informers, writer = lifetimes.settings, lifetimes.informers, lifetimes.status_writer
    adopter, releaser = PodAdopter(kube_client, informers, "x"), StockReleaser(kube_client, "x")
    queues = FunctionQueues(kube_client, informers, "x", "y")
    reconciler = GPUUnitReconciler(
        kube_client, informers, writer, settings, StorageLocks(), lifetimes, adopter, releaser, queues
    )
    assert await reconciler.reconcile(unit) == RequeueAfter(30.0)
    written = await kube_client.get(GPU_UNITS, unit.metadata.key)
    assert (written.status.start_time, written.status.phase) == (None, "Progressing")


def test_stock_is_never_ended(cluster: ControllerCluster) -> None:
    """kubectl can write a lifetime into stock. The spec is then invalid, and the stock stays."""
    cluster.create(UNIT, "runtime-stock", "kept", {"specName": "g1.1", "deleteAfterSeconds": 1})
    found = cluster.wait_reason(UNIT, "runtime-stock", "kept", "InvalidSpec")
    assert "deletesAt" not in found["status"]
    time.sleep(3)
    assert not cluster.is_deleted(UNIT, "runtime-stock", "kept")
    cluster.kube.delete(UNIT, "kept", namespace="runtime-stock")


async def test_unit_that_is_extended_during_its_end_lives(
    unmanaged_cluster: ControllerCluster, kube_client: KubeClient, unmanaged_namespace: str
) -> None:
    cluster, namespace = unmanaged_cluster, unmanaged_namespace
    unit = await expired_unit(cluster, kube_client, namespace)

    def raise_lifetime() -> None:
        cluster.merge_patch(UNIT, namespace, "old", {"spec": {"deleteAfterSeconds": 3600}})

    lifetimes = lifetimes_of(ClientWithHook(kube_client, raise_lifetime), Clock())
    with pytest.raises(KubeConflict):
        await lifetimes.end_if_due(unit)
    live = await kube_client.get(GPU_UNITS, unit.metadata.key)
    assert live.metadata.deletion_timestamp is None
    # The controller reconciles the unit again, still with the old object in its cache.
    remaining = await lifetimes_of(kube_client, Clock()).end_if_due(unit)
    assert remaining is not None
    assert remaining > 3000


async def test_unit_is_not_ended_while_its_handoff_is_under_way(
    unmanaged_cluster: ControllerCluster, kube_client: KubeClient, unmanaged_namespace: str
) -> None:
    cluster, namespace = unmanaged_cluster, unmanaged_namespace
    operation = await kube_client.create(OPERATIONS, operation_manifest("handoff-1", namespace, "old"))
    annotations = {Annotation.OPERATION_ID: "handoff-1", Annotation.OPERATION_UID: operation.metadata.uid}
    unit = await expired_unit(cluster, kube_client, namespace, annotations=annotations)
    lifetimes = lifetimes_of(kube_client, Clock())
    assert await lifetimes.end_if_due(unit) == 1.0
    assert (await kube_client.get(GPU_UNITS, unit.metadata.key)).metadata.deletion_timestamp is None
    done = {"status": {"state": "Succeeded", "targetUID": unit.metadata.uid}}
    await kube_client.merge_patch(OPERATIONS, operation.metadata.key, done, subresource="status")
    assert await lifetimes.end_if_due(unit) is None
    assert await asyncio.to_thread(cluster.is_deleted, UNIT, namespace, "old")
