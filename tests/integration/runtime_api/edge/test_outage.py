"""Kubernetes goes away and comes back, and callers are told the truth all along."""

import time
from signal import SIGCONT, SIGSTOP
from typing import Any

from localcluster.supervisor_client import wait_until
from tests.integration.runtime_api.edge.conftest import Cluster, Replica

STOCK = {"specName": "g1.1"}
SOON = 20.0
"""Seconds: well before a request is given up, on whatever machine."""


def timed(replica: Replica, path: str, **how: object) -> tuple[int, float]:
    started = time.monotonic()
    status = replica.ask(path, **how).status  # type: ignore[arg-type]
    return status, time.monotonic() - started


def health_of(replica: Replica) -> Any:
    return replica.ask("/api/v1/health").json["data"]


def connected(replica: Replica) -> bool:
    data = replica.ask("/api/v1/health").json["data"]
    assert (data["status"] == "ok") <= data["kubernetesConnected"]
    return bool(data["kubernetesConnected"])


def test_the_process_works_under_its_own_identity(cluster: Cluster) -> None:
    replica = cluster.replica().wait_ready()
    wait_until(lambda: health_of(replica)["status"] == "ok", 60, lambda: f"not well: {health_of(replica)}")
    assert health_of(replica)["kubernetesVersion"].startswith("v1.")
    assert replica.ask("/test/units", "POST", {"name": "identity", "spec": STOCK}).status == 201
    assert "identity" in replica.ask("/test/units").json["data"]
    assert not [line for line in replica.lines if "forbidden" in str(line)]


def test_what_the_api_server_refuses_is_told_with_the_callers_field(cluster: Cluster) -> None:
    replica = cluster.replica().wait_ready()
    refused = replica.ask("/test/units", "POST", {"name": "odd", "spec": STOCK | {"gpu": -1}})
    assert (refused.status, refused.json["error"]["code"]) == (400, "invalid")
    assert refused.json["error"]["details"][0]["field"] == "gpu"


def test_a_killed_api_server_means_503_and_then_recovery_by_itself(cluster: Cluster) -> None:
    replica = cluster.replica().wait_ready()
    plane = cluster.plane
    plane.processes.stop("kube-apiserver")
    assert not connected(replica)
    assert replica.ask("/readyz").status == 200, "no restart and no other replica would help"
    status, seconds = timed(replica, "/test/units", method="POST", body={"name": "away", "spec": STOCK})
    assert (status, seconds < SOON) == (503, True), seconds
    refused = replica.wait_for("/test/units", 503, timeout=60)
    assert "Kubernetes cannot be reached" in refused.json["error"]["message"]
    assert int(refused.headers["Retry-After"]) >= 1
    plane.start_apiserver()
    plane.wait_ready()
    replica.wait_for("/test/units", 200)
    wait_until(lambda: connected(replica), 60, lambda: "health does not recover")
    assert replica.ask("/test/units", "POST", {"name": "back", "spec": STOCK}).status == 201


def test_a_silent_api_server_hangs_nobody(cluster: Cluster) -> None:
    replica = cluster.replica().wait_ready()
    plane = cluster.plane
    plane.processes.signal("kube-apiserver", SIGSTOP)
    try:
        for path in ("/api/v1/health", "/healthz", "/metrics"):
            status, seconds = timed(replica, path)
            assert (status, seconds < SOON) == (200, True), (path, seconds)
        status, seconds = timed(replica, "/test/units", method="POST", body={"name": "silent", "spec": STOCK})
        assert (status, seconds < SOON) == (503, True), seconds
    finally:
        plane.processes.signal("kube-apiserver", SIGCONT)
    replica.wait_for("/test/units", 200)


def test_it_listens_before_kubernetes_is_there_and_says_that_it_is_not_ready(cluster: Cluster) -> None:
    plane = cluster.plane
    plane.processes.stop("kube-apiserver")
    replica = cluster.replica()
    health = replica.wait_for("/api/v1/health", 200)
    assert (health.json["data"]["kubernetesConnected"], health.json["data"]["cachesComplete"]) == (False, False)
    assert replica.ask("/readyz").status == 503
    refused = replica.ask("/test/units")
    assert refused.status == 503
    assert "does not know the cluster's state yet" in refused.json["error"]["message"]
    plane.start_apiserver()
    plane.wait_ready()
    replica.wait_ready()
    assert replica.ask("/test/units").status == 200
