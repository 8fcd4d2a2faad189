"""The responses of the API while Kubernetes is unreachable, and after it is reachable again."""

import time
import urllib.request
from signal import SIGCONT, SIGSTOP
from typing import Any

from localcluster.supervisor_client import wait_until
from tests.integration.runtime_api.edge.conftest import ApiCluster, ApiProcess

STOCK = {"specName": "g1.1"}
MAX_RESPONSE_SECONDS = 20.0
"""Below the request timeout, with a margin for slow machines."""


def timed_request(replica: ApiProcess, path: str, **options: object) -> tuple[int, float]:
    started = time.monotonic()
    status = replica.request(path, **options).status  # type: ignore[arg-type]
    return status, time.monotonic() - started


def health_of(replica: ApiProcess) -> Any:
    return replica.request("/api/v1/health").json["data"]


def is_kubernetes_connected(replica: ApiProcess) -> bool:
    data = replica.request("/api/v1/health").json["data"]
    assert (data["status"] == "ok") <= data["kubernetesConnected"]
    return bool(data["kubernetesConnected"])


def test_process_works_with_its_service_account(cluster: ApiCluster) -> None:
    replica = cluster.start_replica().wait_ready()
    wait_until(lambda: health_of(replica)["status"] == "ok", 60, lambda: f"not healthy: {health_of(replica)}")
    assert health_of(replica)["kubernetesVersion"].startswith("v1.")
    assert replica.request("/test/units", "POST", {"name": "identity", "spec": STOCK}).status == 201
    assert "identity" in replica.request("/test/units").json["data"]
    assert not [line for line in replica.log_lines if "forbidden" in str(line)]


def test_kubernetes_rejection_is_reported_by_request_field(cluster: ApiCluster) -> None:
    replica = cluster.start_replica().wait_ready()
    rejected = replica.request("/test/units", "POST", {"name": "invalid", "spec": STOCK | {"gpu": -1}})
    assert (rejected.status, rejected.json["error"]["code"]) == (400, "invalid")
    assert rejected.json["error"]["details"][0]["field"] == "gpu"


def test_killed_api_server_is_503_until_it_returns(cluster: ApiCluster) -> None:
    replica = cluster.start_replica().wait_ready()
    plane = cluster.control_plane
    plane.processes.stop("kube-apiserver")
    assert not is_kubernetes_connected(replica)
    assert replica.request("/readyz").status == 200, (
        "the replica must stay ready: a restart or another replica would not help"
    )
    status, seconds = timed_request(replica, "/test/units", method="POST", body={"name": "unreachable", "spec": STOCK})
    assert (status, seconds < MAX_RESPONSE_SECONDS) == (503, True), seconds
    rejected = replica.wait_for("/test/units", 503, timeout=60)
    assert "Kubernetes cannot be reached" in rejected.json["error"]["message"]
    assert int(rejected.headers["Retry-After"]) >= 1
    plane.start_apiserver()
    plane.wait_ready()
    replica.wait_for("/test/units", 200)
    wait_until(lambda: is_kubernetes_connected(replica), 60, lambda: "health is still degraded")
    assert replica.request("/test/units", "POST", {"name": "reachable", "spec": STOCK}).status == 201


def test_silent_api_server_blocks_no_request(cluster: ApiCluster) -> None:
    replica = cluster.start_replica().wait_ready()
    plane = cluster.control_plane
    plane.processes.signal("kube-apiserver", SIGSTOP)
    try:
        for path in ("/api/v1/health", "/healthz"):
            status, seconds = timed_request(replica, path)
            assert (status, seconds < MAX_RESPONSE_SECONDS) == (200, True), (path, seconds)
        metrics = f"http://127.0.0.1:{replica.health_port}/metrics"
        with urllib.request.urlopen(metrics, timeout=MAX_RESPONSE_SECONDS) as response:
            assert response.status == 200
        status, seconds = timed_request(replica, "/test/units", method="POST", body={"name": "silent", "spec": STOCK})
        assert (status, seconds < MAX_RESPONSE_SECONDS) == (503, True), seconds
    finally:
        plane.processes.signal("kube-apiserver", SIGCONT)
    replica.wait_for("/test/units", 200)


def test_process_listens_and_is_not_ready_before_kubernetes_is_reachable(cluster: ApiCluster) -> None:
    plane = cluster.control_plane
    plane.processes.stop("kube-apiserver")
    replica = cluster.start_replica()
    health = replica.wait_for("/api/v1/health", 200)
    assert (health.json["data"]["kubernetesConnected"], health.json["data"]["cachesComplete"]) == (False, False)
    assert replica.request("/readyz").status == 503
    rejected = replica.request("/test/units")
    assert rejected.status == 503
    assert "does not know the cluster's state yet" in rejected.json["error"]["message"]
    plane.start_apiserver()
    plane.wait_ready()
    replica.wait_ready()
    assert replica.request("/test/units").status == 200
