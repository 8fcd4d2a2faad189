"""Whatever somebody else changes in a child comes back, field by field, and afterwards nothing is written any more."""

from collections import Counter
from collections.abc import Callable, Iterator
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
from gpu_runtime.controller_manager.gpu_unit import observe as unit_seen
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings
from gpu_runtime.controller_manager.stock_pool import children as pool_children
from gpu_runtime.controller_manager.stock_pool import observe as pool_seen
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import GROUP, POOL, UNIT, ControllerCluster, Object

SETTINGS = ControllerManagerSettings(images=ImageSettings(stock="gpu-runtime:local", placeholder="gpu-runtime:local"))
TEMPLATE = {
    "args": ["-m", "http.server"],
    "envs": [{"name": "MODEL_ID", "value": "demo"}, {"name": "EMPTY", "value": ""}],
    "ports": [{"name": "http", "port": 8080}, {"name": "voice", "port": 8080, "protocol": "UDP"}],
}
OTHER = {
    "imagePullPolicy": "Always",
    "terminationMessagePolicy": "File",
    "priorityClassName": "system-node-critical",
    "protocol": "SCTP",
    "operator": "NotIn",
    "cpu": "51m",
}
OTHER_TYPE = {"RuntimeDefault": "Unconfined", "ClusterIP": "NodePort", "Recreate": "RollingUpdate"}
NOT_ROLLING = [{"op": "replace", "path": "/spec/strategy", "value": {"type": "Recreate"}}]
ADDED: Object = {
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


def leaf_fields(wanted: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    match wanted:
        case dict() if wanted:
            for key, value in wanted.items():
                yield from leaf_fields(value, (*path, key))
        case list() if wanted:
            for index, value in enumerate(wanted):
                yield from leaf_fields(value, (*path, index))
        case _:
            yield path, wanted


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
    """What somebody might do to a field: give it another value, or take it away."""
    name = path[-1]
    if name == "nvidia.com/gpu":
        amounts = path[:-2]
        yield [
            {"op": "replace", "path": pointer((*amounts, each, name)), "value": "2"} for each in ("limits", "requests")
        ]
        return
    if value == "RollingUpdate":
        yield NOT_ROLLING
        return
    match value:
        case None:
            other: Any = 65535
        case bool():
            other = not value
        case int():
            other = value + 1
        case [] | {}:
            other = ADDED.get(str(name), ["more"])
        case _ if name == "type":
            other = OTHER_TYPE[value]
        case _ if name == "memory":
            other = "2Gi" if path[-2] == "limits" else "1Mi"
        case _:
            other = OTHER.get(str(name), f"{value}x")
    yield [{"op": "add", "path": pointer(path), "value": other}]
    if value not in (None, [], {}, ""):
        yield [{"op": "remove", "path": pointer(path)}]


def correct_every_field(cluster: ControllerCluster, kind: Any, namespace: str, wanted: Object) -> tuple[int, set[str]]:
    """Change each field that is wanted of a child and wait for it to come back.

    Gives the number of changes, and the fields that the API server protects itself.
    """
    name, done, protected = wanted["metadata"]["name"], 0, set()
    owned = {"metadata": dict(wanted["metadata"]), "spec": wanted["spec"]}
    for fixed in ("namespace", "name"):
        owned["metadata"].pop(fixed)
    # With another owner than this it is garbage, and Kubernetes collects it.
    owned["metadata"]["ownerReferences"] = [{"controller": True, "blockOwnerDeletion": True}]
    for path, value in leaf_fields(owned):
        was = value_at(cluster.get(kind, namespace, name), path)
        for operations in field_changes(path, value):
            if not is_accepted(lambda operations=operations: cluster.json_patch(kind, namespace, name, *operations)):  # type: ignore[misc]
                protected.add(pointer(path))
                continue
            done += 1
            wait_until(
                lambda path=path, was=was: value_at(cluster.get(kind, namespace, name), path) == was,  # type: ignore[misc]
                60,
                lambda operations=operations, was=was: f"{operations} stays, it was {was}",  # type: ignore[misc]
            )
    return done, protected


def is_accepted(write: Callable[[], None]) -> bool:
    """Whether the API server takes it."""
    try:
        write()
    except ApiError as refusal:
        if refusal.status.code != 422:
            raise
        return False
    return True


def unit_manifests(unit: Object) -> dict[str, Object]:
    seen = unit_seen.ObservedUnit(unit=msgspec.convert(unit, GPUUnit), settings=SETTINGS)
    return {child.resource.kind: child.desired or {} for child in unit_children.desired_children(seen)}


def pool_manifests(pool: Object) -> dict[str, Object]:
    seen = pool_seen.ObservedPool(pool=msgspec.convert(pool, StockPool), settings=SETTINGS)
    return {child.resource.kind: child.desired or {} for child in pool_children.desired_children(seen)}


@pytest.fixture
def unit(cluster: ControllerCluster, namespace: str) -> Object:
    """With something in every field that a unit can have."""
    cluster.create_ready_storage(namespace, "data")
    mounts = [{"name": "data", "mountPath": "/data"}]
    spec = {"specName": "g1.1", "image": "python", "memory": "1Gi", "gpu": 1, "template": TEMPLATE}
    spec["serverless"] = {"enabled": True, "requestID": "web"}
    source = {f"{GROUP}/source-stock-uid": "gone", f"{GROUP}/source-stock-node": "simulated-1"}
    cluster.create(UNIT, namespace, "web", spec | {"storageMounts": mounts}, annotations=source)
    return cluster.wait_reason(UNIT, namespace, "web", "UnitReady")


@pytest.fixture
def pool(cluster: ControllerCluster, namespace: str) -> Object:
    spec = {"specName": "g1.1", "memory": "1Gi", "gpu": 1, "replicas": 2, "template": TEMPLATE | {"args": []}}
    cluster.create(POOL, namespace, "warm", spec)
    return cluster.wait_reason(POOL, namespace, "warm", "DeploymentReady")


def assert_no_writes(cluster: ControllerCluster, kind: Any, namespace: str, name: str) -> None:
    """Looking at it again writes nothing but the touch itself. Other tests' remains may need a moment to be gone."""
    touches, written = f"PATCH {kind._api_info.plural}", Counter[str]()

    def is_quiet() -> bool:
        nonlocal written
        before = cluster.write_counts()
        for _ in range(3):
            cluster.trigger_reconcile(kind, namespace, name)
        written = cluster.write_counts() - before
        return written == {touches: 3}

    wait_until(is_quiet, 60, lambda: f"there are still writes: {written}")


def test_every_owned_field_of_a_units_deployment_is_corrected(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    done, protected = correct_every_field(cluster, Deployment, namespace, unit_manifests(unit)["Deployment"])
    print(f"{done} changes came back; protected by the API server: {sorted(protected)}")
    assert done > 60
    assert_no_writes(cluster, UNIT, namespace, "web")


def test_every_owned_field_of_a_units_service_is_corrected(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    done, protected = correct_every_field(cluster, Service, namespace, unit_manifests(unit)["Service"])
    print(f"{done} changes came back; protected by the API server: {sorted(protected)}")
    assert done > 20
    assert_no_writes(cluster, UNIT, namespace, "web")


def test_every_owned_field_of_a_units_network_policy_is_corrected(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    done, protected = correct_every_field(cluster, NetworkPolicy, namespace, unit_manifests(unit)["NetworkPolicy"])
    print(f"{done} changes came back; protected by the API server: {sorted(protected)}")
    assert done > 20
    assert_no_writes(cluster, UNIT, namespace, "web")


def test_every_owned_field_of_a_pools_children_is_corrected(
    cluster: ControllerCluster, namespace: str, pool: Object
) -> None:
    manifests = pool_manifests(pool)
    for kind in (Deployment, Service):
        done, protected = correct_every_field(cluster, kind, namespace, manifests[kind._api_info.resource.kind])
        print(f"{done} changes came back; protected by the API server: {sorted(protected)}")
        assert done > 20
    cluster.wait_reason(POOL, namespace, "warm", "DeploymentReady")
    assert_no_writes(cluster, POOL, namespace, "warm")


def test_additional_selector_or_resource_entry_is_drift(
    cluster: ControllerCluster, namespace: str, unit: Object
) -> None:
    """A Service with one more label in its selector would select nothing."""
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
        fine = cluster.get(kind, namespace, "web")
        assert fine
        cluster.json_patch(kind, namespace, "web", {"op": "add", "path": path, "value": value})
        cluster.wait_for(kind, namespace, "web", lambda found, fine=fine: found["spec"] == fine["spec"])  # type: ignore[misc]


def test_deleted_children_are_recreated(cluster: ControllerCluster, namespace: str, unit: Object, pool: Object) -> None:
    own = (Deployment, Service, NetworkPolicy)
    for kind, name in (*((each, "web") for each in own), (Deployment, "pool-warm"), (Service, "pool-warm")):
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
            fine = cluster.get(kind, namespace, "web")
            assert fine
            cluster.merge_patch(kind, namespace, "web", {"metadata": lost})
            back = cluster.wait_for(
                kind,
                namespace,
                "web",
                lambda found, fine=fine: all(  # type: ignore[misc]
                    found["metadata"].get(part) == fine["metadata"][part] for part in ("ownerReferences", "labels")
                ),
            )
            assert back["metadata"]["uid"] == fine["metadata"]["uid"], "it is the same object"


def test_foreign_metadata_of_a_child_is_preserved(cluster: ControllerCluster, namespace: str, unit: Object) -> None:
    """Even when something else about the child has to be corrected."""
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
        lambda: cluster.is_deleted(Service, namespace, "web"), 60, lambda: "the Service of no port is still there"
    )
    deployment = cluster.wait_for(
        Deployment, namespace, "web", lambda found: "args" not in found["spec"]["template"]["spec"]["containers"][0]
    )
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert "ports" not in container
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    unit = cluster.wait_for(UNIT, namespace, "web", lambda found: "serviceName" not in found["status"])
    assert "accessURL" not in unit["status"]
