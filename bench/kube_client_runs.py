"""Measures the CPU time per request of the Kubernetes client, and of the floor: plain aiohttp with msgspec.

The rounds alternate between floor and client, so that other load on the machine affects both in the same way. The
result is the median of the rounds.
"""

import ssl
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
import msgspec

from bench.kube_api import for_each_concurrently
from gpu_runtime.kube.builtin_kinds import LEASES, Lease
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.election import Leadership
from gpu_runtime.kube.meta import ObjectKey
from localcluster.control_plane import ControlPlane

MAX_CPU_RATIO = 1.5
NAMESPACE = "default"


class ClientComparison(msgspec.Struct):
    """The CPU time per request in milliseconds, by verb."""

    floor: dict[str, float]
    product: dict[str, float]


SendRequest = Callable[[str], Awaitable[object]]


@dataclass
class MeasuredClient:
    name: str
    requests: dict[str, SendRequest]
    cpu_seconds: dict[str, list[float]] = field(default_factory=dict)

    def median_milliseconds(self) -> dict[str, float]:
        return {verb: 1000 * statistics.median(spent) for verb, spent in self.cpu_seconds.items()}

    async def run(self, verb: str, names: list[str], concurrency: int) -> None:
        cpu = time.process_time()
        await for_each_concurrently(concurrency, names, self.requests[verb])
        self.cpu_seconds.setdefault(verb, []).append((time.process_time() - cpu) / len(names))


def lease_manifest(name: str) -> dict[str, object]:
    spec = {"holderIdentity": "bench", "leaseDurationSeconds": 15}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": "bench"}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


async def floor_client(plane: ControlPlane, stack: AsyncExitStack) -> MeasuredClient:
    """The minimal implementation: one session, one decoder, no retries, no leader fencing, no error handling."""
    admin = plane.authority.issue("admin", "admin", ["system:masters"])
    tls_context = ssl.create_default_context(cafile=str(plane.authority.certificate))
    tls_context.load_cert_chain(admin.certificate, admin.key)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls_context)))
    base = f"{plane.url}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    decoder = msgspec.json.Decoder(Lease)
    json_headers = {"Content-Type": "application/json"}

    async def create(name: str) -> Lease:
        async with session.post(base, data=msgspec.json.encode(lease_manifest(name)), headers=json_headers) as response:
            return decoder.decode(await response.read())

    async def get(name: str) -> Lease:
        async with session.get(f"{base}/{name}") as response:
            return decoder.decode(await response.read())

    return MeasuredClient("bare aiohttp + msgspec", {"create": create, "get": get})


async def product_client(plane: ControlPlane, stack: AsyncExitStack) -> MeasuredClient:
    """The client as a leading controller uses it: with leader fencing, retries and strict validation."""
    config = load_cluster_config(plane.kubeconfig)
    client = (await stack.enter_async_context(open_kube_client(config, field_manager="bench"))).fenced(
        Leadership(lambda: 0.0, 60)
    )
    return MeasuredClient(
        "gpu_runtime.kube.client",
        {
            "create": lambda name: client.create(LEASES, lease_manifest(name)),
            "get": lambda name: client.get(LEASES, ObjectKey(NAMESPACE, name)),
        },
    )


async def measure(plane: ControlPlane, requests: int, rounds: int, concurrency: int) -> ClientComparison:
    async with AsyncExitStack() as stack:
        clients = [await floor_client(plane, stack), await product_client(plane, stack)]
        for round_number in range(-1, rounds):
            for position, client in enumerate(clients):
                names = [f"bench-{round_number + 1}-{position}-{number}" for number in range(requests)]
                for verb in ("create", "get"):
                    await client.run(verb, names, concurrency)
                if round_number < 0:  # the first round only warms up connections, caches and code paths
                    client.cpu_seconds.clear()
        floor, product = clients
        return ClientComparison(floor.median_milliseconds(), product.median_milliseconds())
