"""The floor of a start from zero: Deployments that somebody simply creates, until their pods exist.

That is what Kubernetes itself takes between the wish for a pod and the pod. Nobody notices a call, decides, or makes a
unit.
"""

import asyncio
import operator
import time
from collections.abc import Collection
from typing import Any

from bench.kube_api import RawKubeClient, for_each_concurrently
from bench.testbed import record_first_pods

NAMESPACE = "floor"
DEPLOYMENTS_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"


async def measure_pod_starts(api: RawKubeClient, names: Collection[str]) -> list[float]:
    """Seconds from the first request until each one's pod exists, rising."""
    seen: dict[str, float] = {}
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(record_first_pods(api, NAMESPACE, names, operator.methodcaller("get", "app"), seen))
        await asyncio.sleep(0.2)  # until the watch is there
        began = time.monotonic()
        await for_each_concurrently(len(names), names, lambda name: api.create(DEPLOYMENTS_PATH, _deployment(name)))
    return sorted(moment - began for moment in seen.values())


def _deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "gpu-runtime:local"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}
