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
    Cluster,
    Manager,
    as_dict,
    install,
    ready,
)

SMALL = {"specName": "g1.1", "image": "python", "template": {"ports": [{"name": "http", "port": 80}]}}
PATIENT_ELECTION = {"leaseSeconds": 60, "renewDeadlineSeconds": 50, "retrySeconds": 1}
AWAY_SECONDS = 8


def holder(cluster: Cluster) -> tuple[str, str]:
    """Who leads, and the version of the Lease that says so."""
    lease = as_dict(cluster.kube.get(Lease, "controller-manager", namespace="runtime-system"))
    return lease["spec"].get("holderIdentity", ""), lease["metadata"]["resourceVersion"]


def leads(manager: Manager) -> bool:
    return manager.metric("kube_leading{") == 1


def took_until_leading(manager: Manager) -> float:
    started = time.monotonic()
    wait_until(lambda: leads(manager), 60, lambda: "nobody takes over")
    return time.monotonic() - started


def forget_history(plane: ControlPlane) -> None:
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
    bring_back(plane)


def bring_back(plane: ControlPlane) -> None:
    """Start the API server again, and Kubernetes' own processes with it, which else may wait for it half a minute."""
    plane.start_apiserver()
    plane.wait_ready()
    for name in ("kube-controller-manager", "kube-scheduler", "kwok"):
        plane.processes.signal(name, Signals.SIGKILL)


def test_what_a_killed_manager_began_is_finished_by_the_next(spare: Cluster, spare_namespace: str) -> None:
    count = 50
    first = spare.manager(leaderElection=QUICK_ELECTION).wait_leading()
    for number in range(count):
        spare.create(UNIT, spare_namespace, f"u-{number}", SMALL)
        if number == count // 2:
            wait_until(lambda: bool(spare.all(Deployment, spare_namespace)), 60, lambda: "it does nothing")
            first.end(Signals.SIGKILL)  # in the middle of what it is doing
    begun = len(spare.all(Deployment, spare_namespace))
    unready = [unit for unit in spare.all(UNIT, spare_namespace) if ready(unit).get("status") != "True"]
    assert 0 < begun < count
    assert unready
    spare.manager(leaderElection=QUICK_ELECTION)
    spare.wait_all_ready(spare_namespace, count)
    uids = {unit["metadata"]["name"]: unit["metadata"]["uid"] for unit in spare.all(UNIT, spare_namespace)}
    for kind in (Deployment, Service):
        owners = {
            found["metadata"]["name"]: found["metadata"]["ownerReferences"][0]["uid"]
            for found in spare.all(kind, spare_namespace)
        }
        assert owners == uids, "one for each, and each its own"
    assert len(spare.all(ReplicaSet, spare_namespace)) == count, "nothing was rolled out twice"
    assert len(spare.all(Pod, spare_namespace)) == count


def test_a_killed_leader_is_followed_within_the_lease_time(spare: Cluster, spare_namespace: str) -> None:
    first = spare.manager(leaderElection=QUICK_ELECTION).wait_leading()
    second = spare.manager(leaderElection=QUICK_ELECTION).wait_ready()
    assert not leads(second)
    first.end(Signals.SIGKILL)
    took = took_until_leading(second)
    print(f"took over {took:.1f} s after the leader was killed")
    assert took < 4 * QUICK_ELECTION["leaseSeconds"]
    spare.create(UNIT, spare_namespace, "a", SMALL)
    spare.wait_reason(UNIT, spare_namespace, "a", "UnitReady")


def test_a_leader_that_is_told_to_stop_hands_over_at_once(spare: Cluster, spare_namespace: str) -> None:
    first = spare.manager(leaderElection=PATIENT_ELECTION).wait_leading()
    second = spare.manager(leaderElection=PATIENT_ELECTION).wait_ready()
    started = time.monotonic()
    assert first.end(Signals.SIGTERM) == 0
    took_until_leading(second)
    took = time.monotonic() - started
    print(f"handed over in {took:.1f} s")
    assert took < PATIENT_ELECTION["leaseSeconds"], "the lease has run out"
    spare.create(UNIT, spare_namespace, "a", SMALL)
    spare.wait_reason(UNIT, spare_namespace, "a", "UnitReady")


def made_or_changed(cluster: Cluster) -> dict[str, int]:
    """Writes but deletions, which the garbage collector may still have to do for other tests."""
    return {what: count for what, count in cluster.writes().items() if not what.startswith("DELETE")}


def test_a_leader_that_was_paused_writes_nothing_when_it_wakes(spare: Cluster, spare_namespace: str) -> None:
    first = spare.manager(leaderElection=QUICK_ELECTION).wait_leading()
    spare.create(UNIT, spare_namespace, "a", SMALL)
    spare.wait_reason(UNIT, spare_namespace, "a", "UnitReady")
    second = spare.manager(leaderElection=QUICK_ELECTION).wait_ready()
    first.signal(Signals.SIGSTOP)
    took_until_leading(second)
    spare.create(UNIT, spare_namespace, "b", SMALL)
    spare.wait_reason(UNIT, spare_namespace, "b", "UnitReady")
    second.end(Signals.SIGKILL)
    # With the second one gone, every write from here on would be the first one's, and there is enough to do for it.
    spare.create(UNIT, spare_namespace, "c", SMALL)
    spare.change(Deployment, spare_namespace, "a", {"op": "replace", "path": "/spec/replicas", "value": 3})
    spare.kube.delete(Service, "b", namespace=spare_namespace)
    before, lease = made_or_changed(spare), holder(spare)
    first.signal(Signals.SIGCONT)
    wait_until(lambda: "the lead is lost, all work has stopped" in first.log.read_text(), 60, lambda: "it leads on")
    assert made_or_changed(spare) == before
    assert holder(spare) == lease
    # It stands by again, and leads when the killed one's lease has run out.
    spare.wait_reason(UNIT, spare_namespace, "c", "UnitReady")
    spare.wait(Deployment, spare_namespace, "a", lambda found: found["spec"]["replicas"] == 1)
    wait_until(lambda: not spare.gone(Service, spare_namespace, "b"), 60, lambda: "the Service is not back")


def test_an_absent_api_server_is_waited_for(
    spare: Cluster, spare_namespace: str, request: pytest.FixtureRequest
) -> None:
    """A leader whose lease outlasts the absence goes on; a standby and a newcomer wait; all by themselves.

    Meanwhile the right to see pods is taken away, which only a new watch notices.
    """
    leader = spare.manager(leaderElection=PATIENT_ELECTION).wait_leading()
    standby = spare.manager(leaderElection=PATIENT_ELECTION).wait_ready()
    spare.create(UNIT, spare_namespace, "before", SMALL)
    spare.wait_reason(UNIT, spare_namespace, "before", "UnitReady")
    request.addfinalizer(lambda: install(spare.plane))
    revoke_pods(spare)
    spare.plane.processes.stop("kube-apiserver", Signals.SIGKILL)
    newcomer = spare.manager(leaderElection=PATIENT_ELECTION)
    wait_until(lambda: newcomer.answer("/healthz") == 200, 60, lambda: "the newcomer does not start")
    until = time.monotonic() + AWAY_SECONDS
    while time.monotonic() < until:
        assert [each.answer("/healthz") for each in (leader, standby, newcomer)] == [200, 200, 200]
        time.sleep(0.5)
    assert newcomer.answer("/readyz") == 503, "its caches are empty"
    bring_back(spare.plane)
    returned = time.monotonic()
    spare.create(UNIT, spare_namespace, "after", SMALL)
    spare.create(UNIT, spare_namespace, "huge", SMALL | {"gpu": 500})
    spare.wait_reason(UNIT, spare_namespace, "after", "UnitReady")
    print(f"a unit was Ready {time.monotonic() - returned:.1f} s after the API server was back")
    blind = spare.wait_reason(UNIT, spare_namespace, "huge", "PodStatusSyncFailed")
    assert blind["status"]["phase"] == "Progressing"
    assert "pods cannot be watched: pods is forbidden" in ready(blind)["message"]
    install(spare.plane)
    told = spare.wait_reason(UNIT, spare_namespace, "huge", "PodStartupFailed")
    assert "Insufficient nvidia.com/gpu" in ready(told)["message"]
    newcomer.wait_ready()
    assert [leads(each) for each in (leader, standby, newcomer)] == [True, False, False]
    assert [each.crashes for each in (leader, standby, newcomer)] == [0, 0, 0]


def revoke_pods(cluster: Cluster) -> None:
    role = json.loads(cluster.plane.kubectl("get", "clusterrole", "gpu-runtime-controller-manager", "-o", "json"))
    index = next(number for number, rule in enumerate(role["rules"]) if rule["resources"] == ["pods"])
    patch = json.dumps([{"op": "remove", "path": f"/rules/{index}"}])
    cluster.plane.kubectl("patch", "clusterrole", "gpu-runtime-controller-manager", "--type=json", "-p", patch)


def test_what_happened_while_the_watch_history_was_lost_is_found_out(spare: Cluster, spare_namespace: str) -> None:
    """The manager sleeps while objects come, go and change, and while etcd forgets how: every watch is a 410."""
    manager = spare.manager(leaderElection=PATIENT_ELECTION).wait_leading()
    for name in ("stays", "goes", "changes", "drifts"):
        spare.create(UNIT, spare_namespace, name, SMALL)
    spare.wait_all_ready(spare_namespace, 4)
    lists = manager.metric("kube_informer_lists_total{")
    manager.signal(Signals.SIGSTOP)
    spare.kube.delete(UNIT, "goes", namespace=spare_namespace)
    spare.create(UNIT, spare_namespace, "comes", SMALL)
    spare.patch(UNIT, spare_namespace, "changes", {"spec": {"image": "python:next"}})
    spare.change(Deployment, spare_namespace, "drifts", {"op": "replace", "path": "/spec/replicas", "value": 0})
    spare.kube.delete(Service, "stays", namespace=spare_namespace)
    forget_history(spare.plane)
    manager.signal(Signals.SIGCONT)
    spare.wait_reason(UNIT, spare_namespace, "comes", "UnitReady")
    spare.wait(UNIT, spare_namespace, "changes", lambda found: ready(found)["observedGeneration"] == 2)
    spare.wait_all_ready(spare_namespace, 4)
    spare.wait(Deployment, spare_namespace, "drifts", lambda found: found["spec"]["replicas"] == 1)
    image = spare.get(Deployment, spare_namespace, "changes")
    assert image
    assert image["spec"]["template"]["spec"]["containers"][0]["image"] == "python:next"
    wait_until(lambda: not spare.gone(Service, spare_namespace, "stays"), 60, lambda: "the Service is not back")
    wait_until(lambda: spare.gone(Deployment, spare_namespace, "goes"), 60, lambda: "its Deployment is still there")
    again = manager.metric("kube_informer_lists_total{") - lists
    print(f"{again:.0f} of 8 caches were filled anew")
    assert again >= 4
    assert leads(manager)
