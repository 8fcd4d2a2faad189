"""What creates cost the runtime API and the API server behind it, and what the floor costs, alone and while controllers
work."""

import asyncio
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import aiohttp
import msgspec

from bench.create_load import (
    CreateAPITarget,
    CreateFloorTarget,
    CreateJob,
    CreateLoadResult,
    CreateResult,
    run_create_load,
)
from bench.floors.handoff_writes import STOCK_PATH, StockUnit
from bench.kube_api import (
    RawKubeClient,
    RequestCounts,
    counts_by_name,
    for_each_concurrently,
    select_writes,
    service_account_access,
    writes_from_metrics,
)
from bench.measured_process import cpu_seconds_of
from bench.report import log_progress, quantile
from bench.start_controller_manager import start_controller_manager
from bench.start_runtime_api import API_TOKEN, RUNTIME_API_USER, RuntimeAPIReplica, start_runtime_api
from bench.testbed import Testbed, record_first_pods, testbed, wait_until_all_ready, wait_until_idle
from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, Label

CREATES_PER_SECOND = 45
WARM_UP_CREATES = 20
"""Creates before those whose latency counts: connections are opened and code paths run for the first time."""
IDLE_CHECK_SECONDS = 8
"""Seconds. A replica's sweep looks up to 7.2 s after its start at what was there before it: at its third look."""
API_WRITTEN_RESOURCES = {("operations", ""), ("operations", "status"), ("gpuunits", "")}
"""What nobody but the runtime API writes, or the floor: of GPUUnits, the controller manager writes the status alone."""
STOCK_PODS_PATH = f"/api/v1/namespaces/{STOCK_NAMESPACE}/pods"
UNIT_MEMORY, UNIT_GPUS = "1Gi", 1
MAX_SEED_REPLICAS = 1000

UNIT_REQUEST = {
    "image": "python:3.12",
    "access": {"primaryPort": "http", "scheme": "http"},
    "template": {
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "envs": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "port": 8080}],
    },
}


class LoadProfile(msgspec.Struct, frozen=True):
    """So many creates at the rate, or so many at a time. Its name is the specName of its own stock."""

    name: str
    creates: int
    replicas: int = 1
    """Of the runtime API. 0: the floor."""
    rate: float = 0
    concurrency: int = 0
    with_controllers: bool = False
    """Whether the controller manager is at work, too, and makes the units Ready."""

    @property
    def stock_count(self) -> int:
        return self.creates + WARM_UP_CREATES


class LoadMeasurement(msgspec.Struct):
    """What a load cost, from its first create until nothing moves, units that become Ready included. Seconds and
    requests."""

    profile: LoadProfile
    latency_seconds: list[float]
    """From when a create was due until its answer, in seconds, rising."""
    pod_latency_seconds: list[float]
    """From when a create was due until its unit's pod exists."""
    errors: list[str]
    creates_per_second: float
    target_cpu_seconds: float
    api_server_cpu_seconds: float
    audited_requests: dict[str, int]
    """The contender's requests by the API server's audit log."""
    metric_writes: dict[str, int]
    """Its writes by the API server's metrics."""
    list_requests: int

    @property
    def writes_per_create(self) -> float:
        """By the metrics, or by the audit log if that knows of more."""
        audited = sum(
            count for what, count in self.audited_requests.items() if what.split()[0] not in ("get", "list", "watch")
        )
        return max(sum(self.metric_writes.values()), audited) / self.profile.stock_count

    @property
    def reads_per_create(self) -> float:
        return (
            sum(count for what, count in self.audited_requests.items() if what.startswith("get "))
            / self.profile.stock_count
        )

    def latency_quantile(self, share: float) -> float:
        return quantile(self.latency_seconds, share)


async def measure_profiles(loads: Sequence[LoadProfile]) -> list[LoadMeasurement]:
    """Those that have the machine to themselves, and then, on another control plane, those beside the controllers."""
    alone, controlled = ([load for load in loads if load.with_controllers is each] for each in (False, True))
    async with testbed(1, RUNTIME_API_USER) as at:
        found = await measure_on_testbed(at, alone)
    async with testbed(sum(load.stock_count for load in controlled), RUNTIME_API_USER) as at:
        with start_controller_manager(at.control_plane, at.folder) as process:
            return found + await measure_on_testbed(replace(at, controller_manager=process), controlled)


async def measure_on_testbed(at: Testbed, loads: Sequence[LoadProfile]) -> list[LoadMeasurement]:
    """On one replica, on two, and the floor without any. All stock is there before the first create."""
    found: list[LoadMeasurement] = []
    with start_runtime_api(at.control_plane, at.folder, "runtime-api-1") as first:
        log_progress(f"stock for {sum(load.stock_count for load in loads)} units")
        await seed_stock(at, first.url, loads)
        found += await measure_with_replicas(at, loads, [first])
        with start_runtime_api(at.control_plane, at.folder, "runtime-api-2") as second:
            found += await measure_with_replicas(at, loads, [first, second])
    return found + await measure_with_replicas(at, loads, [])


async def measure_with_replicas(
    at: Testbed, loads: Sequence[LoadProfile], replicas: Sequence[RuntimeAPIReplica]
) -> list[LoadMeasurement]:
    """Those of the loads that are meant for so many replicas."""
    await wait_until_all_idle(at, replicas)
    found = []
    for load in loads:
        if load.replicas == len(replicas):
            log_progress(load.name)
            found.append(await measure_profile(at, load, replicas))
            log_progress(
                f"  p50 {1000 * found[-1].latency_quantile(0.5):.0f} ms, p99 {1000 * found[-1].latency_quantile(0.99):.0f} ms"
            )
    return found


async def seed_stock(at: Testbed, url: str, loads: Sequence[LoadProfile]) -> None:
    """Stock for every load, through the API, until all of it is Ready, or said to be where nobody makes it so."""
    headers = {"Authorization": f"Bearer {API_TOKEN}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        for load in loads:
            for first in range(0, load.stock_count, MAX_SEED_REPLICAS):
                count = min(MAX_SEED_REPLICAS, load.stock_count - first)
                body = {"operationID": f"{load.name}-{first}", "specName": load.name, "replicas": count}
                body |= {"memory": UNIT_MEMORY, "gpu": UNIT_GPUS}
                async with session.post("/api/v1/operator/stock-units", json=body) as answer:
                    if answer.status != 202:
                        raise RuntimeError(await answer.text())
    stock = sum(load.stock_count for load in loads)
    async with asyncio.timeout(600):
        if at.controller_manager is None:
            await patch_stock_ready(at.kube, stock)
        await wait_until_all_ready(at.kube, STOCK_PATH, stock)


async def patch_stock_ready(api: RawKubeClient, stock: int) -> None:
    """As the controller manager does, of stock that has no pods."""
    ready, reported = {"status": {"phase": "Ready", "readyReplicas": 1}}, set[str]()
    while len(reported) < stock:
        found = {unit["metadata"]["name"] for unit in (await api.get(STOCK_PATH))["items"]}
        await for_each_concurrently(8, found - reported, lambda name: api.patch(f"{STOCK_PATH}/{name}/status", ready))
        reported |= found


async def measure_profile(at: Testbed, load: LoadProfile, replicas: Sequence[RuntimeAPIReplica]) -> LoadMeasurement:
    job = CreateJob(
        await load_target(at, load, replicas), [unit_request(load, n) for n in range(load.stock_count)], load.rate
    )
    job.concurrency = load.concurrency
    at.audit_log.read_new()
    metered, server = (
        writes_from_metrics(at.control_plane, API_WRITTEN_RESOURCES),
        at.control_plane.processes.get("kube-apiserver").pid or 0,
    )
    cpu, cpu_of_server = sum(each.process.cpu_seconds() for each in replicas), cpu_seconds_of(server)
    outcome, pods = await run_load(at, job)
    await wait_until_all_idle(at, replicas if load.rate else [])
    spent = sum(each.process.cpu_seconds() for each in replicas) - cpu if replicas else outcome.cpu_seconds
    audited = at.audit_log.read_new()
    counted = sorted(outcome.creates, key=lambda create: create.due_at)[WARM_UP_CREATES:]
    return LoadMeasurement(
        profile=load,
        latency_seconds=sorted(create.latency_seconds for create in counted),
        pod_latency_seconds=sorted(pods[create.name] - create.due_at for create in counted if create.name in pods),
        errors=[create.error for create in outcome.creates if create.error],
        creates_per_second=_creates_per_second(counted),
        target_cpu_seconds=spent / load.stock_count,
        api_server_cpu_seconds=(cpu_seconds_of(server) - cpu_of_server) / load.stock_count,
        audited_requests=counts_by_name(select_writes(audited) + _select_reads(audited)),
        metric_writes=counts_by_name(writes_from_metrics(at.control_plane, API_WRITTEN_RESOURCES) - metered),
        list_requests=sum(
            count for (verb, what), count in audited.items() if verb == "list" and not _is_retention_list(what)
        ),
    )


async def load_target(
    at: Testbed, load: LoadProfile, replicas: Sequence[RuntimeAPIReplica]
) -> CreateAPITarget | CreateFloorTarget:
    if replicas:
        return CreateAPITarget([each.url for each in replicas], API_TOKEN)
    found = await at.kube.get(STOCK_PATH)
    stock = [
        StockUnit(each["metadata"]["name"], each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        for each in found["items"]
        if each["spec"]["specName"] == load.name
    ]
    return CreateFloorTarget(service_account_access(at.control_plane, "runtime-api"), stock)


def unit_request(load: LoadProfile, number: int) -> dict[str, Any]:
    name = f"{load.name}-{number}"
    asked = {"operationID": f"create-{name}", "name": name, "specName": load.name, **UNIT_REQUEST}
    return asked if load.replicas else asked | {"memory": UNIT_MEMORY, "gpu": UNIT_GPUS}


async def run_load(at: Testbed, job: CreateJob) -> tuple[CreateLoadResult, dict[str, float]]:
    """The outcome of the load, and when the pods of its units were first seen."""
    names, seen = {each["name"] for each in job.requests if at.controller_manager}, dict[str, float]()
    unit = operator.methodcaller("get", Label.UNIT, "")
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(record_first_pods(at.kube, INSTANCE_NAMESPACE, names, unit, seen))
        outcome = await run_create_load(job, at.folder)
        if any(create.error for create in outcome.creates):
            watching.cancel()
    return outcome, seen


async def wait_until_all_idle(at: Testbed, replicas: Sequence[RuntimeAPIReplica]) -> None:
    """Until units are Ready, the pods of consumed stock are gone, and no replica has asked anything for longer than its
    sweep takes to notice something."""
    if at.controller_manager is not None:
        await wait_until_idle(at.controller_manager)
    await wait_until_consumed_stock_deleted(at.kube)
    asked = -1.0
    while (now := sum(each.process.metric_sum("kube_requests_total{") for each in replicas)) != asked:
        asked = now
        await asyncio.sleep(IDLE_CHECK_SECONDS if replicas else 0)


async def wait_until_consumed_stock_deleted(api: RawKubeClient) -> None:
    while True:
        units, pods = [(await api.get(path))["items"] for path in (STOCK_PATH, STOCK_PODS_PATH)]
        if len(pods) <= len(units):
            return
        await asyncio.sleep(1)


def _creates_per_second(creates: Sequence[CreateResult]) -> float:
    first, last = min(each.due_at for each in creates), max(each.answered_at for each in creates)
    return len(creates) / (last - first)


def _select_reads(requests: RequestCounts) -> RequestCounts:
    return Counter({key: count for key, count in requests.items() if key[0] in ("get", "list")})


def _is_retention_list(what: str) -> bool:
    """Whether a list is one that looks for operations to forget: every replica does that about every minute, also when
    nobody asks anything of it."""
    resource, _, query = what.partition("?")
    return resource == "operations" and ("created-hour" in query or query == "limit=1")
