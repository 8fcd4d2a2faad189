"""The floor of a unit's convergence: its writes with aiohttp and msgspec, and nothing between.

A Deployment, a Service, a NetworkPolicy and two patches of a status for each. The Deployments want no pods, so that
only the writes are measured. The patches say what the statuses say already, and another time, so that nobody has
anything to correct.
"""

import time
from typing import Any

import msgspec

from bench.kube_api import RawKubeClient, for_each_concurrently
from bench.testbed import ALL_UNITS_PATH, units_path

NAMESPACE = "floor"
WRITES_PER_UNIT = 5
MAX_CONCURRENT_UNITS = 16
"""As many requests as the controller manager has workers."""
DEPLOYMENTS_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SERVICES_PATH = f"/api/v1/namespaces/{NAMESPACE}/services"
NETWORK_POLICIES_PATH = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"


class UnitCost(msgspec.Struct, frozen=True):
    """Seconds per unit."""

    cpu_seconds: float
    wall_seconds: float


async def measure_unit_writes(api: RawKubeClient, count: int, suffix: str) -> UnitCost:
    """What the writes of some of all units cost."""
    found = (await api.get(f"{ALL_UNITS_PATH}?limit={count}"))["items"]
    cpu, wall = time.process_time(), time.perf_counter()
    await for_each_concurrently(MAX_CONCURRENT_UNITS, found, lambda unit: _write_unit(api, unit, suffix))
    return UnitCost((time.process_time() - cpu) / len(found), (time.perf_counter() - wall) / len(found))


async def _write_unit(api: RawKubeClient, unit: dict[str, Any], suffix: str) -> None:
    name = f"{unit['metadata']['name']}-{suffix}"
    labels = {"app": name}
    metadata = {"name": name, "labels": labels}
    await api.create(DEPLOYMENTS_PATH, {"metadata": metadata, "spec": _deployment_spec(labels)})
    ports = [{"name": "http", "port": 8080, "protocol": "TCP", "targetPort": 8080}]
    await api.create(SERVICES_PATH, {"metadata": metadata, "spec": {"selector": labels, "ports": ports}})
    opened = [{"ports": [{"port": 8080, "protocol": "TCP"}]}]
    policy = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": opened}
    await api.create(NETWORK_POLICIES_PATH, {"metadata": metadata, "spec": policy})
    status = f"{units_path(unit['metadata']['namespace'])}/{unit['metadata']['name']}/status"
    for moment in ("2000-01-01T00:00:00Z", "2000-01-01T00:00:01Z"):
        await api.patch(status, {"status": unit["status"] | {"lastSyncTime": moment}})


def _deployment_spec(labels: dict[str, str]) -> dict[str, Any]:
    amounts = {"memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {
        "name": "main",
        "image": "python:3.12",
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "env": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod = {"automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container]}
    return {
        "replicas": 0,
        "paused": True,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
