"""One caller floods create requests, to fill etcd, to evict the operations of another caller, or to delay others."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.well_known import operation_name
from gpu_runtime.kube.cache_staleness import CacheStaleness
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import new_informers
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetention, OperationRetentionMetrics
from gpu_runtime.runtime_api.settings import APINamespaceSettings, OperationSettings
from localcluster.control_plane import ControlPlane
from tests.integration.controller_manager.conftest import UNIT, Object, as_dict, install_manifests
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER
from tests.integration.runtime_api.live_platform import OPERATION, LiveApiProcess, until
from tests.integration.runtime_api.service_replicas import AdjustableClock

CALLERS = ("flood", "other", "activator")
SCOPES = {"flood": ["operator", "runtime"], "other": ["operator", "runtime"], "activator": ["worker"]}
FLOOD = 150


@dataclass
class CallerSessions:
    """HTTP clients of three callers, and a client of Kubernetes."""

    api: LiveApiProcess
    kube: AsyncClient
    kubeconfig: Path
    http: aiohttp.ClientSession

    async def create(self, caller: str, name: str, **fields: Any) -> tuple[int, Object]:
        body = {"operationID": f"make-{name}", "name": name, "specName": name, "image": "python:3.12", **fields}
        headers = {"Authorization": f"Bearer {token(caller)}"}
        path = "/api/v1/workers" if caller == "activator" else "/api/v1/gpu-units"
        async with self.http.post(self.api.url(path), json=body, headers=headers) as response:
            return response.status, dict(await response.json())

    async def add_stock(self, flavor: str) -> None:
        metadata = ObjectMeta(name=f"stock-{flavor}", namespace="runtime-stock")
        await self.kube.create(UNIT(metadata=metadata, spec={"specName": flavor, "memory": "2Gi", "gpu": 1}))
        ready = {"status": {"phase": "Ready"}}
        await self.kube.patch(
            UNIT.Status, f"stock-{flavor}", ready, namespace="runtime-stock", patch_type=PatchType.MERGE
        )

    async def operation(self, name: str) -> Object:
        found = await self.kube.get(OPERATION, operation_name(f"make-{name}"), namespace="runtime-system")
        return as_dict(found)


def token(caller: str) -> str:
    return f"the-token-of-the-caller-{caller}"


@pytest.fixture(scope="module")
def api(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveApiProcess]:
    """A runtime API with three callers. No controller manager runs."""
    install_manifests(control_plane)
    folder = tmp_path_factory.mktemp("flooded-api")
    entries = [{"name": each, "token": token(each), "scopes": SCOPES[each]} for each in CALLERS]
    (folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": entries}))
    authentication = {"mode": "required", "tokenFile": str(folder / "tokens.yaml")}
    limits = {"requestsPerSecond": 0, "requestTimeoutSeconds": 240, "shutdownDelaySeconds": 0.3}
    identity = control_plane.kubeconfig_for("runtime-api", RUNTIME_API_USER)
    kubernetes = {"kubeconfig": str(identity), "requestTimeoutSeconds": 60}
    settings = {"authentication": authentication, "limits": limits, "kubernetes": kubernetes}
    process = LiveApiProcess(folder, identity, settings)
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.stop()


@pytest.fixture
async def callers(api: LiveApiProcess, control_plane: ControlPlane) -> AsyncIterator[CallerSessions]:
    kube = AsyncClient(config=KubeConfig.from_file(control_plane.kubeconfig))
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=240)) as http:
        yield CallerSessions(api, kube, control_plane.kubeconfig, http)
    await kube.close()


async def test_refused_creates_leave_no_bodies_in_etcd(callers: CallerSessions) -> None:
    large = {"args": ["x" * 6000] * 5}
    for number in range(8):
        status, body = await callers.create("flood", f"refused-{number}", template=large)
        assert (status, body["error"]["code"]) == (409, "no_stock")
    stored = [len(json.dumps(await callers.operation(f"refused-{number}"))) for number in range(8)]
    assert sum(stored) < 40_000


async def test_operation_without_a_body_still_belongs_to_its_request(callers: CallerSessions) -> None:
    """An attacker cannot use the operationID of a waiting request, and the replay creates exactly one unit."""
    args = {"args": ["first"]}
    assert (await callers.create("other", "waited", template=args))[0] == 409
    status, body = await callers.create("flood", "waited", template={"args": ["second"]})
    assert (status, body["error"]["code"]) == (409, "operation_reused")
    await callers.add_stock("waited")
    await until(lambda: _has_status(callers, "waited", args, 201), "the replay finds stock")
    assert (await callers.create("other", "waited", template=args))[0] == 200
    unit = as_dict(await callers.kube.get(UNIT, "waited", namespace="runtime-instance"))
    assert unit["spec"]["template"]["args"] == ["first"]
    assert "first" in (await callers.operation("waited"))["status"]["request"]


async def test_flood_of_refused_creates_evicts_no_operation_of_another_caller(callers: CallerSessions) -> None:
    """If the operation of the other caller were evicted, the replay of its request would create a second unit."""
    await callers.add_stock("victim")
    await until(lambda: _has_status(callers, "victim", {}, 201), "the other caller has created its unit")
    await callers.kube.delete(UNIT, "victim", namespace="runtime-instance")
    await asyncio.gather(*(callers.create("flood", f"evicting-{number}") for number in range(110)))
    await run_retention(callers, timedelta(minutes=11))
    assert (await callers.create("other", "victim"))[0] == 410


@pytest.mark.parametrize("caller", ["other", "activator"])
async def test_flood_of_creates_does_not_delay_another_caller(callers: CallerSessions, caller: str) -> None:
    answered = 0

    async def flood(number: int) -> None:
        nonlocal answered
        await callers.create("flood", f"flooding-{caller}-{number}")
        answered += 1

    tasks = [asyncio.create_task(flood(number)) for number in range(FLOOD)]
    while answered < 5:  # noqa: ASYNC110 - the flood has begun
        await asyncio.sleep(0.01)
    serverless = {"enabled": True, "requestID": "delayed", "workerOf": "delayed"}
    fields = {"serverless": serverless} if caller == "activator" else {}
    status, _ = await callers.create(caller, f"delayed-{caller}", **fields)
    answered_before = answered
    await asyncio.gather(*tasks)
    assert status == 409
    assert answered_before < FLOOD / 2, "the request waited behind the flood"


async def run_retention(callers: CallerSessions, later: timedelta) -> None:
    """Run retention as a replica of the API does, with a limit of 100 operations, and after this time."""
    async with open_kube_client(load_cluster_config(callers.kubeconfig), field_manager="test") as client:
        informers = new_informers(client, APINamespaceSettings(), KubeMetrics())
        tasks = [asyncio.create_task(each.run()) for each in informers.all]
        await asyncio.gather(*(each.wait_for_sync() for each in informers.all))
        clock, metrics = AdjustableClock(), OperationRetentionMetrics(CollectorRegistry())
        clock.offset = later
        settings, stale_reason = OperationSettings(max_retained=100), CacheStaleness(informers.all).reason
        await OperationRetention(client, informers, stale_reason, "runtime-system", settings, clock, metrics).run_once()
        for task in tasks:
            task.cancel()


async def _has_status(callers: CallerSessions, name: str, template: Object, status: int) -> bool:
    return (await callers.create("other", name, template=template))[0] == status
