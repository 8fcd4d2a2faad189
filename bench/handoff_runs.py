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

from bench.create_load import Create, Floor, Job, Outcome, RuntimeAPI, run
from bench.floors.handoff_writes import STOCK, Stock
from bench.kube_api import Bare, Requests, at_a_time, metered_writes, named, service_account, writes
from bench.measured_process import cpu_of
from bench.report import quantile, tell
from bench.start_controller_manager import manager
from bench.start_runtime_api import IDENTITY, TOKEN, Replica, runtime_api
from bench.testbed import Site, all_ready, see_pods, settled, site
from gpu_runtime.contract.crd.well_known import INSTANCE_NAMESPACE, STOCK_NAMESPACE, Label

RATE = 45
WARM_UP = 20
"""Creates before those whose latency counts: connections are opened and code paths run for the first time."""
QUIET = 8
"""Seconds. A replica's sweep looks up to 7.2 s after its start at what was there before it: at its third look."""
WRITTEN = {("operations", ""), ("operations", "status"), ("gpuunits", "")}
"""What nobody but the runtime API writes, or the floor: of GPUUnits, the controller manager writes the status alone."""
STOCK_PODS = f"/api/v1/namespaces/{STOCK_NAMESPACE}/pods"
MEMORY, GPU = "1Gi", 1
SEED_LIMIT = 1000

REQUEST = {
    "image": "python:3.12",
    "access": {"primaryPort": "http", "scheme": "http"},
    "template": {
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "envs": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "port": 8080}],
    },
}


class Load(msgspec.Struct, frozen=True):
    """So many creates at the rate, or so many at a time. Its name is the specName of its own stock."""

    name: str
    creates: int
    replicas: int = 1
    """Of the runtime API. 0: the floor."""
    rate: float = 0
    at_a_time: int = 0
    controlled: bool = False
    """Whether the controller manager is at work, too, and makes the units Ready."""

    @property
    def stock(self) -> int:
        return self.creates + WARM_UP


class Burden(msgspec.Struct):
    """What a load cost, from its first create until nothing moves, units that become Ready included. Seconds and
    requests."""

    load: Load
    latencies: list[float]
    """From when a create was due until its answer, in seconds, rising."""
    until_pod: list[float]
    """From when a create was due until its unit's pod exists."""
    refusals: list[str]
    per_second: float
    cpu_of_contender: float
    cpu_of_api_server: float
    audited: dict[str, int]
    """The contender's requests by the API server's audit log."""
    metered: dict[str, int]
    """Its writes by the API server's metrics."""
    lists: int

    @property
    def writes_per_create(self) -> float:
        """By the metrics, or by the audit log if that knows of more."""
        audited = sum(count for what, count in self.audited.items() if what.split()[0] not in ("get", "list", "watch"))
        return max(sum(self.metered.values()), audited) / self.load.stock

    @property
    def reads_per_create(self) -> float:
        return sum(count for what, count in self.audited.items() if what.startswith("get ")) / self.load.stock

    def latency(self, share: float) -> float:
        return quantile(self.latencies, share)


async def observe(loads: Sequence[Load]) -> list[Burden]:
    """Those that have the machine to themselves, and then, on another control plane, those beside the controllers."""
    alone, controlled = ([load for load in loads if load.controlled is each] for each in (False, True))
    async with site(1, IDENTITY) as at:
        found = await bear_every(at, alone)
    async with site(sum(load.stock for load in controlled), IDENTITY) as at:
        with manager(at.plane, at.folder) as process:
            return found + await bear_every(replace(at, manager=process), controlled)


async def bear_every(at: Site, loads: Sequence[Load]) -> list[Burden]:
    """On one replica, on two, and the floor without any. All stock is there before the first create."""
    found: list[Burden] = []
    with runtime_api(at.plane, at.folder, "runtime-api-1") as first:
        tell(f"stock for {sum(load.stock for load in loads)} units")
        await seed(at, first.url, loads)
        found += await bear_all(at, loads, [first])
        with runtime_api(at.plane, at.folder, "runtime-api-2") as second:
            found += await bear_all(at, loads, [first, second])
    return found + await bear_all(at, loads, [])


async def bear_all(at: Site, loads: Sequence[Load], replicas: Sequence[Replica]) -> list[Burden]:
    """Those of the loads that are meant for so many replicas."""
    await everything_at_rest(at, replicas)
    found = []
    for load in loads:
        if load.replicas == len(replicas):
            tell(load.name)
            found.append(await bear(at, load, replicas))
            tell(f"  p50 {1000 * found[-1].latency(0.5):.0f} ms, p99 {1000 * found[-1].latency(0.99):.0f} ms")
    return found


async def seed(at: Site, url: str, loads: Sequence[Load]) -> None:
    """Stock for every load, through the API, until all of it is Ready, or said to be where nobody makes it so."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        for load in loads:
            for first in range(0, load.stock, SEED_LIMIT):
                count = min(SEED_LIMIT, load.stock - first)
                body = {"operationID": f"{load.name}-{first}", "specName": load.name, "replicas": count}
                body |= {"memory": MEMORY, "gpu": GPU}
                async with session.post("/api/v1/operator/stock-units", json=body) as answer:
                    if answer.status != 202:
                        raise RuntimeError(await answer.text())
    stock = sum(load.stock for load in loads)
    async with asyncio.timeout(600):
        if at.manager is None:
            await report_ready(at.api, stock)
        await all_ready(at.api, STOCK, stock)


async def report_ready(api: Bare, stock: int) -> None:
    """As the controller manager does, of stock that has no pods."""
    ready, reported = {"status": {"phase": "Ready", "readyReplicas": 1}}, set[str]()
    while len(reported) < stock:
        found = {unit["metadata"]["name"] for unit in (await api.read(STOCK))["items"]}
        await at_a_time(8, found - reported, lambda name: api.patch(f"{STOCK}/{name}/status", ready))
        reported |= found


async def bear(at: Site, load: Load, replicas: Sequence[Replica]) -> Burden:
    job = Job(await contender(at, load, replicas), [request(load, n) for n in range(load.stock)], load.rate)
    job.at_a_time = load.at_a_time
    at.audit.news()
    metered, server = metered_writes(at.plane, WRITTEN), at.plane.processes.get("kube-apiserver").pid or 0
    cpu, cpu_of_server = sum(each.program.cpu() for each in replicas), cpu_of(server)
    outcome, pods = await loaded(at, job)
    await everything_at_rest(at, replicas if load.rate else [])
    spent = sum(each.program.cpu() for each in replicas) - cpu if replicas else outcome.cpu
    audited = at.audit.news()
    counted = sorted(outcome.creates, key=lambda create: create.due)[WARM_UP:]
    return Burden(
        load=load,
        latencies=sorted(create.seconds for create in counted),
        until_pod=sorted(pods[create.name] - create.due for create in counted if create.name in pods),
        refusals=[create.refusal for create in outcome.creates if create.refusal],
        per_second=_per_second(counted),
        cpu_of_contender=spent / load.stock,
        cpu_of_api_server=(cpu_of(server) - cpu_of_server) / load.stock,
        audited=named(writes(audited) + _reads(audited)),
        metered=named(metered_writes(at.plane, WRITTEN) - metered),
        lists=sum(count for (verb, what), count in audited.items() if verb == "list" and not _is_retention(what)),
    )


async def contender(at: Site, load: Load, replicas: Sequence[Replica]) -> RuntimeAPI | Floor:
    if replicas:
        return RuntimeAPI([each.url for each in replicas], TOKEN)
    found = await at.api.read(STOCK)
    stock = [
        Stock(each["metadata"]["name"], each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        for each in found["items"]
        if each["spec"]["specName"] == load.name
    ]
    return Floor(service_account(at.plane, "runtime-api"), stock)


def request(load: Load, number: int) -> dict[str, Any]:
    name = f"{load.name}-{number}"
    asked = {"operationID": f"create-{name}", "name": name, "specName": load.name, **REQUEST}
    return asked if load.replicas else asked | {"memory": MEMORY, "gpu": GPU}


async def loaded(at: Site, job: Job) -> tuple[Outcome, dict[str, float]]:
    """The outcome of the load, and when the pods of its units were first seen."""
    names, seen = {each["name"] for each in job.requests if at.manager}, dict[str, float]()
    unit = operator.methodcaller("get", Label.UNIT, "")
    async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(see_pods(at.api, INSTANCE_NAMESPACE, names, unit, seen))
        outcome = await run(job, at.folder)
        if any(create.refusal for create in outcome.creates):
            watching.cancel()
    return outcome, seen


async def everything_at_rest(at: Site, replicas: Sequence[Replica]) -> None:
    """Until units are Ready, the pods of consumed stock are gone, and no replica has asked anything for longer than its
    sweep takes to notice something."""
    if at.manager is not None:
        await settled(at.manager)
    await consumed_stock_gone(at.api)
    asked = -1.0
    while (now := sum(each.program.metric("kube_requests_total{") for each in replicas)) != asked:
        asked = now
        await asyncio.sleep(QUIET if replicas else 0)


async def consumed_stock_gone(api: Bare) -> None:
    while True:
        units, pods = [(await api.read(path))["items"] for path in (STOCK, STOCK_PODS)]
        if len(pods) <= len(units):
            return
        await asyncio.sleep(1)


def _per_second(creates: Sequence[Create]) -> float:
    first, last = min(each.due for each in creates), max(each.answered for each in creates)
    return len(creates) / (last - first)


def _reads(requests: Requests) -> Requests:
    return Counter({key: count for key, count in requests.items() if key[0] in ("get", "list")})


def _is_retention(what: str) -> bool:
    """Whether a list is one that looks for operations to forget: every replica does that about every minute, also when
    nobody asks anything of it."""
    resource, _, query = what.partition("?")
    return resource == "operations" and ("recorded" in query or query == "limit=1")
