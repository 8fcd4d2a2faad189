"""The floor of a cold start: the time from the creation of a Deployment until its pod exists.

This is the time that Kubernetes itself needs. No process receives a call, decides about scaling, or creates a unit.
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
    """Return the sorted times from the first request until the pod of each Deployment exists."""
    seen_at: dict[str, float] = {}
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(record_first_pods(api, NAMESPACE, names, operator.methodcaller("get", "app"), seen_at))
        await asyncio.sleep(0.2)  # the watch must be established before the first request
        started_at = time.monotonic()
        await for_each_concurrently(len(names), names, lambda name: api.create(DEPLOYMENTS_PATH, _deployment(name)))
    return sorted(pod_at - started_at for pod_at in seen_at.values())


def _deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "gpu-runtime:local"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}
