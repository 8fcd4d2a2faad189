"""One process leads at a time: the others take over when it ends, dies or sleeps, and who slept writes nothing."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lightkube import Client as OtherEyes
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap

from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.election import Elector, Timing
from gpu_runtime.kube.errors import NotLeading
from gpu_runtime.kube.meta import Key
from localcluster.control_plane import ControlPlane
from tests.integration.kube.waiting import CONFIG_MAPS, eventually

CANDIDATE = Path(__file__).parent / "candidate.py"
TIMING = Timing(lease=5, renew_deadline=4, retry=0.5)
"""A busy machine may well miss deadlines that are much shorter."""


def holder(kube: OtherEyes, namespace: str) -> str:
    spec = kube.get(Lease, "lead", namespace=namespace).spec
    return (spec and spec.holderIdentity) or ""


def work(kube: OtherEyes, namespace: str) -> dict[str, str]:
    return kube.get(ConfigMap, "work", namespace=namespace).data or {}


@asynccontextmanager
async def candidate(plane: ControlPlane, namespace: str, name: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CANDIDATE), str(plane.kubeconfig), namespace, name, stdout=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def says(process: Process, timeout: float = 60) -> str:  # noqa: ASYNC109
    assert process.stdout
    async with asyncio.timeout(timeout):
        return (await process.stdout.readline()).decode().strip()


@pytest.fixture
def to_be_written(kube: OtherEyes, namespace: str) -> None:
    kube.create(ConfigMap(metadata=ObjectMeta(name="work", namespace=namespace)))


async def test_a_leader_that_ends_gives_the_lead_back(client: Client, kube: OtherEyes, namespace: str) -> None:
    first, second = (Elector(client, Key(namespace, "lead"), name, TIMING) for name in ("first", "second"))
    leading, enough, followed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def lead_first() -> None:
        leading.set()
        await enough.wait()
        assert not second.leadership.still_leading()

    async def lead_second() -> None:
        followed.set()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(first.lead(lead_first))
        await leading.wait()
        tasks.create_task(second.lead(lead_second))
        started = asyncio.get_running_loop().time()
        # The first one renews in time, so nobody takes over.
        await eventually(lambda: asyncio.get_running_loop().time() - started > TIMING.lease, "a lease time passed")
        assert holder(kube, namespace).startswith("first_")
        assert first.leadership.still_leading()
        enough.set()
        ended = asyncio.get_running_loop().time()
        await followed.wait()
        assert asyncio.get_running_loop().time() - ended < TIMING.lease, "before the lease has run out"
    assert holder(kube, namespace) == ""
    assert not first.leadership.still_leading()


async def test_a_killed_leader_is_followed_within_the_lease_time(
    control_plane: ControlPlane, kube: OtherEyes, namespace: str, to_be_written: None
) -> None:
    async with candidate(control_plane, namespace, "first") as first:
        assert [await says(first), await says(first)] == ["candidate", "leading"]
        async with candidate(control_plane, namespace, "second") as second:
            assert await says(second) == "candidate"
            await eventually(lambda: "count-0" in work(kube, namespace), "the first one writes")
            first.kill()
            killed = asyncio.get_running_loop().time()
            assert await says(second) == "leading"
            took = asyncio.get_running_loop().time() - killed
            assert took < 4 * TIMING.lease, f"took over after {took:.1f} s"
            await eventually(lambda: work(kube, namespace)["writer"] == "second", "the second one writes")


async def test_a_leader_that_was_paused_writes_nothing_when_it_wakes(
    control_plane: ControlPlane, kube: OtherEyes, namespace: str, to_be_written: None
) -> None:
    async with candidate(control_plane, namespace, "first") as first:
        assert [await says(first), await says(first)] == ["candidate", "leading"]
        await eventually(lambda: "count-0" in work(kube, namespace), "the first one writes")
        async with candidate(control_plane, namespace, "second") as second:
            assert await says(second) == "candidate"
            first.send_signal(signal.SIGSTOP)
            assert await says(second) == "leading"
            await eventually(lambda: work(kube, namespace).get("writer") == "second", "the second one writes")
            second.kill()
            await second.wait()
        last = work(kube, namespace)
        first.send_signal(signal.SIGCONT)
        assert (await says(first)).startswith("lost: first_")
        await first.wait()
    assert work(kube, namespace) == last
    assert last["writer"] == "second"


async def test_a_leader_that_cannot_reach_the_server_stops_its_work_at_the_deadline(
    control_plane: ControlPlane, namespace: str
) -> None:
    async with connect(load_config(control_plane.kubeconfig), field_manager="first") as client:
        timing = replace(TIMING, lease=20)
        elector = Elector(client, Key(namespace, "lead"), "first", timing)
        leading, loop = asyncio.Event(), asyncio.get_running_loop()
        stopped_at = 0.0

        async def work() -> None:
            nonlocal stopped_at
            leading.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped_at = loop.time()

        async def cut_off() -> float:
            await leading.wait()
            control_plane.processes.signal("kube-apiserver", signal.SIGSTOP)
            paused_at = loop.time()
            try:
                await eventually(lambda: stopped_at > 0, "the work has stopped")
            finally:
                control_plane.processes.signal("kube-apiserver", signal.SIGCONT)
            return paused_at

        async with asyncio.TaskGroup() as tasks:
            cut = tasks.create_task(cut_off())
            with pytest.raises(NotLeading):
                await elector.lead(work)
        assert stopped_at - cut.result() < timing.lease, "another may lead by now"
        with pytest.raises(NotLeading):
            await client.fenced(elector.leadership).create(
                CONFIG_MAPS, {"metadata": {"namespace": namespace, "name": "too-late"}}
            )


async def test_a_stolen_lease_ends_the_work(client: Client, kube: OtherEyes, namespace: str) -> None:
    elector = Elector(client, Key(namespace, "lead"), "first", TIMING)

    async def work() -> None:
        kube.patch(Lease, "lead", {"spec": {"holderIdentity": "thief"}}, namespace=namespace)
        await asyncio.Event().wait()

    with pytest.raises(NotLeading):
        async with asyncio.timeout(60):
            await elector.lead(work)
    assert holder(kube, namespace) == "thief", "a lease that is lost is not given back"


async def test_a_cancelled_leader_gives_the_lead_back(client: Client, kube: OtherEyes, namespace: str) -> None:
    elector = Elector(client, Key(namespace, "lead"), "first", TIMING)
    leading = asyncio.Event()

    async def work() -> None:
        leading.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(elector.lead(work))
        await leading.wait()
        task.cancel()
    assert holder(kube, namespace) == ""


async def test_a_leader_whose_last_renewal_was_not_heard_of_gives_the_lead_back(
    client: Client, kube: OtherEyes, namespace: str
) -> None:
    """It was told to end while it renewed: nobody waited for the answer, and the Lease is newer than it knows."""
    elector = Elector(client, Key(namespace, "lead"), "first", TIMING)

    async def work() -> None:
        kube.patch(Lease, "lead", {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}, namespace=namespace)

    async with asyncio.timeout(60):
        await elector.lead(work)
    assert holder(kube, namespace) == ""
