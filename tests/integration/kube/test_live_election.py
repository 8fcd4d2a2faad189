"""One process leads at a time. Another takes over when it stops, dies or is paused. A resumed leader writes nothing."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lightkube import Client as LightkubeClient
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap

from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.election import LeaderElectionConfig, LeaderElector
from gpu_runtime.kube.errors import KubeNotLeader
from gpu_runtime.kube.meta import ObjectKey
from localcluster.control_plane import ControlPlane
from tests.integration.kube.polling import CONFIG_MAPS, eventually

CANDIDATE_PROGRAM = Path(__file__).parent / "election_candidate.py"
ELECTION_CONFIG = LeaderElectionConfig(lease_duration=5, renew_deadline=4, retry_period=0.5)
"""A busy machine may miss much shorter deadlines."""


def lease_holder(kube: LightkubeClient, namespace: str) -> str:
    spec = kube.get(Lease, "lead", namespace=namespace).spec
    return (spec and spec.holderIdentity) or ""


def written_data(kube: LightkubeClient, namespace: str) -> dict[str, str]:
    return kube.get(ConfigMap, "work", namespace=namespace).data or {}


@asynccontextmanager
async def candidate(plane: ControlPlane, namespace: str, name: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CANDIDATE_PROGRAM), str(plane.kubeconfig), namespace, name, stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_line(process: Process, timeout: float = 60) -> str:  # noqa: ASYNC109
    assert process.stdout
    async with asyncio.timeout(timeout):
        return (await process.stdout.readline()).decode().strip()


@pytest.fixture
def shared_config_map(kube: LightkubeClient, namespace: str) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name="work", namespace=namespace)))


async def test_stopped_leader_releases_the_lease(client: KubeClient, kube: LightkubeClient, namespace: str) -> None:
    first, second = (
        LeaderElector(client, ObjectKey(namespace, "lead"), name, ELECTION_CONFIG) for name in ("first", "second")
    )
    leading, finished, took_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def first_work() -> None:
        leading.set()
        await finished.wait()
        assert not second.leadership.is_leader()

    async def second_work() -> None:
        took_over.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(first.run(first_work))
        await leading.wait()
        tasks.create_task(second.run(second_work))
        started = asyncio.get_running_loop().time()
        # The first candidate renews in time, so the second one does not take over.
        await eventually(
            lambda: asyncio.get_running_loop().time() - started > ELECTION_CONFIG.lease_duration,
            "a lease duration has passed",
        )
        assert lease_holder(kube, namespace).startswith("first_")
        assert first.leadership.is_leader()
        finished.set()
        stopped = asyncio.get_running_loop().time()
        await took_over.wait()
        assert asyncio.get_running_loop().time() - stopped < ELECTION_CONFIG.lease_duration, (
            "the takeover does not wait for the expiry of the lease"
        )
    assert lease_holder(kube, namespace) == ""
    assert not first.leadership.is_leader()


async def test_killed_elector_is_replaced_within_the_lease_duration(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str, shared_config_map: None
) -> None:
    async with candidate(control_plane, namespace, "first") as first:
        assert [await read_line(first), await read_line(first)] == ["candidate", "leading"]
        async with candidate(control_plane, namespace, "second") as second:
            assert await read_line(second) == "candidate"
            await eventually(lambda: "count-0" in written_data(kube, namespace), "the first candidate writes")
            first.kill()
            killed = asyncio.get_running_loop().time()
            assert await read_line(second) == "leading"
            took = asyncio.get_running_loop().time() - killed
            assert took < 4 * ELECTION_CONFIG.lease_duration, f"took over after {took:.1f} s"
            await eventually(lambda: written_data(kube, namespace)["writer"] == "second", "the second candidate writes")


async def test_paused_leader_starts_no_write_after_resume(
    control_plane: ControlPlane, kube: LightkubeClient, namespace: str, shared_config_map: None
) -> None:
    """No check can stop the one write that the process was already sending to its socket when it was paused."""
    async with candidate(control_plane, namespace, "first") as first:
        assert [await read_line(first), await read_line(first)] == ["candidate", "leading"]
        await eventually(lambda: "count-0" in written_data(kube, namespace), "the first candidate writes")
        async with candidate(control_plane, namespace, "second") as second:
            assert await read_line(second) == "candidate"
            first.send_signal(signal.SIGSTOP)
            assert await read_line(second) == "leading"
            await eventually(
                lambda: written_data(kube, namespace).get("writer") == "second", "the second candidate writes"
            )
            second.kill()
            await second.wait()
        last = written_data(kube, namespace)
        first.send_signal(signal.SIGCONT)
        assert (await read_line(first)).startswith("lost: first_")
        await first.wait()
    late_writes = [name for name, value in written_data(kube, namespace).items() if last[name] != value]
    assert len([name for name in late_writes if name != "writer"]) <= 1, late_writes
    assert last["writer"] == "second"


async def test_unreachable_leader_stops_at_the_renew_deadline(control_plane: ControlPlane, namespace: str) -> None:
    async with open_kube_client(load_cluster_config(control_plane.kubeconfig), field_manager="first") as client:
        config = replace(ELECTION_CONFIG, lease_duration=20)
        elector = LeaderElector(client, ObjectKey(namespace, "lead"), "first", config)
        leading, loop = asyncio.Event(), asyncio.get_running_loop()
        stopped_at = 0.0

        async def work() -> None:
            nonlocal stopped_at
            leading.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped_at = loop.time()

        async def pause_api_server() -> float:
            await leading.wait()
            control_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
            paused_at = loop.time()
            try:
                await eventually(lambda: stopped_at > 0, "the work has stopped")
            finally:
                control_plane.processes.signal("kube-apiserver", signal.SIGCONT)
            return paused_at

        async with asyncio.TaskGroup() as tasks:
            pause = tasks.create_task(pause_api_server())
            with pytest.raises(KubeNotLeader):
                await elector.run(work)
        assert stopped_at - pause.result() < config.lease_duration, "the work stops before another candidate may lead"
        with pytest.raises(KubeNotLeader):
            await client.fenced(elector.leadership).create(
                CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "too-late"}}
            )


async def test_lease_acquired_by_another_holder_stops_the_leader(
    client: KubeClient, kube: LightkubeClient, namespace: str
) -> None:
    elector = LeaderElector(client, ObjectKey(namespace, "lead"), "first", ELECTION_CONFIG)

    async def work() -> None:
        kube.patch(Lease, "lead", {"spec": {"holderIdentity": "other"}}, namespace=namespace)
        await asyncio.Event().wait()

    with pytest.raises(KubeNotLeader):
        async with asyncio.timeout(60):
            await elector.run(work)
    assert lease_holder(kube, namespace) == "other", "a lost lease is not released"


async def test_cancelled_leader_releases_the_lease(client: KubeClient, kube: LightkubeClient, namespace: str) -> None:
    elector = LeaderElector(client, ObjectKey(namespace, "lead"), "first", ELECTION_CONFIG)
    leading = asyncio.Event()

    async def work() -> None:
        leading.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(elector.run(work))
        await leading.wait()
        task.cancel()
    assert lease_holder(kube, namespace) == ""


async def test_leader_with_an_unconfirmed_renewal_releases_the_lease(
    client: KubeClient, kube: LightkubeClient, namespace: str
) -> None:
    """The leader stops during a renewal and never receives the response, so the Lease is newer than its copy."""
    elector = LeaderElector(client, ObjectKey(namespace, "lead"), "first", ELECTION_CONFIG)

    async def work() -> None:
        kube.patch(Lease, "lead", {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, namespace=namespace)

    async with asyncio.timeout(60):
        await elector.run(work)
    assert lease_holder(kube, namespace) == ""
