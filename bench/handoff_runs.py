"""Measures the cost of creates for the runtime API and the API server, and the cost of the floor, without and with
controllers."""

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
"""Creates that are not measured. They open connections and run the code for the first time."""
IDLE_CHECK_SECONDS = 8
"""A replica is idle if it sends no request for this time. The recovery sweep of a replica reads operations from before
its start up to 7.2 s after its start, in its third pass."""
API_WRITTEN_RESOURCES = {("operations", ""), ("operations", "status"), ("gpuunits", "")}
"""The resources that only the runtime API or the floor writes. The controller manager writes only the status of
GPUUnits."""
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
    """A number of creates at a fixed rate or concurrency. The name of the profile is the specName of its stock."""

    name: str
    creates: int
    replicas: int = 1
    """The number of replicas of the runtime API. 0 measures the floor."""
    rate: float = 0
    concurrency: int = 0
    with_controllers: bool = False
    """Whether the controller manager also runs and makes the units Ready."""

    stock: int = 0
    """The number of stock units of the flavor. With 0, there is one stock unit for each create."""
    seeds: int = 0
    """How many of these stock units are seeded for this load. With 0, all of them are."""
    first: int = 0
    """The number of the first create. It is part of the names of the units."""

    @property
    def all_creates(self) -> int:
        return self.creates + WARM_UP_CREATES

    @property
    def stock_count(self) -> int:
        return max(self.stock, self.all_creates)


class LoadMeasurement(msgspec.Struct):
    """The cost of a load, from its first create until all processes are idle and, with controllers, all units Ready."""

    profile: LoadProfile
    latency_seconds: list[float]
    """The times from the scheduled time of a create until its response, sorted."""
    pod_latency_seconds: list[float]
    """The times from the scheduled time of a create until the pod of its unit exists, sorted."""
    errors: list[str]
    creates_per_second: float
    target_cpu_seconds: float
    api_server_cpu_seconds: float
    audited_requests: dict[str, int]
    """The requests of the target, from the audit log of the API server."""
    metric_writes: dict[str, int]
    """The writes of the target, from the metrics of the API server."""
    list_requests: int

    @property
    def writes_per_create(self) -> float:
        """Return the larger of the two counts."""
        audited = sum(
            count
            for request, count in self.audited_requests.items()
            if request.split()[0] not in ("get", "list", "watch")
        )
        return max(sum(self.metric_writes.values()), audited) / self.profile.all_creates

    @property
    def reads_per_create(self) -> float:
        return (
            sum(count for request, count in self.audited_requests.items() if request.startswith("get "))
            / self.profile.all_creates
        )

    def latency_quantile(self, share: float) -> float:
        return quantile(self.latency_seconds, share)


async def measure_profiles(profiles: Sequence[LoadProfile]) -> list[LoadMeasurement]:
    """Measure the profiles without controllers, and then the profiles with controllers on another control plane."""
    without_controllers, with_controllers = (
        [profile for profile in profiles if profile.with_controllers is each] for each in (False, True)
    )
    async with testbed(1, RUNTIME_API_USER) as bed:
        measurements = await measure_on_testbed(bed, without_controllers)
    async with testbed(sum(profile.stock_count for profile in with_controllers), RUNTIME_API_USER) as bed:
        with start_controller_manager(bed.control_plane, bed.folder) as process:
            bed_with_controllers = replace(bed, controller_manager=process)
            return measurements + await measure_on_testbed(bed_with_controllers, with_controllers)


async def measure_on_testbed(bed: Testbed, profiles: Sequence[LoadProfile]) -> list[LoadMeasurement]:
    """Measure with one replica, with two replicas, and the floor without a replica. All stock is seeded first."""
    measurements: list[LoadMeasurement] = []
    with start_runtime_api(bed.control_plane, bed.folder, "runtime-api-1") as first:
        log_progress(f"stock for {sum(profile.stock_count for profile in profiles)} units")
        await seed_stock(bed, first.url, profiles)
        measurements += await measure_with_replicas(bed, profiles, [first])
        with start_runtime_api(bed.control_plane, bed.folder, "runtime-api-2") as second:
            measurements += await measure_with_replicas(bed, profiles, [first, second])
    return measurements + await measure_with_replicas(bed, profiles, [])


async def measure_with_replicas(
    bed: Testbed, profiles: Sequence[LoadProfile], replicas: Sequence[RuntimeAPIReplica]
) -> list[LoadMeasurement]:
    """Measure the profiles for this number of replicas."""
    await wait_until_all_idle(bed, replicas)
    measurements = []
    for profile in profiles:
        if profile.replicas == len(replicas):
            log_progress(profile.name)
            measurements.append(await measure_profile(bed, profile, replicas))
            p50, p99 = (1000 * measurements[-1].latency_quantile(share) for share in (0.5, 0.99))
            log_progress(f"  p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    return measurements


async def seed_stock(bed: Testbed, url: str, profiles: Sequence[LoadProfile]) -> None:
    """Seed stock for every profile through the API and wait until it is Ready. Without a controller manager the
    benchmark sets the status of the stock to Ready."""
    headers = {"Authorization": f"Bearer {API_TOKEN}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        for profile in profiles:
            seeds = profile.seeds or profile.stock_count
            for first in range(0, seeds, MAX_SEED_REPLICAS):
                count = min(MAX_SEED_REPLICAS, seeds - first)
                operation_id = f"{profile.name}-{profile.first}-{first}"
                body = {"operationID": operation_id, "specName": profile.name, "replicas": count}
                body |= {"memory": UNIT_MEMORY, "gpu": UNIT_GPUS}
                async with session.post("/api/v1/operator/stock-units", json=body) as response:
                    if response.status != 202:
                        raise RuntimeError(await response.text())
    stock = sum(profile.stock_count for profile in profiles)
    async with asyncio.timeout(600):
        if bed.controller_manager is None:
            await patch_stock_ready(bed.kube, stock)
        await wait_until_all_ready(bed.kube, STOCK_PATH, stock)


async def patch_stock_ready(api: RawKubeClient, stock: int) -> None:
    """Set the status of stock without pods, as the controller manager does for stock with ready pods."""
    ready, units = {"status": {"phase": "Ready", "readyReplicas": 1}}, list[Any]()
    while len(units) < stock:
        units = (await api.get(STOCK_PATH))["items"]
        names = [unit["metadata"]["name"] for unit in units if unit.get("status", {}).get("phase") != "Ready"]
        await for_each_concurrently(8, names, lambda name: api.patch(f"{STOCK_PATH}/{name}/status", ready))


async def measure_profile(bed: Testbed, profile: LoadProfile, replicas: Sequence[RuntimeAPIReplica]) -> LoadMeasurement:
    job = CreateJob(
        await load_target(bed, profile, replicas),
        [unit_request(profile, profile.first + n) for n in range(profile.all_creates)],
        profile.rate,
    )
    job.concurrency = profile.concurrency
    bed.audit_log.read_new()
    writes_before, server_pid = (
        writes_from_metrics(bed.control_plane, API_WRITTEN_RESOURCES),
        bed.control_plane.processes.get("kube-apiserver").pid or 0,
    )
    cpu_before, server_cpu_before = (
        sum(each.process.cpu_seconds() for each in replicas),
        cpu_seconds_of(server_pid),
    )
    outcome, pods = await run_load(bed, job)
    await wait_until_all_idle(bed, replicas)
    replica_cpu = sum(each.process.cpu_seconds() for each in replicas) - cpu_before
    audited = bed.audit_log.read_new()
    measured_creates = sorted(outcome.creates, key=lambda create: create.due_at)[WARM_UP_CREATES:]
    return LoadMeasurement(
        profile=profile,
        latency_seconds=sorted(create.latency_seconds for create in measured_creates),
        pod_latency_seconds=sorted(
            pods[create.name] - create.due_at for create in measured_creates if create.name in pods
        ),
        errors=[create.error for create in outcome.creates if create.error],
        creates_per_second=_creates_per_second(measured_creates),
        target_cpu_seconds=(replica_cpu if replicas else outcome.cpu_seconds) / profile.all_creates,
        api_server_cpu_seconds=(cpu_seconds_of(server_pid) - server_cpu_before) / profile.all_creates,
        audited_requests=counts_by_name(select_writes(audited) + _select_reads(audited)),
        metric_writes=counts_by_name(writes_from_metrics(bed.control_plane, API_WRITTEN_RESOURCES) - writes_before),
        list_requests=sum(
            count for (verb, resource), count in audited.items() if verb == "list" and not _is_retention_list(resource)
        ),
    )


async def load_target(
    bed: Testbed, profile: LoadProfile, replicas: Sequence[RuntimeAPIReplica]
) -> CreateAPITarget | CreateFloorTarget:
    if replicas:
        return CreateAPITarget([each.url for each in replicas], API_TOKEN)
    stock_units = await bed.kube.get(STOCK_PATH)
    stock = [
        StockUnit(each["metadata"]["name"], each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        for each in stock_units["items"]
        if each["spec"]["specName"] == profile.name
    ]
    return CreateFloorTarget(service_account_access(bed.control_plane, "runtime-api"), stock)


def unit_request(profile: LoadProfile, number: int) -> dict[str, Any]:
    name = f"{profile.name}-{number}"
    request = {"operationID": f"create-{name}", "name": name, "specName": profile.name, **UNIT_REQUEST}
    return request if profile.replicas else request | {"memory": UNIT_MEMORY, "gpu": UNIT_GPUS}


async def run_load(bed: Testbed, job: CreateJob) -> tuple[CreateLoadResult, dict[str, float]]:
    """Run the load. Return its result, and the times at which the pods of its units were first seen."""
    names, seen = {each["name"] for each in job.requests if bed.controller_manager}, dict[str, float]()
    unit = operator.methodcaller("get", Label.UNIT, "")
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        watch_task = tasks.create_task(record_first_pods(bed.kube, INSTANCE_NAMESPACE, names, unit, seen))
        outcome = await run_create_load(job, bed.folder)
        if any(create.error for create in outcome.creates):
            watch_task.cancel()
    return outcome, seen


async def wait_until_all_idle(bed: Testbed, replicas: Sequence[RuntimeAPIReplica]) -> None:
    """Wait until units are Ready, the pods of consumed stock are deleted, and no replica has sent a request for longer
    than the interval of its recovery sweep."""
    if bed.controller_manager is not None:
        await wait_until_idle(bed.controller_manager)
    await wait_until_consumed_stock_deleted(bed.kube)
    previous = -1.0
    while (requests := sum(each.process.metric_sum("rest_client_requests_total{") for each in replicas)) != previous:
        previous = requests
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


def _is_retention_list(listed: str) -> bool:
    """Whether a list request belongs to the retention of operations. Every replica sends these about every minute, also
    without load."""
    resource, _, query = listed.partition("?")
    return resource == "operations" and ("created-hour" in query or query == "limit=1")
