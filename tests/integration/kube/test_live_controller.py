"""A manager with controllers on a real API server: it corrects owned objects, and it stops gracefully."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from lightkube import Client as LightkubeClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease as LightLease
from lightkube.resources.core_v1 import ConfigMap
from lightkube.resources.events_v1 import Event

from gpu_runtime.kube.builtin_kinds import LEASES
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.controller import Controller, Done, ReconcileResult
from gpu_runtime.kube.election import LeaderElectionConfig, LeaderElector
from gpu_runtime.kube.errors import KubeAlreadyExists
from gpu_runtime.kube.event_recorder import EventLimits, EventRecorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.manager import Manager
from gpu_runtime.kube.meta import KubeObject, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from localcluster.control_plane import ControlPlane
from tests.integration.kube.polling import CONFIG_MAPS, eventually

ELECTION_CONFIG = LeaderElectionConfig(lease_duration=5, renew_deadline=4, retry_period=0.5)


def lease_for(owner: KubeObject) -> Manifest:
    """The child of a ConfigMap in this test: a Lease of the same name."""
    metadata = owner.metadata
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": metadata.name,
        "uid": metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
    return {
        "metadata": {"namespace": metadata.namespace, "name": metadata.name, "ownerReferences": [reference]},
        "spec": {"leaseDurationSeconds": int(metadata.labels["seconds"])},
    }


@asynccontextmanager
async def running_manager(client: KubeClient, namespace: str, metrics: KubeMetrics) -> AsyncIterator[Manager]:
    owners = Informer(client, CONFIG_MAPS, ListOptions(namespace, label_selector="seconds"), metrics=metrics)
    leases = Informer(client, LEASES, ListOptions(namespace), metrics=metrics)
    elector = LeaderElector(client, ObjectKey(namespace, "lead"), "test", ELECTION_CONFIG, metrics)
    writer = client.fenced(elector.leadership)
    recorder = EventRecorder(client, "example.org/test", "test-1", EventLimits(update_interval=0.1), metrics)

    async def reconcile(owner: KubeObject) -> ReconcileResult:
        desired = lease_for(owner)
        cached = leases.store.get(owner.metadata.key)
        if cached is None or cached.spec.lease_duration_seconds != desired["spec"]["leaseDurationSeconds"]:
            try:
                await writer.create(LEASES, desired)
            except KubeAlreadyExists:
                written = await writer.merge_patch(LEASES, owner.metadata.key, {"spec": desired["spec"]})
                leases.record_write(written)
            recorder.normal(
                CONFIG_MAPS, owner, "LeaseApplied", f"applied a Lease of {owner.metadata.labels['seconds']}"
            )
        return Done()

    main = Controller("test", owners, reconcile, metrics=metrics)
    main.owns(leases)
    manager = Manager([owners, leases], [main], elector, recorder)
    stopping = asyncio.Event()
    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        tasks.create_task(manager.run(stopping))
        yield manager
        stopping.set()


def lease_seconds(kube: LightkubeClient, namespace: str, name: str) -> int | None:
    found = [
        lease for lease in kube.list(LightLease, namespace=namespace) if lease.metadata and lease.metadata.name == name
    ]
    return found[0].spec.leaseDurationSeconds if found and found[0].spec else None


def create_owner(kube: LightkubeClient, namespace: str, name: str, value: int) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels={"seconds": str(value)})))


async def test_children_are_created_and_corrected_with_one_event_each(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str
) -> None:
    metrics = KubeMetrics()
    create_owner(kube, namespace, "before", 5)
    async with open_kube_client(
        load_cluster_config(control_plane.kubeconfig), field_manager="test", metrics=metrics
    ) as client:
        async with running_manager(client, namespace, metrics) as manager:
            await eventually(lambda: lease_seconds(kube, namespace, "before") == 5, "the existing owner has its child")
            assert manager.has_synced
            create_owner(kube, namespace, "after", 6)
            await eventually(lambda: lease_seconds(kube, namespace, "after") == 6, "the new owner has its child")
            kube.patch(LightLease, "after", {"spec": {"leaseDurationSeconds": 99}}, namespace=namespace)
            await eventually(lambda: lease_seconds(kube, namespace, "after") == 6, "drift is corrected")
            kube.delete(LightLease, "before", namespace=namespace)
            await eventually(
                lambda: lease_seconds(kube, namespace, "before") == 5, "the deleted child is created again"
            )
            assert metrics.registry.get_sample_value("leader_election_master_status", {"name": "lead"}) == 1
        labels = {"method": "PATCH", "code": "200", "host": f"{control_plane.address}:{control_plane.port}"}
        applied = metrics.registry.get_sample_value("rest_client_requests_total", labels)
    written = sum(1 for event in kube.list(Event, namespace=namespace) if event.reason == "LeaseApplied")
    assert written == 2, "repetitions are one Event with a count"
    assert applied
    assert metrics.registry.get_sample_value("leader_election_master_status", {"name": "lead"}) == 0
    lease = kube.get(LightLease, "lead", namespace=namespace)
    assert lease.spec
    assert not lease.spec.holderIdentity, "the manager released the Lease when it stopped"


async def test_standby_is_ready_and_stops_immediately(
    client: KubeClient, kube: LightkubeClient, namespace: str
) -> None:
    leading, finished = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        leading.set()
        await finished.wait()

    create_owner(kube, namespace, "a", 5)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(LeaderElector(client, ObjectKey(namespace, "lead"), "other", ELECTION_CONFIG).run(hold))
        await leading.wait()
        async with running_manager(client, namespace, KubeMetrics()) as manager:
            await eventually(lambda: manager.has_synced, "the caches have synced")
        assert lease_seconds(kube, namespace, "a") is None, "a standby writes nothing"
        finished.set()


async def test_lost_leadership_stops_controllers_until_reacquired(
    client: KubeClient, kube: LightkubeClient, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_owner(kube, namespace, "a", 5)
    async with running_manager(client, namespace, KubeMetrics()):
        await eventually(lambda: lease_seconds(kube, namespace, "a") == 5, "the leader reconciles")
        kube.patch(LightLease, "lead", {"spec": {"holderIdentity": "other"}}, namespace=namespace)
        await eventually(
            lambda: (
                "leadership lost; the process has cancelled its leader tasks and is a candidate again"
                in caplog.messages
            ),
            "the leader notices the new holder",
        )
        kube.patch(LightLease, "a", {"spec": {"leaseDurationSeconds": 99}}, namespace=namespace)
        assert lease_seconds(kube, namespace, "a") == 99
        await eventually(
            lambda: lease_seconds(kube, namespace, "a") == 5,
            "the new holder does not renew, so the manager leads again",
        )


async def test_api_server_outage_longer_than_the_lease_causes_no_exit(
    control_plane: ControlPlane,
    client: KubeClient,
    kube: LightkubeClient,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    create_owner(kube, namespace, "a", 5)
    async with running_manager(client, namespace, KubeMetrics()):
        await eventually(lambda: lease_seconds(kube, namespace, "a") == 5, "the leader reconciles")
        control_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
        try:
            await eventually(
                lambda: (
                    "leadership lost; the process has cancelled its leader tasks and is a candidate again"
                    in caplog.messages
                ),
                "the leadership is lost",
            )
        finally:
            control_plane.processes.signal("kube-apiserver", signal.SIGCONT)
        create_owner(kube, namespace, "b", 6)
        await eventually(lambda: lease_seconds(kube, namespace, "b") == 6, "the leader reconciles again")


async def test_events_are_aggregated_and_failures_are_ignored(
    control_plane: ControlPlane,
    client: KubeClient,
    kube: LightkubeClient,
    namespace: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject = await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "subject"}})
    recorder = EventRecorder(client, "example.org/test", "test-1", EventLimits(update_interval=0.05))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        recorder.warning(CONFIG_MAPS, subject, "Broken", "ä" * 2000)

        def events() -> list[Event]:
            return list(kube.list(Event, namespace=namespace))

        await eventually(lambda: len(events()) == 1, "the Event exists")
        for _ in range(4):
            recorder.warning(CONFIG_MAPS, subject, "Broken", "ä" * 2000)

        def count() -> int | None:
            series = events()[0].series
            return series.count if series else None

        await eventually(lambda: count() == 5, "the repetitions are counted")
        task.cancel()
    (event,) = events()
    assert (event.type, event.reportingController) == ("Warning", "example.org/test")
    assert event.regarding
    assert event.regarding.uid == subject.metadata.uid

    unprivileged = load_cluster_config(control_plane.kubeconfig_for("unprivileged", "unprivileged"))
    async with open_kube_client(unprivileged, field_manager="test") as unprivileged_client:
        failing = EventRecorder(unprivileged_client, "example.org/test", "test-1")
        failing.normal(CONFIG_MAPS, subject, "Fine", "all is well")
        await failing.flush_all(timeout=60)
    assert "Kubernetes Event was not written; the process will not retry" in caplog.messages
