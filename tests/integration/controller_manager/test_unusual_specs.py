"""Specs that the API server accepts but that are unusual: no reconcile raises an unexpected exception."""

from typing import Any

from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod, Service

from tests.integration.controller_manager.conftest import GROUP, POOL, UNIT, ControllerCluster, Object, ready_condition

BASE: Object = {"specName": "g1.1", "image": "python"}
UNUSUAL_SPECS: dict[str, Object] = {
    "unicode-text": {
        "template": {"envs": [{"name": "GREETING", "value": "grüße 你好 🚀 \t\n $(HOME) \\u0000 \u202e \x7f"}]}
    },
    "many-arguments": {"template": {"command": ["c" * 50] * 256, "args": ["", *["a" * 50] * 255]}},
    "empty-strings": {
        "memory": "",
        "template": {"command": [], "args": ["", ""], "envs": [{"name": "EMPTY", "value": ""}, {"name": "ABSENT"}]},
    },
    "many-variables": {"template": {"envs": [{"name": f"V{n}", "value": "$(V0)" * 10} for n in range(256)]}},
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
    "fractional-quantity": {"memory": "1.5Gi"},
    "exponents": {"memory": "123e6"},
    "more-memory-than-any-node": {"memory": "7Ei"},
    "x" * 63: {"template": {"ports": [{"name": "a", "port": 1}]}},
    "mixed-case-flavor": {"specName": "A.b_c-9" + "d" * 56},
    "malformed-image": {"image": "UPPER/Case:::@sha256:zz" + "y" * 1000},
    "only-a-function": {"serverless": {"enabled": True, "requestID": "f_-1"}},
    "most-gpus": {"gpu": 2**31 - 1},
}
"""Specs that the CRD schema accepts. Not all of them can run."""


def test_unusual_units_get_a_condition_and_cause_no_drift(cluster: ControllerCluster, namespace: str) -> None:
    noise = {"example.com/huge": "n" * 200_000, f"{GROUP}/unknown": "", f"{GROUP}/source-stock-uid": "🤷 not a uid"}
    for name, spec in UNUSUAL_SPECS.items():
        cluster.create(UNIT, namespace, name, BASE | spec, annotations=noise)
    for name in UNUSUAL_SPECS:
        reason = wait_reason(cluster, UNIT, namespace, name)
        assert reason in ("UnitReady", "PodStartupFailed"), name
        cluster.trigger_reconcile(UNIT, namespace, name)
        deployment = cluster.get(Deployment, namespace, name)
        assert deployment
        assert deployment["metadata"]["generation"] == 1, f"{name} was written twice"
    assert cluster.leader.crashes == 0


def test_unusual_pools_get_a_condition(cluster: ControllerCluster, namespace: str) -> None:
    pool_specs = {name[:58]: spec for name, spec in UNUSUAL_SPECS.items() if not spec.keys() & {"access", "serverless"}}
    for name, spec in pool_specs.items():
        cluster.create(POOL, namespace, name, BASE | {"replicas": 1} | spec)
    for name in pool_specs:
        assert wait_reason(cluster, POOL, namespace, name) in ("DeploymentReady", "PodStartupFailed"), name
    assert cluster.leader.crashes == 0


def wait_reason(cluster: ControllerCluster, kind: Any, namespace: str, name: str) -> str:
    undecided = (None, "UnitProgressing", "DeploymentProgressing")
    found = cluster.wait_for(kind, namespace, name, lambda found: ready_condition(found).get("reason") not in undecided)
    return str(ready_condition(found)["reason"])


def test_oversized_message_is_written_to_the_status_truncated(cluster: ControllerCluster, namespace: str) -> None:
    """Each of 20 invalid variables adds a sentence, and the messages of a kubelet can have any length."""
    ports = [{"name": f"a--{number}", "port": number + 1} for number in range(32)]
    invalid_envs = [{"name": f"..{number}" + "v" * 240} for number in range(100)]
    cluster.create(UNIT, namespace, "wordy", BASE | {"template": {"envs": invalid_envs, "ports": ports}})
    assert len(ready_condition(cluster.wait_reason(UNIT, namespace, "wordy", "InvalidSpec"))["message"]) == 4096
    cluster.create(UNIT, namespace, "loud", BASE)
    cluster.wait_reason(UNIT, namespace, "loud", "UnitReady")
    pod = next(
        each for each in cluster.list_objects(Pod, namespace) if each["metadata"]["labels"][f"{GROUP}/unit"] == "loud"
    )
    terminated = {"exitCode": -1, "reason": "🔥" * 500, "message": "no line break " * 3000}
    status = {
        "containerStatuses": [
            {
                "name": "main",
                "image": "",
                "imageID": "",
                "ready": False,
                "restartCount": 1,
                "state": {"terminated": terminated},
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
    labels = {"app.kubernetes.io/managed-by": "gpu-runtime", f"{GROUP}/unit": "missing", f"{GROUP}/pool": "missing"}
    for number, uid_label in enumerate(({}, {f"{GROUP}/unit-uid": "x"}, {f"{GROUP}/pool-uid": "y"})):
        manifest: dict[str, Any] = {"metadata": {"name": f"p-{number}", "labels": labels | uid_label}}
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
