"""Controllers on a real API server: what they own is kept true, and they end in order."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from lightkube import Client as OtherEyes
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
from gpu_runtime.kube.event_recorder import EventLimits, EventRecorder
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.manager import Manager
from gpu_runtime.kube.meta import KubeObject, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from localcluster.control_plane import ControlPlane
from tests.integration.kube.polling import CONFIG_MAPS, eventually

TIMING = LeaderElectionConfig(lease_duration=5, renew_deadline=4, retry_period=0.5)


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
async def controller(client: KubeClient, namespace: str, metrics: KubeMetrics) -> AsyncIterator[Manager]:
    owners = Informer(client, CONFIG_MAPS, ListOptions(namespace, label_selector="seconds"), metrics=metrics)
    leases = Informer(client, LEASES, ListOptions(namespace), metrics=metrics)
    elector = LeaderElector(client, ObjectKey(namespace, "lead"), "test", TIMING, metrics)
    writer = client.fenced(elector.leadership)
    recorder = EventRecorder(client, "example.org/test", "test-1", EventLimits(update_interval=0.1), metrics)

    async def reconcile(owner: KubeObject) -> ReconcileResult:
        wanted = lease_for(owner)
        known = leases.store.get(owner.metadata.key)
        if known is None or known.spec.lease_duration_seconds != wanted["spec"]["leaseDurationSeconds"]:
            leases.record_write(await writer.apply(LEASES, wanted))
            recorder.normal(
                CONFIG_MAPS, owner, "LeaseApplied", f"applied a Lease of {owner.metadata.labels['seconds']}"
            )
        return Done()

    main = Controller("test", owners, reconcile, metrics=metrics)
    main.owns(leases)
    ensemble = Manager([owners, leases], [main], elector, recorder)
    stopping = asyncio.Event()
    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        tasks.create_task(ensemble.run(stopping))
        yield ensemble
        stopping.set()


def lease_seconds(kube: OtherEyes, namespace: str, name: str) -> int | None:
    found = [
        lease for lease in kube.list(LightLease, namespace=namespace) if lease.metadata and lease.metadata.name == name
    ]
    return found[0].spec.leaseDurationSeconds if found and found[0].spec else None


def create_owner(kube: OtherEyes, namespace: str, name: str, value: int) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace, labels={"seconds": str(value)})))


async def test_children_are_created_corrected_and_not_rewritten(
    control_plane: ControlPlane, kube: OtherEyes, namespace: str
) -> None:
    metrics = KubeMetrics()
    create_owner(kube, namespace, "before", 5)
    async with open_kube_client(
        load_cluster_config(control_plane.kubeconfig), field_manager="test", metrics=metrics
    ) as client:
        async with controller(client, namespace, metrics) as ensemble:
            await eventually(lambda: lease_seconds(kube, namespace, "before") == 5, "what existed before has its child")
            assert ensemble.has_synced
            create_owner(kube, namespace, "after", 6)
            await eventually(lambda: lease_seconds(kube, namespace, "after") == 6, "what came later has its child")
            kube.patch(LightLease, "after", {"spec": {"leaseDurationSeconds": 99}}, namespace=namespace)
            await eventually(lambda: lease_seconds(kube, namespace, "after") == 6, "drift is corrected")
            kube.delete(LightLease, "before", namespace=namespace)
            await eventually(lambda: lease_seconds(kube, namespace, "before") == 5, "a deleted child comes back")
            assert metrics.registry.get_sample_value("kube_leading", {"lease": f"{namespace}/lead"}) == 1
        applied = metrics.registry.get_sample_value("kube_client_requests_total", {"method": "PATCH", "code": "200"})
    written = sum(1 for event in kube.list(Event, namespace=namespace) if event.reason == "LeaseApplied")
    assert written == 2, "what repeated is one Event with a count"
    assert applied
    assert metrics.registry.get_sample_value("kube_leading", {"lease": f"{namespace}/lead"}) == 0
    lead = kube.get(LightLease, "lead", namespace=namespace)
    assert lead.spec
    assert not lead.spec.holderIdentity, "the lead was given back at the end"


async def test_standby_is_ready_and_stops_immediately(client: KubeClient, kube: OtherEyes, namespace: str) -> None:
    leading, enough = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        leading.set()
        await enough.wait()

    create_owner(kube, namespace, "a", 5)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(LeaderElector(client, ObjectKey(namespace, "lead"), "other", TIMING).run(hold))
        await leading.wait()
        async with controller(client, namespace, KubeMetrics()) as ensemble:
            await eventually(lambda: ensemble.has_synced, "the caches are warm")
        assert lease_seconds(kube, namespace, "a") is None, "a standby writes nothing"
        enough.set()


async def test_lost_leadership_stops_controllers_until_reacquired(
    client: KubeClient, kube: OtherEyes, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_owner(kube, namespace, "a", 5)
    async with controller(client, namespace, KubeMetrics()):
        await eventually(lambda: lease_seconds(kube, namespace, "a") == 5, "it leads and works")
        kube.patch(LightLease, "lead", {"spec": {"holderIdentity": "thief"}}, namespace=namespace)
        await eventually(lambda: "the lead is lost, all work has stopped" in caplog.messages, "the theft is noticed")
        kube.patch(LightLease, "a", {"spec": {"leaseDurationSeconds": 99}}, namespace=namespace)
        assert lease_seconds(kube, namespace, "a") == 99
        await eventually(
            lambda: lease_seconds(kube, namespace, "a") == 5, "the thief does not renew, so it leads again"
        )


async def test_api_server_outage_longer_than_the_lease_causes_no_exit(
    control_plane: ControlPlane, client: KubeClient, kube: OtherEyes, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    create_owner(kube, namespace, "a", 5)
    async with controller(client, namespace, KubeMetrics()):
        await eventually(lambda: lease_seconds(kube, namespace, "a") == 5, "it leads and works")
        control_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
        try:
            await eventually(lambda: "the lead is lost, all work has stopped" in caplog.messages, "the lead is lost")
        finally:
            control_plane.processes.signal("kube-apiserver", signal.SIGCONT)
        create_owner(kube, namespace, "b", 6)
        await eventually(lambda: lease_seconds(kube, namespace, "b") == 6, "it leads and works again")


async def test_events_are_aggregated_and_failures_are_ignored(
    control_plane: ControlPlane, client: KubeClient, kube: OtherEyes, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    subject = await client.create(CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "subject"}})
    recorder = EventRecorder(client, "example.org/test", "test-1", EventLimits(update_interval=0.05))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        recorder.warning(CONFIG_MAPS, subject, "Broken", "ä" * 2000)

        def events() -> list[Event]:
            return list(kube.list(Event, namespace=namespace))

        await eventually(lambda: len(events()) == 1, "the Event is there")
        for _ in range(4):
            recorder.warning(CONFIG_MAPS, subject, "Broken", "ä" * 2000)

        def count() -> int | None:
            series = events()[0].series
            return series.count if series else None

        await eventually(lambda: count() == 5, "it is counted")
        task.cancel()
    (event,) = events()
    assert (event.type, event.reportingController) == ("Warning", "example.org/test")
    assert event.regarding
    assert event.regarding.uid == subject.metadata.uid

    nobody = load_cluster_config(control_plane.kubeconfig_for("nobody", "nobody"))
    async with open_kube_client(nobody, field_manager="test") as stranger:
        refused = EventRecorder(stranger, "example.org/test", "test-1")
        refused.normal(CONFIG_MAPS, subject, "Fine", "all is well")
        await refused.flush_all(timeout=60)
    assert "an Event was not written" in caplog.messages
