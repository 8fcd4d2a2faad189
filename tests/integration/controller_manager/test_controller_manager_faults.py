"""Controller managers that are killed, paused or disconnected: every unit still gets exactly one set of children."""

import json
import time
import urllib.request
from signal import Signals

import pytest
from lightkube.resources.apps_v1 import Deployment, ReplicaSet
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod, Service

from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import (
    QUICK_ELECTION,
    UNIT,
    ControllerCluster,
    ControllerManagerProcess,
    as_dict,
    install_manifests,
    ready_condition,
)

SMALL = {"specName": "g1.1", "image": "python", "template": {"ports": [{"name": "http", "port": 80}]}}
SLOW_ELECTION = {"leaseDurationSeconds": 60, "renewDeadlineSeconds": 50, "retryPeriodSeconds": 1}
API_SERVER_OUTAGE_SECONDS = 8


def lease_holder(cluster: ControllerCluster) -> tuple[str, str]:
    """Return the holder identity and the resource version of the Lease."""
    lease = as_dict(cluster.kube.get(Lease, "controller-manager", namespace="runtime-system"))
    return lease["spec"].get("holderIdentity", ""), lease["metadata"]["resourceVersion"]


def is_leader(manager: ControllerManagerProcess) -> bool:
    return manager.metric("leader_election_master_status{") == 1


def seconds_until_leader(manager: ControllerManagerProcess) -> float:
    started = time.monotonic()
    wait_until(lambda: is_leader(manager), 60, lambda: "no manager becomes the leader")
    return time.monotonic() - started


def compact_history(plane: ControlPlane) -> None:
    """Compact the history of etcd and restart the API server, so that no watch can resume."""
    etcd = f"http://{plane.address}:{plane.etcd_ports[0]}/v3"

    def post(path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(f"{etcd}{path}", json.dumps(body).encode())  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            content: dict[str, dict[str, str]] = json.load(response)
            return content

    plane.processes.stop("kube-apiserver", Signals.SIGKILL)
    revision = post("/kv/range", {"key": "AA=="})["header"]["revision"]
    post("/kv/compaction", {"revision": revision, "physical": True})
    restart_api_server(plane)


def restart_api_server(plane: ControlPlane) -> None:
    """Start the API server and restart the other Kubernetes processes, which would back off for up to 30 seconds."""
    plane.start_apiserver()
    plane.wait_ready()
    for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
        plane.processes.signal(name, Signals.SIGKILL)


def test_reconcile_of_a_killed_manager_is_finished_by_the_next(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str
) -> None:
    count = 50
    first = unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_leading()
    for number in range(count):
        unmanaged_cluster.create(UNIT, unmanaged_namespace, f"u-{number}", SMALL)
        if number == count // 2:
            wait_until(
                lambda: bool(unmanaged_cluster.list_objects(Deployment, unmanaged_namespace)),
                60,
                lambda: "the first manager creates no Deployment",
            )
            first.stop(Signals.SIGKILL)  # while it reconciles the units
    created = len(unmanaged_cluster.list_objects(Deployment, unmanaged_namespace))
    unready = [
        unit
        for unit in unmanaged_cluster.list_objects(UNIT, unmanaged_namespace)
        if ready_condition(unit).get("status") != "True"
    ]
    assert 0 < created < count
    assert unready
    unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION)
    unmanaged_cluster.wait_all_ready(unmanaged_namespace, count)
    uids = {
        unit["metadata"]["name"]: unit["metadata"]["uid"]
        for unit in unmanaged_cluster.list_objects(UNIT, unmanaged_namespace)
    }
    for kind in (Deployment, Service):
        owners = {
            found["metadata"]["name"]: found["metadata"]["ownerReferences"][0]["uid"]
            for found in unmanaged_cluster.list_objects(kind, unmanaged_namespace)
        }
        assert owners == uids, "each unit owns exactly one object of each kind"
    assert len(unmanaged_cluster.list_objects(ReplicaSet, unmanaged_namespace)) == count, (
        "no Deployment was rolled out twice"
    )
    assert len(unmanaged_cluster.list_objects(Pod, unmanaged_namespace)) == count


def test_killed_leader_is_replaced_within_the_lease_duration(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str
) -> None:
    first = unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_leading()
    second = unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_ready()
    assert not is_leader(second)
    first.stop(Signals.SIGKILL)
    took = seconds_until_leader(second)
    print(f"took over {took:.1f} s after the leader was killed")
    assert took < 4 * QUICK_ELECTION["leaseDurationSeconds"]
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "a", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "a", "UnitReady")


def test_stopped_leader_releases_the_lease_immediately(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str
) -> None:
    first = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_leading()
    second = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_ready()
    started = time.monotonic()
    assert first.stop(Signals.SIGTERM) == 0
    seconds_until_leader(second)
    took = time.monotonic() - started
    print(f"handed over in {took:.1f} s")
    assert took < SLOW_ELECTION["leaseDurationSeconds"], "the leader released the lease before it expired"
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "a", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "a", "UnitReady")


def create_and_update_counts(cluster: ControllerCluster) -> dict[str, int]:
    """Return the write counts without deletions: the garbage collector may still delete objects of other tests."""
    return {key: count for key, count in cluster.write_counts().items() if not key.startswith("DELETE")}


def test_paused_leader_writes_nothing_after_it_resumes(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str
) -> None:
    first = unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_leading()
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "a", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "a", "UnitReady")
    second = unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_ready()
    first.signal(Signals.SIGSTOP)
    seconds_until_leader(second)
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "b", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "b", "UnitReady")
    second.stop(Signals.SIGKILL)
    # The second manager is killed, so only the first one could write. The three changes give it something to reconcile.
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "c", SMALL)
    unmanaged_cluster.json_patch(
        Deployment, unmanaged_namespace, "a", {"op": "replace", "path": "/spec/replicas", "value": 3}
    )
    unmanaged_cluster.kube.delete(Service, "b", namespace=unmanaged_namespace)
    before, lease = create_and_update_counts(unmanaged_cluster), lease_holder(unmanaged_cluster)
    first.signal(Signals.SIGCONT)
    wait_until(lambda: "leadership lost" in first.log.read_text(), 60, lambda: "it is still the leader")
    assert create_and_update_counts(unmanaged_cluster) == before
    assert lease_holder(unmanaged_cluster) == lease
    # The first manager is a standby now. It becomes the leader when the lease of the killed manager has expired.
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "c", "UnitReady")
    unmanaged_cluster.wait_for(Deployment, unmanaged_namespace, "a", lambda found: found["spec"]["replicas"] == 1)
    wait_until(
        lambda: not unmanaged_cluster.is_deleted(Service, unmanaged_namespace, "b"),
        60,
        lambda: "the Service is not recreated",
    )


def test_manager_waits_for_an_unreachable_api_server(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str, request: pytest.FixtureRequest
) -> None:
    """The leader, whose lease is longer than the outage, continues. A standby and a new manager wait. None restarts.

    During the outage, the permission to watch pods is revoked. Only a new watch fails because of that.
    """
    leader = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_leading()
    standby = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_ready()
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "before", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "before", "UnitReady")
    request.addfinalizer(lambda: install_manifests(unmanaged_cluster.control_plane))
    revoke_pod_access(unmanaged_cluster)
    unmanaged_cluster.control_plane.processes.stop("kube-apiserver", Signals.SIGKILL)
    new_manager = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION)
    wait_until(lambda: new_manager.http_status("/healthz") == 200, 60, lambda: "the new manager does not start")
    deadline = time.monotonic() + API_SERVER_OUTAGE_SECONDS
    while time.monotonic() < deadline:
        assert [each.http_status("/healthz") for each in (leader, standby, new_manager)] == [200, 200, 200]
        time.sleep(0.5)
    assert new_manager.http_status("/readyz") == 503, "the caches of the new manager are empty"
    restart_api_server(unmanaged_cluster.control_plane)
    restarted = time.monotonic()
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "after", SMALL)
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "huge", SMALL | {"gpu": 500})
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "after", "UnitReady")
    print(f"a unit was Ready {time.monotonic() - restarted:.1f} s after the restart of the API server")
    unknown = unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "huge", "PodStatusSyncFailed")
    assert unknown["status"]["phase"] == "Progressing"
    assert "pods cannot be watched: pods is forbidden" in ready_condition(unknown)["message"]
    install_manifests(unmanaged_cluster.control_plane)
    failed = unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "huge", "PodStartupFailed")
    assert "Insufficient nvidia.com/gpu" in ready_condition(failed)["message"]
    new_manager.wait_ready()
    assert [is_leader(each) for each in (leader, standby, new_manager)] == [True, False, False]
    assert [each.crashes for each in (leader, standby, new_manager)] == [0, 0, 0]


def revoke_pod_access(cluster: ControllerCluster) -> None:
    role = json.loads(
        cluster.control_plane.kubectl("get", "clusterrole", "gpu-runtime-controller-manager", "-o", "json")
    )
    index = next(number for number, rule in enumerate(role["rules"]) if rule["resources"] == ["pods"])
    patch = json.dumps([{"op": "remove", "path": f"/rules/{index}"}])
    cluster.control_plane.kubectl("patch", "clusterrole", "gpu-runtime-controller-manager", "--type=json", "-p", patch)


def test_changes_during_a_lost_watch_history_are_reconciled(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str
) -> None:
    """Objects change while the manager is paused and etcd is compacted, so every watch fails with status 410."""
    manager = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_leading()
    for name in ("unchanged", "deleted", "changed", "drifted"):
        unmanaged_cluster.create(UNIT, unmanaged_namespace, name, SMALL)
    unmanaged_cluster.wait_all_ready(unmanaged_namespace, 4)
    lists = manager.metric("reflector_lists_total{")
    manager.signal(Signals.SIGSTOP)
    unmanaged_cluster.kube.delete(UNIT, "deleted", namespace=unmanaged_namespace)
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "created", SMALL)
    unmanaged_cluster.merge_patch(UNIT, unmanaged_namespace, "changed", {"spec": {"image": "python:next"}})
    unmanaged_cluster.json_patch(
        Deployment, unmanaged_namespace, "drifted", {"op": "replace", "path": "/spec/replicas", "value": 0}
    )
    unmanaged_cluster.kube.delete(Service, "unchanged", namespace=unmanaged_namespace)
    compact_history(unmanaged_cluster.control_plane)
    manager.signal(Signals.SIGCONT)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "created", "UnitReady")
    unmanaged_cluster.wait_for(
        UNIT, unmanaged_namespace, "changed", lambda found: ready_condition(found)["observedGeneration"] == 2
    )
    unmanaged_cluster.wait_all_ready(unmanaged_namespace, 4)
    unmanaged_cluster.wait_for(Deployment, unmanaged_namespace, "drifted", lambda found: found["spec"]["replicas"] == 1)
    deployment = unmanaged_cluster.get(Deployment, unmanaged_namespace, "changed")
    assert deployment
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "python:next"
    wait_until(
        lambda: not unmanaged_cluster.is_deleted(Service, unmanaged_namespace, "unchanged"),
        60,
        lambda: "the Service is not recreated",
    )
    wait_until(
        lambda: unmanaged_cluster.is_deleted(Deployment, unmanaged_namespace, "deleted"),
        60,
        lambda: "the Deployment still exists",
    )
    relisted = manager.metric("reflector_lists_total{") - lists
    print(f"{relisted:.0f} lists after the restart")
    assert relisted >= 4
    assert is_leader(manager)
