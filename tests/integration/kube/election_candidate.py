"""A leader election candidate that sends unconditional writes as fast as possible while it leads.

    python election_candidate.py KUBECONFIG NAMESPACE NAME

It prints `candidate` after the first response of the server, `leading` when it leads, and the reason when it ends.
"""

import asyncio
import contextlib
import itertools
import sys
from pathlib import Path

from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.election import LeaderElectionConfig, LeaderElector
from gpu_runtime.kube.errors import KubeConflict, KubeNotLeader, KubeUnreachable
from gpu_runtime.kube.meta import ApiResource, KubeObject, ObjectKey

CONFIG_MAPS = ApiResource("", "v1", "ConfigMap", "configmaps", KubeObject)
WRITERS = 24
ELECTION_CONFIG = LeaderElectionConfig(lease_duration=5, renew_deadline=4, retry_period=0.5)


async def main(kubeconfig: Path, namespace: str, name: str) -> None:
    async with open_kube_client(load_cluster_config(kubeconfig), field_manager=name, max_connections=8) as client:
        elector = LeaderElector(client, ObjectKey(namespace, "lead"), name, ELECTION_CONFIG)
        writer = client.fenced(elector.leadership)

        async def work() -> None:
            print("leading", flush=True)
            async with asyncio.TaskGroup() as tasks:
                for number in range(WRITERS):
                    tasks.create_task(write(number))

        async def write(number: int) -> None:
            for count in itertools.count():
                patch = {"data": {"writer": name, f"count-{number}": str(count)}}
                with contextlib.suppress(
                    KubeUnreachable, KubeConflict
                ):  # a response may have arrived while the process was paused
                    await writer.merge_patch(CONFIG_MAPS, ObjectKey(namespace, "work"), patch)

        await client.server_version()
        print("candidate", flush=True)
        try:
            await elector.run(work)
        except KubeNotLeader as lost:
            print(f"lost: {lost}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
