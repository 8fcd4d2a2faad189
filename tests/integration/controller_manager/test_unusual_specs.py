"""Whatever the API server admits, a reconcile never crashes over it."""

from typing import Any

from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod, Service

from tests.integration.controller_manager.conftest import GROUP, POOL, UNIT, ControllerCluster, Object, ready_condition

BASE: Object = {"specName": "g1.1", "image": "python"}
UNUSUAL_SPECS: dict[str, Object] = {
    "letters-of-the-world": {
        "template": {"envs": [{"name": "GREETING", "value": "grüße 你好 🚀 \t\n $(HOME) \\u0000 \u202e \x7f"}]}
    },
    "very-many-words": {"template": {"command": ["c" * 1000] * 256, "args": ["", *["a" * 1000] * 255]}},
    "empty-strings": {
        "memory": "",
        "template": {"command": [], "args": ["", ""], "envs": [{"name": "EMPTY", "value": ""}, {"name": "ABSENT"}]},
    },
    "many-variables": {"template": {"envs": [{"name": f"V{n}", "value": "$(V0)" * 100} for n in range(256)]}},
    "all-protocols": {
        "access": {"primaryPort": "web", "scheme": "https"},
        "template": {
            "ports": [
                {"name": "voice", "port": 53, "protocol": "UDP"},
                {"name": "web", "port": 53, "protocol": "TCP"},
                {"name": "signal", "port": 53, "protocol": "SCTP"},
                {"name": "last", "port": 65535},
            ]
        },
    },
    "odd-quantities": {"memory": "1.5Gi"},
    "exponents": {"memory": "123e6"},
    "more-memory-than-there-is": {"memory": "7Ei"},
    "x" * 63: {"template": {"ports": [{"name": "a", "port": 1}]}},
    "mixed-case-flavor": {"specName": "A.b_c-9" + "d" * 56},
    "odd-image": {"image": "UPPER/Case:::@sha256:zz" + "y" * 1000},
    "nothing-but-a-function": {"serverless": {"enabled": True, "requestID": "f_-1"}},
    "most-gpus": {"gpu": 2**31 - 1},
}
"""Specs that the schema admits; whether they can run is another question."""


def test_unusual_units_get_a_condition_and_cause_no_drift(cluster: ControllerCluster, namespace: str) -> None:
    noise = {"example.com/huge": "n" * 200_000, f"{GROUP}/unknown": "", f"{GROUP}/source-stock-uid": "🤷 not a uid"}
    for name, odd in UNUSUAL_SPECS.items():
        cluster.create(UNIT, namespace, name, BASE | odd, annotations=noise)
    for name in UNUSUAL_SPECS:
        said = wait_reason(cluster, UNIT, namespace, name)
        assert said in ("UnitReady", "PodStartupFailed"), name
        cluster.trigger_reconcile(UNIT, namespace, name)
        deployment = cluster.get(Deployment, namespace, name)
        assert deployment
        assert deployment["metadata"]["generation"] == 1, f"{name} was written twice"
    assert cluster.leader.crashes == 0


def test_unusual_pools_get_a_condition(cluster: ControllerCluster, namespace: str) -> None:
    of_pools = {name[:58]: odd for name, odd in UNUSUAL_SPECS.items() if not odd.keys() & {"access", "serverless"}}
    for name, odd in of_pools.items():
        cluster.create(POOL, namespace, name, BASE | {"replicas": 1} | odd)
    for name in of_pools:
        assert wait_reason(cluster, POOL, namespace, name) in ("DeploymentReady", "PodStartupFailed"), name
    assert cluster.leader.crashes == 0


def wait_reason(cluster: ControllerCluster, kind: Any, namespace: str, name: str) -> str:
    open_still = (None, "UnitProgressing", "DeploymentProgressing")
    found = cluster.wait_for(
        kind, namespace, name, lambda found: ready_condition(found).get("reason") not in open_still
    )
    return str(ready_condition(found)["reason"])


def test_oversized_message_is_written_to_the_status_truncated(cluster: ControllerCluster, namespace: str) -> None:
    """256 bad variables make a sentence each, and a kubelet may say what it wants."""
    ports = [{"name": f"a--{number}", "port": number + 1} for number in range(32)]
    bad = [{"name": f"..{number}" + "v" * 240} for number in range(256)]
    cluster.create(UNIT, namespace, "wordy", BASE | {"template": {"envs": bad, "ports": ports}})
    assert len(ready_condition(cluster.wait_reason(UNIT, namespace, "wordy", "InvalidSpec"))["message"]) == 4096
    cluster.create(UNIT, namespace, "loud", BASE)
    cluster.wait_reason(UNIT, namespace, "loud", "UnitReady")
    pod = next(
        each for each in cluster.list_objects(Pod, namespace) if each["metadata"]["labels"][f"{GROUP}/unit"] == "loud"
    )
    ended = {"exitCode": -1, "reason": "🔥" * 500, "message": "no line break " * 3000}
    status = {
        "containerStatuses": [
            {
                "name": "main",
                "image": "",
                "imageID": "",
                "ready": False,
                "restartCount": 1,
                "state": {"terminated": ended},
            }
        ],
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "Odd", "status": "Unknown", "message": "m" * 30000},
        ],
    }
    cluster.patch_status(Pod, namespace, pod["metadata"]["name"], status)
    failed = cluster.wait_reason(UNIT, namespace, "loud", "PodStartupFailed")
    assert ready_condition(failed)["message"].startswith("container main exited with code -1, 🔥")
    assert cluster.leader.crashes == 0


def test_foreign_objects_with_platform_labels_cause_no_failure(cluster: ControllerCluster, namespace: str) -> None:
    labels = {"app.kubernetes.io/managed-by": "gpu-runtime", f"{GROUP}/unit": "nobody", f"{GROUP}/pool": "none"}
    for number, more in enumerate(({}, {f"{GROUP}/unit-uid": "x"}, {f"{GROUP}/pool-uid": "y"})):
        manifest: dict[str, Any] = {"metadata": {"name": f"p-{number}", "labels": labels | more}}
        manifest["spec"] = {"containers": [{"name": "main", "image": "x"}]}
        cluster.kube.create(Pod.from_dict(manifest), namespace=namespace)  # type: ignore[call-overload]
    service = {"metadata": {"name": "s", "labels": labels}, "spec": {"type": "ExternalName", "externalName": "a.b"}}
    cluster.kube.create(Service.from_dict(service), namespace=namespace)  # type: ignore[call-overload]
    cluster.create(UNIT, namespace, "a", BASE)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    assert cluster.leader.crashes == 0


def test_unit_deleted_during_reconcile_leaves_no_children(cluster: ControllerCluster, namespace: str) -> None:
    for number in range(20):
        cluster.create(UNIT, namespace, f"brief-{number}", BASE)
        cluster.kube.delete(UNIT, f"brief-{number}", namespace=namespace)
    cluster.create(UNIT, namespace, "last", BASE)
    cluster.wait_reason(UNIT, namespace, "last", "UnitReady")
    cluster.wait_for(
        UNIT,
        namespace,
        "last",
        lambda _: [each["metadata"]["name"] for each in cluster.list_objects(Deployment, namespace)] == ["last"],
    )
    assert cluster.leader.crashes == 0
