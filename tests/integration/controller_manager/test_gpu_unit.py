"""GPUUnits on a real API server with simulated nodes."""

from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Service

from tests.integration.controller_manager.conftest import UNIT, ControllerCluster, ready_condition

WEB = {
    "specName": "g1.1",
    "image": "python:3.12",
    "memory": "1Gi",
    "gpu": 1,
    "access": {"primaryPort": "http", "scheme": "http"},
    "template": {
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "envs": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "port": 8080}],
    },
}


def test_active_unit_becomes_ready_and_reachable(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "web", WEB)
    unit = cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    assert unit["status"]["phase"] == "Ready"
    assert unit["status"]["readyReplicas"] == 1
    assert unit["status"]["serviceName"] == "web"
    assert unit["status"]["accessURL"] == f"http://web.{namespace}.svc.cluster.local:8080"
    assert unit["status"]["observedGeneration"] == unit["metadata"]["generation"]
    assert ready_condition(unit)["status"] == "True"
    deployment = cluster.get(Deployment, namespace, "web")
    assert deployment
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    pod = deployment["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "gpu-runtime-active"
    assert pod["automountServiceAccountToken"] is False
    container = pod["containers"][0]
    assert container["image"] == "python:3.12"
    limits = {"memory": "1Gi", "nvidia.com/gpu": "1", "ephemeral-storage": "100Gi"}
    assert container["resources"]["limits"] == limits
    assert container["env"] == [{"name": "MODEL_ID", "value": "demo"}]
    service = cluster.get(Service, namespace, "web")
    assert service
    assert [port["port"] for port in service["spec"]["ports"]] == [8080]


def test_stock_unit_reserves_resources_without_a_service(cluster: ControllerCluster) -> None:
    cluster.create(UNIT, "runtime-stock", "envelope", {"specName": "g1.1", "memory": "1Gi", "gpu": 1})
    unit = cluster.wait_reason(UNIT, "runtime-stock", "envelope", "UnitReady")
    assert "serviceName" not in unit["status"]
    assert "accessURL" not in unit["status"]
    assert cluster.is_deleted(Service, "runtime-stock", "envelope")
    deployment = cluster.get(Deployment, "runtime-stock", "envelope")
    assert deployment
    pod = deployment["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "gpu-runtime-stock"
    assert pod["containers"][0]["image"] == "gpu-runtime:local"
    cluster.kube.delete(UNIT, "envelope", namespace="runtime-stock")
