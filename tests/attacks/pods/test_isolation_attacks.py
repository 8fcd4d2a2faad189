"""Attacks on the network isolation of units."""

from typing import Any

from lightkube.resources.core_v1 import Pod
from lightkube.resources.networking_v1 import NetworkPolicy

from localcluster.supervisor_client import wait_until
from tests.attacks.pods.network_policy_model import allows_ingress, limits_egress
from tests.integration.controller_manager.conftest import GROUP, POOL, UNIT, ControllerCluster, Object

SPEC: Object = {
    "specName": "g1.1",
    "image": "python",
    "gpu": 1,
    "template": {"ports": [{"name": "http", "port": 8080}]},
}
SSH_PORT, SIDECAR_PORT = 22, 20257
HELD = "example.com/held"


def policies(cluster: ControllerCluster, namespace: str) -> list[Object]:
    return cluster.list_objects(NetworkPolicy, namespace)


def only_pod(cluster: ControllerCluster, namespace: str) -> Object:
    (pod,) = cluster.list_objects(Pod, namespace)
    return pod


def open_ports(cluster: ControllerCluster, namespace: str, pod: Object) -> list[int]:
    labels, found = pod["metadata"]["labels"], policies(cluster, namespace)
    return [port for port in (8080, SSH_PORT, SIDECAR_PORT) if allows_ingress(found, labels, port)]


def test_pod_that_a_finalizer_holds_after_its_unit_was_deleted_stays_isolated(
    cluster: ControllerCluster, namespace: str, garbage_collector_ready: None
) -> None:
    cluster.create(UNIT, namespace, "web", SPEC)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    pod = only_pod(cluster, namespace)
    assert open_ports(cluster, namespace, pod) == [8080]
    name = pod["metadata"]["name"]
    cluster.merge_patch(Pod, namespace, name, {"metadata": {"finalizers": [HELD]}})
    try:
        cluster.kube.delete(UNIT, "web", namespace=namespace)
        wait_until(
            lambda: cluster.is_deleted(NetworkPolicy, namespace, "web"),
            60,
            lambda: "the policy of the unit still exists",
        )
        held = only_pod(cluster, namespace)
        assert held["metadata"]["uid"] == pod["metadata"]["uid"]
        assert open_ports(cluster, namespace, held) == []
    finally:
        cluster.merge_patch(Pod, namespace, name, {"metadata": {"finalizers": None}})


def test_policy_of_the_namespace_that_another_client_changes_is_restored(
    cluster: ControllerCluster, namespace: str
) -> None:
    cluster.create(UNIT, namespace, "web", SPEC)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    pod = only_pod(cluster, namespace)

    def is_isolated() -> bool:
        return open_ports(cluster, namespace, pod) == [8080]

    open_rule: Any = {"spec": {"ingress": [{}]}}
    cluster.merge_patch(NetworkPolicy, namespace, "platform.isolation", open_rule)
    wait_until(is_isolated, 60, lambda: "the changed policy is not corrected")
    cluster.kube.delete(NetworkPolicy, "platform.isolation", namespace=namespace)
    wait_until(is_isolated, 60, lambda: "the deleted policy is not created again")


def test_prepared_pod_is_reachable_on_no_port(cluster: ControllerCluster, namespace: str) -> None:
    pool = {**SPEC, "replicas": 1, "adoptable": True, "template": SPEC["template"] | {"command": ["serve"]}}
    cluster.create(POOL, namespace, "warm", pool)
    cluster.wait_reason(POOL, namespace, "warm", "DeploymentReady")
    pod = only_pod(cluster, namespace)
    assert open_ports(cluster, namespace, pod) == []
    claimed = pod["metadata"]["labels"] | {f"{GROUP}/unit": "web", f"{GROUP}/operation-uid": "o"}
    assert not allows_ingress(policies(cluster, namespace), claimed, 8080)
    assert not limits_egress(policies(cluster, namespace), claimed)
