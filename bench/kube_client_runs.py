"""CPU per request of the Kubernetes client, against the floor of bare aiohttp with msgspec, in the same run.

Rounds alternate between floor and client, so that a busy machine disturbs both alike. The figure is the median of each
one's rounds.
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
    """Milliseconds of CPU per request, by verb."""

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
    """The least that could be done: one session, one decoder, no retries, no fence, no errors."""
    admin = plane.authority.issue("admin", "admin", ["system:masters"])
    tls = ssl.create_default_context(cafile=str(plane.authority.certificate))
    tls.load_cert_chain(admin.certificate, admin.key)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)))
    base = f"{plane.url}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    decoder = msgspec.json.Decoder(Lease)
    json = {"Content-Type": "application/json"}

    async def create(name: str) -> Lease:
        async with session.post(base, data=msgspec.json.encode(lease_manifest(name)), headers=json) as answer:
            return decoder.decode(await answer.read())

    async def get(name: str) -> Lease:
        async with session.get(f"{base}/{name}") as answer:
            return decoder.decode(await answer.read())

    return MeasuredClient("bare aiohttp + msgspec", {"create": create, "get": get})


async def product_client(plane: ControlPlane, stack: AsyncExitStack) -> MeasuredClient:
    """The client as a leading controller uses it: fenced, with retries and strict validation."""
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
        contenders = [await floor_client(plane, stack), await product_client(plane, stack)]
        for turn in range(-1, rounds):
            for position, contender in enumerate(contenders):
                names = [f"bench-{turn + 1}-{position}-{number}" for number in range(requests)]
                for verb in ("create", "get"):
                    await contender.run(verb, names, concurrency)
                if turn < 0:  # connections, caches and code paths are warm after the first turn
                    contender.cpu_seconds.clear()
        least, ours = contenders
        return ClientComparison(least.median_milliseconds(), ours.median_milliseconds())
