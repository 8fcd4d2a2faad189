"""Killed, paused, cut off: whatever happens to a controller manager, what was asked for becomes true exactly once."""

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
AWAY_SECONDS = 8


def lease_holder(cluster: ControllerCluster) -> tuple[str, str]:
    """Who leads, and the version of the Lease that says so."""
    lease = as_dict(cluster.kube.get(Lease, "controller-manager", namespace="runtime-system"))
    return lease["spec"].get("holderIdentity", ""), lease["metadata"]["resourceVersion"]


def is_leader(manager: ControllerManagerProcess) -> bool:
    return manager.metric("kube_leading{") == 1


def seconds_until_leader(manager: ControllerManagerProcess) -> float:
    started = time.monotonic()
    wait_until(lambda: is_leader(manager), 60, lambda: "nobody takes over")
    return time.monotonic() - started


def compact_history(plane: ControlPlane) -> None:
    """Make etcd forget every version but the current ones, and the API server with it."""
    etcd = f"http://{plane.address}:{plane.etcd_ports[0]}/v3"

    def post(path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(f"{etcd}{path}", json.dumps(body).encode())  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            found: dict[str, dict[str, str]] = json.load(answer)
            return found

    plane.processes.stop("kube-apiserver", Signals.SIGKILL)
    revision = post("/kv/range", {"key": "AA=="})["header"]["revision"]
    post("/kv/compaction", {"revision": revision, "physical": True})
    restart_api_server(plane)


def restart_api_server(plane: ControlPlane) -> None:
    """Start the API server again, and Kubernetes' own processes with it, which else may wait for it half a minute."""
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
                lambda: "it does nothing",
            )
            first.stop(Signals.SIGKILL)  # in the middle of what it is doing
    begun = len(unmanaged_cluster.list_objects(Deployment, unmanaged_namespace))
    unready = [
        unit
        for unit in unmanaged_cluster.list_objects(UNIT, unmanaged_namespace)
        if ready_condition(unit).get("status") != "True"
    ]
    assert 0 < begun < count
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
        assert owners == uids, "one for each, and each its own"
    assert len(unmanaged_cluster.list_objects(ReplicaSet, unmanaged_namespace)) == count, "nothing was rolled out twice"
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
    assert took < SLOW_ELECTION["leaseDurationSeconds"], "the lease has run out"
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "a", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "a", "UnitReady")


def create_and_update_counts(cluster: ControllerCluster) -> dict[str, int]:
    """Writes but deletions, which the garbage collector may still have to do for other tests."""
    return {what: count for what, count in cluster.write_counts().items() if not what.startswith("DELETE")}


def test_a_leader_that_was_paused_writes_nothing_when_it_wakes(
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
    # With the second one gone, every write from here on would be the first one's, and there is enough to do for it.
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "c", SMALL)
    unmanaged_cluster.json_patch(
        Deployment, unmanaged_namespace, "a", {"op": "replace", "path": "/spec/replicas", "value": 3}
    )
    unmanaged_cluster.kube.delete(Service, "b", namespace=unmanaged_namespace)
    before, lease = create_and_update_counts(unmanaged_cluster), lease_holder(unmanaged_cluster)
    first.signal(Signals.SIGCONT)
    wait_until(lambda: "the lead is lost, all work has stopped" in first.log.read_text(), 60, lambda: "it leads on")
    assert create_and_update_counts(unmanaged_cluster) == before
    assert lease_holder(unmanaged_cluster) == lease
    # It stands by again, and leads when the killed one's lease has run out.
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "c", "UnitReady")
    unmanaged_cluster.wait_for(Deployment, unmanaged_namespace, "a", lambda found: found["spec"]["replicas"] == 1)
    wait_until(
        lambda: not unmanaged_cluster.is_deleted(Service, unmanaged_namespace, "b"),
        60,
        lambda: "the Service is not back",
    )


def test_manager_waits_for_an_unreachable_api_server(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str, request: pytest.FixtureRequest
) -> None:
    """A leader whose lease outlasts the absence goes on; a standby and a newcomer wait; all by themselves.

    Meanwhile the right to see pods is taken away, which only a new watch notices.
    """
    leader = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_leading()
    standby = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_ready()
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "before", SMALL)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "before", "UnitReady")
    request.addfinalizer(lambda: install_manifests(unmanaged_cluster.control_plane))
    revoke_pod_access(unmanaged_cluster)
    unmanaged_cluster.control_plane.processes.stop("kube-apiserver", Signals.SIGKILL)
    newcomer = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION)
    wait_until(lambda: newcomer.http_status("/healthz") == 200, 60, lambda: "the newcomer does not start")
    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        assert [each.http_status("/healthz") for each in (leader, standby, newcomer)] == [200, 200, 200]
        time.sleep(0.5)
    assert newcomer.http_status("/readyz") == 503, "its caches are empty"
    restart_api_server(unmanaged_cluster.control_plane)
    returned = time.monotonic()
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "after", SMALL)
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "huge", SMALL | {"gpu": 500})
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "after", "UnitReady")
    print(f"a unit was Ready {time.monotonic() - returned:.1f} s after the API server was back")
    blind = unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "huge", "PodStatusSyncFailed")
    assert blind["status"]["phase"] == "Progressing"
    assert "pods cannot be watched: pods is forbidden" in ready_condition(blind)["message"]
    install_manifests(unmanaged_cluster.control_plane)
    told = unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "huge", "PodStartupFailed")
    assert "Insufficient nvidia.com/gpu" in ready_condition(told)["message"]
    newcomer.wait_ready()
    assert [is_leader(each) for each in (leader, standby, newcomer)] == [True, False, False]
    assert [each.crashes for each in (leader, standby, newcomer)] == [0, 0, 0]


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
    """The manager sleeps while objects come, go and change, and while etcd forgets how: every watch is a 410."""
    manager = unmanaged_cluster.start_manager(leaderElection=SLOW_ELECTION).wait_leading()
    for name in ("stays", "goes", "changes", "drifts"):
        unmanaged_cluster.create(UNIT, unmanaged_namespace, name, SMALL)
    unmanaged_cluster.wait_all_ready(unmanaged_namespace, 4)
    lists = manager.metric("kube_informer_lists_total{")
    manager.signal(Signals.SIGSTOP)
    unmanaged_cluster.kube.delete(UNIT, "goes", namespace=unmanaged_namespace)
    unmanaged_cluster.create(UNIT, unmanaged_namespace, "comes", SMALL)
    unmanaged_cluster.merge_patch(UNIT, unmanaged_namespace, "changes", {"spec": {"image": "python:next"}})
    unmanaged_cluster.json_patch(
        Deployment, unmanaged_namespace, "drifts", {"op": "replace", "path": "/spec/replicas", "value": 0}
    )
    unmanaged_cluster.kube.delete(Service, "stays", namespace=unmanaged_namespace)
    compact_history(unmanaged_cluster.control_plane)
    manager.signal(Signals.SIGCONT)
    unmanaged_cluster.wait_reason(UNIT, unmanaged_namespace, "comes", "UnitReady")
    unmanaged_cluster.wait_for(
        UNIT, unmanaged_namespace, "changes", lambda found: ready_condition(found)["observedGeneration"] == 2
    )
    unmanaged_cluster.wait_all_ready(unmanaged_namespace, 4)
    unmanaged_cluster.wait_for(Deployment, unmanaged_namespace, "drifts", lambda found: found["spec"]["replicas"] == 1)
    image = unmanaged_cluster.get(Deployment, unmanaged_namespace, "changes")
    assert image
    assert image["spec"]["template"]["spec"]["containers"][0]["image"] == "python:next"
    wait_until(
        lambda: not unmanaged_cluster.is_deleted(Service, unmanaged_namespace, "stays"),
        60,
        lambda: "the Service is not back",
    )
    wait_until(
        lambda: unmanaged_cluster.is_deleted(Deployment, unmanaged_namespace, "goes"),
        60,
        lambda: "its Deployment is still there",
    )
    again = manager.metric("kube_informer_lists_total{") - lists
    print(f"{again:.0f} of 8 caches were filled anew")
    assert again >= 4
    assert is_leader(manager)
