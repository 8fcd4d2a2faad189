"""The floor of a unit's convergence: its Kubernetes writes with plain aiohttp and msgspec.

The writes of a unit are a Deployment, a Service, a NetworkPolicy and two patches of the status. The Deployments have no
replicas, so that only the writes are measured. The patches repeat the current status with another time, so that the
controller manager has nothing to correct.
"""

import time
from typing import Any

import msgspec

from bench.kube_api import RawKubeClient, for_each_concurrently
from bench.testbed import ALL_UNITS_PATH, units_path

NAMESPACE = "floor"
WRITES_PER_UNIT = 5
MAX_CONCURRENT_UNITS = 16
"""The same number as the concurrent reconciles of the controller manager."""
DEPLOYMENTS_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SERVICES_PATH = f"/api/v1/namespaces/{NAMESPACE}/services"
NETWORK_POLICIES_PATH = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"


class UnitCost(msgspec.Struct, frozen=True):
    """The cost of one unit."""

    cpu_seconds: float
    wall_seconds: float


async def measure_unit_writes(api: RawKubeClient, count: int, suffix: str) -> UnitCost:
    """Measure the writes for this number of existing units."""
    units = (await api.get(f"{ALL_UNITS_PATH}?limit={count}"))["items"]
    cpu, wall = time.process_time(), time.perf_counter()
    await for_each_concurrently(MAX_CONCURRENT_UNITS, units, lambda unit: _write_unit(api, unit, suffix))
    return UnitCost((time.process_time() - cpu) / len(units), (time.perf_counter() - wall) / len(units))


async def _write_unit(api: RawKubeClient, unit: dict[str, Any], suffix: str) -> None:
    name = f"{unit['metadata']['name']}-{suffix}"
    labels = {"app": name}
    metadata = {"name": name, "labels": labels}
    await api.create(DEPLOYMENTS_PATH, {"metadata": metadata, "spec": _deployment_spec(labels)})
    ports = [{"name": "http", "port": 8080, "protocol": "TCP", "targetPort": 8080}]
    await api.create(SERVICES_PATH, {"metadata": metadata, "spec": {"selector": labels, "ports": ports}})
    ingress = [{"ports": [{"port": 8080, "protocol": "TCP"}]}]
    policy = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": ingress}
    await api.create(NETWORK_POLICIES_PATH, {"metadata": metadata, "spec": policy})
    status = f"{units_path(unit['metadata']['namespace'])}/{unit['metadata']['name']}/status"
    for timestamp in ("2000-01-01T00:00:00Z", "2000-01-01T00:00:01Z"):
        await api.patch(status, {"status": unit["status"] | {"lastSyncTime": timestamp}})


def _deployment_spec(labels: dict[str, str]) -> dict[str, Any]:
    resources = {"memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {
        "name": "main",
        "image": "python:3.12",
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "env": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": resources, "requests": resources},
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
