"""CPU per request of the Kubernetes client, against the floor of bare aiohttp with msgspec, in the same run.

    python bench/kube_client.py [--requests 500] [--rounds 10] [--concurrency 16]

Rounds alternate between floor and client, so that a busy machine disturbs both alike. The figure is each one's least:
that is what the code costs, and the rest is what the machine was doing besides.
"""

import argparse
import asyncio
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.core import LEASES, Lease
from gpu_runtime.kube.election import Leadership
from gpu_runtime.kube.objects import Key
from localcluster.control_plane import ControlPlane, control_plane

LIMIT = 1.5
NAMESPACE = "default"

Request = Callable[[str], Awaitable[object]]


@dataclass
class Contender:
    name: str
    requests: dict[str, Request]
    cpu: dict[str, list[float]] = field(default_factory=dict)
    rate: dict[str, list[float]] = field(default_factory=dict)

    async def run(self, verb: str, names: list[str], concurrency: int) -> None:
        request, waiting = self.requests[verb], iter(names)

        async def worker() -> None:
            for name in waiting:
                await request(name)

        cpu, wall = time.process_time(), time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                tasks.create_task(worker())
        self.cpu.setdefault(verb, []).append((time.process_time() - cpu) / len(names))
        self.rate.setdefault(verb, []).append(len(names) / (time.perf_counter() - wall))


def manifest(name: str) -> dict[str, object]:
    spec = {"holderIdentity": "bench", "leaseDurationSeconds": 15}
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": "bench"}}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


async def floor(plane: ControlPlane, stack: AsyncExitStack) -> Contender:
    """The least that could be done: one session, one decoder, no retries, no fence, no errors."""
    admin = plane.authority.issue("admin", "admin", ["system:masters"])
    tls = ssl.create_default_context(cafile=str(plane.authority.certificate))
    tls.load_cert_chain(admin.certificate, admin.key)
    session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls)))
    base = f"{plane.url}/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    decoder = msgspec.json.Decoder(Lease)
    json = {"Content-Type": "application/json"}

    async def create(name: str) -> Lease:
        async with session.post(base, data=msgspec.json.encode(manifest(name)), headers=json) as answer:
            return decoder.decode(await answer.read())

    async def get(name: str) -> Lease:
        async with session.get(f"{base}/{name}") as answer:
            return decoder.decode(await answer.read())

    return Contender("bare aiohttp + msgspec", {"create": create, "get": get})


async def product(plane: ControlPlane, stack: AsyncExitStack) -> Contender:
    """The client as a leading controller uses it: fenced, with retries and strict validation."""
    config = load_config(plane.kubeconfig)
    client = (await stack.enter_async_context(connect(config, field_manager="bench"))).fenced(
        Leadership(lambda: 0.0, 1)
    )
    return Contender(
        "gpu_runtime.kube.client",
        {
            "create": lambda name: client.create(LEASES, manifest(name)),
            "get": lambda name: client.get(LEASES, Key(NAMESPACE, name)),
        },
    )


async def measure(plane: ControlPlane, requests: int, rounds: int, concurrency: int) -> list[Contender]:
    async with AsyncExitStack() as stack:
        contenders = [await floor(plane, stack), await product(plane, stack)]
        for turn in range(-1, rounds):
            for position, contender in enumerate(contenders):
                names = [f"bench-{turn + 1}-{position}-{number}" for number in range(requests)]
                for verb in ("create", "get"):
                    await contender.run(verb, names, concurrency)
                if turn < 0:  # connections, caches and code paths are warm after the first turn
                    contender.cpu.clear()
                    contender.rate.clear()
        return contenders


def report(contenders: list[Contender]) -> bool:
    print(f"{'':26}{'verb':8}{'CPU ms/request':>16}{'requests/s':>12}{'ratio':>8}")
    worst = 0.0
    for verb in ("create", "get"):
        least = min(contenders[0].cpu[verb])
        for contender in contenders:
            cpu, rate = min(contender.cpu[verb]), max(contender.rate[verb])
            worst = max(worst, cpu / least)
            print(f"{contender.name:26}{verb:8}{cpu * 1000:16.3f}{rate:12.0f}{cpu / least:8.2f}")
    print(f"worst ratio {worst:.2f}, at most {LIMIT} is allowed")
    return worst <= LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    with control_plane(nodes=0) as plane:
        os.nice(5)
        contenders = asyncio.run(measure(plane, options.requests, options.rounds, options.concurrency))
    if not report(contenders):
        sys.exit(1)


if __name__ == "__main__":
    main()
