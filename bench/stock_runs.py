"""Starts units, workers and bare pods on a real node, with and without stock, and records when each step happens."""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import aiohttp
import msgspec

from bench.function_runs import BenchFunction
from bench.kube_api import RawKubeClient, admin_access, raw_kube_client
from bench.report import log_progress
from bench.testbed import wait_until, watch_lines
from gpu_runtime.contract.crd.well_known import Annotation
from localcluster import dev_platform
from localcluster.node import Node, temporary_node

NAMESPACE, STOCK_NAMESPACE, BARE_NAMESPACE = "runtime-instance", "runtime-stock", "default"
UNITS_PATH = f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{NAMESPACE}/gpuunits"
POOLS_PATH = f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{NAMESPACE}/stockpools"
STOCK_PATH = f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{STOCK_NAMESPACE}/gpuunits"
NODE_GPUS = 16
POOL_SIZE = 2
PORT = 8080
ANSWER_POLL_SECONDS = 0.01
SETTLE_SECONDS = 2.0
"""The pause before each start. Stock is usually older than this. Immediately after a start or an end of a pod, the node
still works: it unmounts volumes, writes the status of pods, and changes the rules of Services."""
TIMEOUT_SECONDS = 60
ORDER_SEED = 7
"""The seed of the order of the ways in each round."""

# The server handles SIGTERM, because PID 1 of a container ignores SIGTERM without a handler.
SERVER = """
import http.server, os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
TEMPLATE: dict[str, Any] = {
    "command": ["python", "-c"],
    "args": [SERVER],
    "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
}
IMAGE = "python:3.12"
PROBES = {"readiness": {"tcpSocket": {}, "periodSeconds": 1}}
"""What the runtime API adds to a unit without probes."""


class Way(StrEnum):
    """How the program starts. The way of a function starts with its invocation."""

    BARE_POD = "bare pod"
    NO_STOCK = "no stock"
    RESERVED = "reserved, another GPU is free"
    FULL_BARE_POD = "bare pod with all GPUs"
    FULL_NO_STOCK = "no stock, all GPUs"
    FULL_RESERVED = "reserved, node full"
    PREPARED = "prepared"
    FUNCTION_NO_STOCK = "function, no stock"
    FUNCTION_RESERVED = "function, reserved, another GPU is free"
    FULL_FUNCTION_NO_STOCK = "function, no stock, all GPUs"
    FULL_FUNCTION_RESERVED = "function, reserved, node full"

    @property
    def gpus(self) -> int:
        return NODE_GPUS if self.name.startswith("FULL_") else 1

    @property
    def is_bare_pod(self) -> bool:
        return self in (Way.BARE_POD, Way.FULL_BARE_POD)

    @property
    def is_function(self) -> bool:
        return "FUNCTION" in self.name

    @property
    def uses_reserved_stock(self) -> bool:
        return self.name.endswith("RESERVED")

    @property
    def spec_name(self) -> str:
        return "all" if self.gpus == NODE_GPUS else "prepared" if self is Way.PREPARED else "one"


class Start(msgspec.Struct):
    """One measured start. The times are seconds since the first request."""

    way: Way
    times: dict[str, float]


@dataclass
class Timeline:
    """The first time at which each step was seen."""

    name: str
    started_at: float
    times: dict[str, float] = field(default_factory=dict)
    address: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_from_stock: bool = False
    """Whether the unit was created from stock."""
    reachable: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, step: str) -> None:
        self.times.setdefault(step, time.perf_counter() - self.started_at)

    def see_pod(self, pod: Any) -> None:
        labels, status = pod["metadata"].get("labels", {}), pod.get("status", {})
        if self.name not in (labels.get("runtime.lokiwager.io/unit"), labels.get("app")):
            return
        self.record("pod created")
        if pod["spec"].get("nodeName"):
            self.record("pod scheduled")
        if any(each.get("started") for each in status.get("initContainerStatuses", ())):
            self.record("sidecar started")
        if any(each.get("started") for each in status.get("containerStatuses", ())):
            self.record("container started")
        if any(each["type"] == "Ready" and each["status"] == "True" for each in status.get("conditions", ())):
            self.record("pod ready")

    def see_service(self, service: Any) -> None:
        if service["metadata"]["name"] == self.name:
            self.record("service created")
            if not self.address.done():
                self.address.set_result(service["spec"]["clusterIP"])

    def see_stock_pod(self, pod: Any) -> None:
        """Record the end of the consumed stock unit. There is only one stock unit."""
        if pod["metadata"].get("deletionTimestamp"):
            self.record("stock pod deleted")
        if pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
            self.record("stock pod ended")

    def see_unit(self, unit: Any) -> None:
        metadata = unit["metadata"]
        if metadata["name"] != self.name:
            return
        self.record("unit created")
        self.is_from_stock = Annotation.SOURCE_STOCK_UID in metadata.get("annotations", {})
        if unit.get("status", {}).get("phase") == "Ready":
            self.record("unit ready")
            self.ready.set()

    def see_endpoints(self, endpoints: Any) -> None:
        is_own = endpoints["metadata"].get("labels", {}).get("kubernetes.io/service-name") == self.name
        if is_own and any(each["conditions"].get("ready") for each in endpoints.get("endpoints") or ()):
            self.record("endpoint ready")
            self.reachable.set()


class StockBench:
    def __init__(self, kube: RawKubeClient, http: aiohttp.ClientSession, api_url: str) -> None:
        self._kube, self._http, self._api_url = kube, http, api_url
        self._current: Timeline | None = None

    async def watch(self, path: str, see: Callable[[Timeline, Any], None]) -> None:
        while True:
            async with watch_lines(self._kube, path) as lines:
                async for line in lines:
                    if self._current is not None:
                        see(self._current, msgspec.json.decode(line)["object"])

    async def start(self, way: Way) -> Start:
        """Start a program, wait until it answers, remove it again, and return the times."""
        await self._prepare(way)
        await asyncio.sleep(SETTLE_SECONDS)
        name = self.function(way).worker_name if way.is_function else f"u-{uuid.uuid4().hex[:8]}"
        self._current = timeline = Timeline(name, time.perf_counter())
        async with asyncio.timeout(TIMEOUT_SECONDS):
            if way.is_function:
                await self.function(way).invoke()
            else:
                await self._create(way, name)
                timeline.record("request answered")
                address = await timeline.address
                await timeline.reachable.wait()
                await wait_for_answer(address)
            timeline.record("program answers")
            if not way.is_bare_pod and not way.is_function:
                await timeline.ready.wait()
        self._current = None
        if way.is_function and timeline.is_from_stock is not way.uses_reserved_stock:
            raise RuntimeError(f"{way}: the worker was created {'from' if timeline.is_from_stock else 'without'} stock")
        await self._remove(way, name)
        return Start(way, timeline.times)

    def function(self, way: Way) -> BenchFunction:
        return BenchFunction(self._kube, self.request, way.spec_name, way.gpus)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        async with self._http.request(method, self._api_url + path, json=body) as response:
            text = await response.text()
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {response.status} {text}")
            return msgspec.json.decode(text or "null")

    async def create_pool(self) -> None:
        """Create the pool of prepared pods. It keeps its size: it replaces each pod that a unit takes."""
        spec = {"specName": Way.PREPARED.spec_name, "image": IMAGE, "memory": "128Mi", "gpu": 1, "replicas": POOL_SIZE}
        manifest = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "StockPool", "metadata": {"name": "warm"}}
        await self._kube.create(POOLS_PATH, manifest | {"spec": spec | {"template": TEMPLATE, "adoptable": True}})

    async def _is_pool_full(self) -> bool:
        return bool((await self._kube.get(f"{POOLS_PATH}/warm")).get("status", {}).get("phase") == "Ready")

    async def _prepare(self, way: Way) -> None:
        if way is Way.PREPARED:
            await wait_until(self._is_pool_full)
        if not way.uses_reserved_stock:
            return
        body = {"operationID": f"seed-{uuid.uuid4().hex}", "specName": way.spec_name, "memory": "128Mi"}
        await self.request("POST", "/operator/stock-units", body | {"gpu": way.gpus, "replicas": 1})
        query = f"/operator/stock-units?specName={way.spec_name}&phase=Ready&claimed=false"
        await wait_until(lambda: self._has_items(query))

    async def _has_items(self, path: str) -> bool:
        return bool((await self.request("GET", path))["data"])

    async def _create(self, way: Way, name: str) -> None:
        if way.is_bare_pod:
            await self._create_bare_pod(way, name)
        elif way in (Way.NO_STOCK, Way.FULL_NO_STOCK):
            await self._kube.create(UNITS_PATH, _unit_manifest(way, name))
        else:
            body = {"operationID": name, "name": name, "specName": way.spec_name, "image": IMAGE}
            await self.request("POST", "/gpu-units", body | {"template": TEMPLATE})

    async def _create_bare_pod(self, way: Way, name: str) -> None:
        await self._kube.create(f"/api/v1/namespaces/{BARE_NAMESPACE}/pods", _bare_pod(way, name))
        await self._kube.create(f"/api/v1/namespaces/{BARE_NAMESPACE}/services", _bare_service(name))

    async def _remove(self, way: Way, name: str) -> None:
        if way.is_function:
            await self.function(way).scale_to_zero(from_stock=way.uses_reserved_stock)
        elif way.is_bare_pod:
            for kind in ("pods", "services"):
                await self._kube.delete(f"/api/v1/namespaces/{BARE_NAMESPACE}/{kind}/{name}", {})
        else:
            await self._kube.delete(f"{UNITS_PATH}/{name}", {"propagationPolicy": "Background"})
        await wait_until(self._is_quiet)
        if way is Way.PREPARED:
            await wait_until(self._is_pool_full)  # or the start of the new pod would slow down the next way

    async def _is_quiet(self) -> bool:
        """Whether no pod of a unit, no stock unit and no stock pod exists."""
        if (await self._kube.get(STOCK_PATH))["items"]:
            return False
        for namespace in (NAMESPACE, STOCK_NAMESPACE, BARE_NAMESPACE):
            pods = await self._kube.get(f"/api/v1/namespaces/{namespace}/pods")
            if any("runtime.lokiwager.io/pool" not in each["metadata"].get("labels", {}) for each in pods["items"]):
                return False
        return True


async def wait_for_answer(address: str) -> None:
    """Send requests to the program through its Service until one is answered.

    The kernel drops the first packet of a connection to a Service that kube-proxy does not know yet, and sends it again
    after a second. So the requests overlap.
    """
    answered = asyncio.Event()
    async with asyncio.TaskGroup() as requests:
        sent = []
        while not answered.is_set():
            sent.append(requests.create_task(_request_answer(address, answered)))
            with suppress(TimeoutError):
                await asyncio.wait_for(answered.wait(), ANSWER_POLL_SECONDS)
        for request in sent:
            request.cancel()


async def _request_answer(address: str, answered: asyncio.Event) -> None:
    with suppress(OSError):
        reader, writer = await asyncio.open_connection(address, PORT)
        try:
            writer.write(b"HEAD / HTTP/1.0\r\n\r\n")
            if b" 200 " in await reader.readline():
                answered.set()
        finally:
            writer.close()


WATCHED = (
    (f"/api/v1/namespaces/{STOCK_NAMESPACE}/pods", Timeline.see_stock_pod),
    (f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{NAMESPACE}/gpuunits", Timeline.see_unit),
    *(
        (f"{group}/namespaces/{namespace}/{kind}", see)
        for namespace in (NAMESPACE, BARE_NAMESPACE)
        for group, kind, see in (
            ("/api/v1", "pods", Timeline.see_pod),
            ("/api/v1", "services", Timeline.see_service),
            ("/apis/discovery.k8s.io/v1", "endpointslices", Timeline.see_endpoints),
        )
    ),
)


@asynccontextmanager
async def stock_bench(node: Node) -> AsyncIterator[StockBench]:
    """Deploy the platform to the node, and yield a bench that records the events of its pods and Services."""
    log_progress("deploying the platform")
    dev_platform.apply_kustomizations(node, *dev_platform.KUSTOMIZATIONS)
    for namespace, workload in dev_platform.WORKLOADS:
        node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=240s")
    async with AsyncExitStack() as stack:
        kube = await stack.enter_async_context(raw_kube_client(admin_access(node.control_plane)))
        service = await kube.get("/api/v1/namespaces/runtime-system/services/runtime-api")
        http = await stack.enter_async_context(aiohttp.ClientSession())
        bench = StockBench(kube, http, f"http://{service['spec']['clusterIP']}:8080/api/v1")
        async with asyncio.TaskGroup() as watches:
            tasks = [watches.create_task(bench.watch(path, see)) for path, see in WATCHED]
            yield bench
            for task in tasks:
                task.cancel()


async def measure_starts(ways: list[Way], rounds: int) -> list[Start]:
    """Measure all ways in turn, so that all have the same conditions."""
    starts: list[Start] = []
    rng = random.Random(ORDER_SEED)  # noqa: S311 - no secret
    with temporary_node(NODE_GPUS) as node:
        async with stock_bench(node) as bench:
            functions = {way.spec_name: bench.function(way) for way in ways if way.is_function}
            for function in functions.values():
                await function.create()
            # The ways that need all GPUs of the node run without the pool, which holds some.
            for group in (
                [way for way in ways if way.gpus == NODE_GPUS],
                [way for way in ways if way.gpus < NODE_GPUS],
            ):
                if Way.PREPARED in group:
                    await bench.create_pool()
                for way in group:
                    await bench.start(way)  # the first start of each way is not measured
                for index in range(rounds if group else 0):
                    log_progress(f"round {index + 1} of {rounds}: {', '.join(group)}")
                    # Each way follows another one in each round.
                    starts += [await bench.start(way) for way in rng.sample(group, len(group))]
    return starts


def _unit_manifest(way: Way, name: str) -> dict[str, Any]:
    spec = {"specName": way.spec_name, "image": IMAGE, "memory": "128Mi", "gpu": way.gpus}
    return {
        "apiVersion": "runtime.lokiwager.io/v1alpha1",
        "kind": "GPUUnit",
        "metadata": {"name": name},
        "spec": spec | {"template": TEMPLATE, "probes": PROBES},
    }


def _bare_pod(way: Way, name: str) -> dict[str, Any]:
    amounts = {"memory": "128Mi", "nvidia.com/gpu": str(way.gpus)}
    container = {
        "name": "main",
        "image": IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": TEMPLATE["command"],
        "args": TEMPLATE["args"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": amounts, "requests": amounts},
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    metadata = {"name": name, "labels": {"app": name}}
    spec = {"containers": [container], "enableServiceLinks": False, "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _bare_service(name: str) -> dict[str, Any]:
    ports = [{"name": "http", "port": PORT, "targetPort": PORT}]
    spec = {"selector": {"app": name}, "ports": ports, "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
