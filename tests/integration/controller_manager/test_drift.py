"""Drift of children: the controller corrects every changed field, and then writes nothing more."""

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from lightkube import ApiError
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Service
from lightkube.resources.networking_v1 import NetworkPolicy

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.controller_manager.gpu_unit import children as unit_children
from gpu_runtime.controller_manager.gpu_unit import observe as unit_observe
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings
from gpu_runtime.controller_manager.stock_pool import children as pool_children
from gpu_runtime.controller_manager.stock_pool import observe as pool_observe
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import GROUP, POOL, UNIT, ControllerCluster, Object

SETTINGS = ControllerManagerSettings(images=ImageSettings(stock="gpu-runtime:local", placeholder="gpu-runtime:local"))
TEMPLATE = {
    "args": ["-m", "http.server"],
    "envs": [{"name": "MODEL_ID", "value": "demo"}, {"name": "EMPTY", "value": ""}],
    "ports": [{"name": "http", "port": 8080}, {"name": "voice", "port": 8080, "protocol": "UDP"}],
}
OTHER_VALUES = {
    "imagePullPolicy": "Always",
    "terminationMessagePolicy": "File",
    "priorityClassName": "system-node-critical",
    "protocol": "SCTP",
    "operator": "NotIn",
    "cpu": "51m",
}
OTHER_TYPES = {"RuntimeDefault": "Unconfined", "ClusterIP": "NodePort", "Recreate": "RollingUpdate"}
REPLACE_ROLLING_UPDATE = [{"op": "replace", "path": "/spec/strategy", "value": {"type": "Recreate"}}]
VALUES_FOR_EMPTY_FIELDS: Object = {
    "command": ["sh"],
    "volumes": [{"name": "more", "emptyDir": {}}],
    "volumeMounts": [],
    "affinity": {"nodeAffinity": {}},
    "emptyDir": {"medium": "Memory"},
    "from": [{"podSelector": {}}],
    "egress": [{}],
    "matchExpressions": [{"key": "x", "operator": "Exists"}],
}
Path = tuple[str | int, ...]


def leaf_fields(manifest: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    match manifest:
        case dict() if manifest:
            for key, value in manifest.items():
                yield from leaf_fields(value, (*path, key))
        case list() if manifest:
            for index, value in enumerate(manifest):
                yield from leaf_fields(value, (*path, index))
        case _:
            yield path, manifest


def pointer(path: Path) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def value_at(found: Any, path: Path) -> Any:
    for part in path:
        try:
            found = found[part]
        except (KeyError, IndexError, TypeError):
            return None
    return found


def field_changes(path: Path, value: Any) -> Iterator[list[Object]]:
    """Yield JSON patches that another client could apply to a field: another value, and its removal."""
    name = path[-1]
    if name == "nvidia.com/gpu":
        resources = path[:-2]
        yield [
            {"op": "replace", "path": pointer((*resources, each, name)), "value": "2"}
            for each in ("limits", "requests")
        ]
        return
    if value == "RollingUpdate":
        yield REPLACE_ROLLING_UPDATE
        return
    match value:
        case None:
            other: Any = 65535
        case bool():
            other = not value
        case int():
            other = value + 1
        case [] | {}:
            other = VALUES_FOR_EMPTY_FIELDS.get(str(name), ["more"])
        case _ if name == "type":
            other = OTHER_TYPES[value]
        case _ if name == "memory":
            other = "2Gi" if path[-2] == "limits" else "1Mi"
        case _:
            other = OTHER_VALUES.get(str(name), f"{value}x")
    yield [{"op": "add", "path": pointer(path), "value": other}]
    if value not in (None, [], {}, ""):
        yield [{"op": "remove", "path": pointer(path)}]


def correct_every_field(cluster: ControllerCluster, kind: Any, namespace: str, desired: Object) -> tuple[int, set[str]]:
    """Change each field that the controller owns in a child, and wait for its correction.

    Return the number of changes, and the fields whose changes the API server itself rejects.
    """
    name, done, protected = desired["metadata"]["name"], 0, set()
    owned = {"metadata": dict(desired["metadata"]), "spec": desired["spec"]}
    for fixed in ("namespace", "name"):
        owned["metadata"].pop(fixed)
    # With another owner UID, the garbage collector would delete the object. So only the other fields are changed.
    owned["metadata"]["ownerReferences"] = [{"controller": True, "blockOwnerDeletion": True}]
    for path, value in leaf_fields(owned):
        original = value_at(cluster.get(kind, namespace, name), path)
        for operations in field_changes(path, value):
            if not is_accepted(lambda operations=operations: cluster.json_patch(kind, namespace, name, *operations)):  # type: ignore[misc]
                protected.add(pointer(path))
                continue
            done += 1
            wait_until(
                lambda path=path, original=original: value_at(cluster.get(kind, namespace, name), path) == original,  # type: ignore[misc]
                60,
                lambda operations=operations, original=original: f"{operations} is not reverted to {original}",  # type: ignore[misc]
            )
    return done, protected


def is_accepted(write: Callable[[], None]) -> bool:
    """Return whether the API server accepts the write."""
    try:
        write()
    except ApiError as error:
        if error.status.code != 422:
            raise
        return False
    return True


def unit_manifests(unit: Object) -> dict[str, Object]:
    observed = unit_observe.ObservedUnit(unit=msgspec.convert(unit, GPUUnit), settings=SETTINGS, now=datetime.now(UTC))
    return {child.resource.kind: child.desired or {} for child in unit_children.desired_children(observed)}


def pool_manifests(pool: Object) -> dict[str, Object]:
    observed = pool_observe.ObservedPool(pool=msgspec.convert(pool, StockPool), settings=SETTINGS)
    return {child.resource.kind: child.desired or {} for child in pool_children.desired_children(observed)}


MORE_FIELDS = {
    "workingDir": "/srv",
    "init": {"command": ["true"]},
    "sharedMemory": "512Mi",
    "runAsUser": 12345,
    "runAsGroup": 12345,
    "fsGroup": 12345,
    "terminationGracePeriodSeconds": 600,
    "imagePullSecrets": ["unit-registry"],
    "secretMounts": [{"name": "unit-token", "mountPath": "/secrets"}],
}
PROBES = {
    "startup": {"tcpSocket": {}, "failureThreshold": 100},
    "readiness": {"tcpSocket": {}},
    "liveness": {"exec": {"command": ["true"]}, "initialDelaySeconds": 30},
}


@pytest.fixture
def unit(cluster: ControllerCluster, namespace: str) -> Object:
    """A unit with a value in every field of its spec."""
    cluster.create_ready_storage(namespace, "data")
    mounts = [{"name": "data", "mountPath": "/data"}]
    spec = {"specName": "g1.1", "image": "python", "memory": "1Gi", "gpu": 1, "template": TEMPLATE | MORE_FIELDS}
    spec |= {"cpu": "500m", "cpuLimit": "1", "ephemeralStorage": "1024Mi", "probes": PROBES}
    spec["serverless"] = {"enabled": True, "requestID": "web"}
    source = {f"{GROUP}/source-stock-uid": "deleted", f"{GROUP}/source-stock-node": "simulated-1"}
    cluster.create(UNIT, namespace, "web", spec | {"storageMounts": mounts}, annotations=source)
    return cluster.wait_reason(UNIT, namespace, "web", "UnitReady")


@pytest.fixture
def pool(cluster: ControllerCluster, namespace: str) -> Object:
    spec = {"specName": "g1.1", "memory": "1Gi", "gpu": 1, "replicas": 2, "template": TEMPLATE | {"args": []}}
    cluster.create(POOL, namespace, "warm", spec)
    return cluster.wait_reason(POOL, namespace, "warm", "DeploymentReady")


def assert_no_writes(cluster: ControllerCluster, kind: Any, namespace: str, name: str) -> None:
    """Check that a reconcile causes no write except the one that triggers it.

    It repeats the check, because the deletion of objects of other tests may still cause writes.
    """
    trigger, written = f"PATCH {kind._api_info.plural}", Counter[str]()

    def has_no_writes() -> bool:
        nonlocal written
        before = cluster.write_counts()
        for _ in range(3):
            cluster.trigger_reconcile(kind, namespace, name)
        written = cluster.write_counts() - before
        return written == {trigger: 3}

    wait_until(has_no_writes, 60, lambda: f"there are still writes: {written}")


def test_every_owned_field_of_a_units_deployment_is_corrected(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    done, protected = correct_every_field(cluster, Deployment, namespace, unit_manifests(unit)["Deployment"])
    print(f"{done} changes were corrected; protected by the API server: {sorted(protected)}")
    assert done > 60
    assert_no_writes(cluster, UNIT, namespace, "web")


def test_every_owned_field_of_a_units_service_is_corrected(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    done, protected = correct_every_field(cluster, Service, namespace, unit_manifests(unit)["Service"])
    print(f"{done} changes were corrected; protected by the API server: {sorted(protected)}")
    assert done > 20
    assert_no_writes(cluster, UNIT, namespace, "web")


def test_every_owned_field_of_a_units_network_policy_is_corrected(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    done, protected = correct_every_field(cluster, NetworkPolicy, namespace, unit_manifests(unit)["NetworkPolicy"])
    print(f"{done} changes were corrected; protected by the API server: {sorted(protected)}")
    assert done > 20
    assert_no_writes(cluster, UNIT, namespace, "web")


def test_every_owned_field_of_a_pools_children_is_corrected(
    cluster: ControllerCluster, namespace: str, pool: Object
) -> None:
    manifests = pool_manifests(pool)
    for kind in (Deployment, Service):
        done, protected = correct_every_field(cluster, kind, namespace, manifests[kind._api_info.resource.kind])
        print(f"{done} changes were corrected; protected by the API server: {sorted(protected)}")
        assert done > 20
    cluster.wait_reason(POOL, namespace, "warm", "DeploymentReady")
    assert_no_writes(cluster, POOL, namespace, "warm")


def test_additional_selector_or_resource_entry_is_drift(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    """For example, a Service with an additional label in its selector selects no pods."""
    container = "/spec/template/spec/containers/0"
    additions: list[tuple[Any, str, Any]] = [
        (Service, "/spec/selector/more", "x"),
        (Service, "/spec/ports/-", {"name": "more", "port": 9}),
        (NetworkPolicy, "/spec/ingress/-", {}),
        (Deployment, f"{container}/resources/limits/cpu", "1"),
        (Deployment, f"{container}/env/-", {"name": "MORE"}),
        (Deployment, "/spec/template/spec/containers/-", {"name": "more", "image": "x"}),
        (Deployment, "/spec/template/spec/initContainers/-", {"name": "more", "image": "x"}),
    ]
    for kind, path, value in additions:
        before = cluster.get(kind, namespace, "web")
        assert before
        cluster.json_patch(kind, namespace, "web", {"op": "add", "path": path, "value": value})
        cluster.wait_for(kind, namespace, "web", lambda found, before=before: found["spec"] == before["spec"])  # type: ignore[misc]


def test_deleted_children_are_recreated(cluster: ControllerCluster, namespace: str, unit: Object, pool: Object) -> None:
    unit_kinds = (Deployment, Service, NetworkPolicy)
    for kind, name in (*((each, "web") for each in unit_kinds), (Deployment, "pool-warm"), (Service, "pool-warm")):
        found = cluster.get(kind, namespace, name)
        assert found
        cluster.kube.delete(kind, name, namespace=namespace)
        cluster.wait_for(
            kind,
            namespace,
            name,
            lambda new, old=found: new["metadata"]["uid"] != old["metadata"]["uid"],  # type: ignore[misc]
        )


def test_child_without_owner_or_labels_is_adopted_again(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    for kind in (Deployment, Service, NetworkPolicy):
        for lost in ({"ownerReferences": None}, {"labels": {"app.kubernetes.io/managed-by": None}}):
            before = cluster.get(kind, namespace, "web")
            assert before
            cluster.merge_patch(kind, namespace, "web", {"metadata": lost})
            adopted = cluster.wait_for(
                kind,
                namespace,
                "web",
                lambda found, before=before: all(  # type: ignore[misc]
                    found["metadata"].get(part) == before["metadata"][part] for part in ("ownerReferences", "labels")
                ),
            )
            assert adopted["metadata"]["uid"] == before["metadata"]["uid"], "it is the same object"


def test_foreign_metadata_of_a_child_is_preserved(cluster: ControllerCluster, namespace: str, unit: Object) -> None:
    """Also if the controller corrects another field of the child."""
    owner = {"apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": cluster.namespace_uid(namespace)}
    for kind, drift in ((Deployment, {"replicas": 3}), (Service, {"type": "NodePort"})):
        found = cluster.get(kind, namespace, "web")
        assert found
        foreign = {
            "labels": {"example.com/team": "a"},
            "annotations": {"example.com/note": "b"},
            "finalizers": ["example.com/keep"],
            "ownerReferences": [*found["metadata"]["ownerReferences"], owner],
        }
        cluster.merge_patch(kind, namespace, "web", {"metadata": foreign})
        assert_no_writes(cluster, UNIT, namespace, "web")
        cluster.merge_patch(kind, namespace, "web", {"spec": drift})
        corrected = cluster.wait_for(
            kind,
            namespace,
            "web",
            lambda found, drift=drift: not drift.items() <= found["spec"].items(),  # type: ignore[misc]
        )
        metadata = corrected["metadata"]
        assert metadata["labels"]["example.com/team"] == "a"
        assert metadata["annotations"]["example.com/note"] == "b"
        assert metadata["finalizers"] == ["example.com/keep"]
        assert {each["kind"] for each in metadata["ownerReferences"]} == {"Namespace", "GPUUnit"}
        cluster.merge_patch(kind, namespace, "web", {"metadata": {"finalizers": None}})


def test_foreign_pool_status_is_corrected(cluster: ControllerCluster, namespace: str, pool: Object) -> None:
    cluster.patch_status(POOL, namespace, "warm", {"phase": "Failed", "available": 77, "conditions": None})
    corrected = cluster.wait_reason(POOL, namespace, "warm", "DeploymentReady")
    assert (corrected["status"]["phase"], corrected["status"]["available"]) == ("Ready", 2)


def test_removed_spec_field_is_removed_from_the_children(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    cluster.merge_patch(UNIT, namespace, "web", {"spec": {"template": {"ports": None, "args": None}, "memory": None}})
    wait_until(
        lambda: cluster.is_deleted(Service, namespace, "web"),
        60,
        lambda: "the Service still exists although the unit has no ports",
    )
    deployment = cluster.wait_for(
        Deployment, namespace, "web", lambda found: "args" not in found["spec"]["template"]["spec"]["containers"][0]
    )
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert "ports" not in container
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1", "cpu": "1", "ephemeral-storage": "1Gi"}
    unit = cluster.wait_for(UNIT, namespace, "web", lambda found: "serviceName" not in found["status"])
    assert "accessURL" not in unit["status"]
