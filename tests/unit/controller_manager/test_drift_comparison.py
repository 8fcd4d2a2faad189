"""Comparison of live children with their desired manifests, and the manifest of an update."""

import copy
from typing import Any

import pytest

from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment as unit_deployment
from gpu_runtime.controller_manager.gpu_unit.children.service import service as unit_service
from gpu_runtime.controller_manager.unstructured import RawDeployment, RawService
from gpu_runtime.controller_manager.workload.drift import (
    DESIRED_HASH_ANNOTATION,
    is_orphan,
    is_owned,
    matches_desired,
    update_manifest,
)
from tests.unit.controller_manager.controller_objects import PORTS, as_stored, observed_unit, unit

UNIT = unit(
    memory="1024Mi",
    gpu=1,
    storageMounts=[{"name": "data", "mountPath": "/data"}],
    template={"args": ["serve"], "envs": [{"name": "EMPTY"}], "ports": PORTS},
)
DEPLOYMENT = unit_deployment(observed_unit(UNIT))
MAIN = ("template", "spec", "containers", 0)


def service() -> dict[str, Any]:
    manifest = unit_service(observed_unit(UNIT))
    assert manifest
    return manifest


def with_field(stored: Any, path: tuple[str | int, ...], value: Any) -> Any:
    """Return a copy of the object with one changed field. The value None removes the field."""
    spec = copy.deepcopy(stored.spec)
    parent: Any = spec
    for part in path[:-1]:
        parent = parent[part]
    if value is None:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return type(stored)(metadata=stored.metadata, spec=spec)


def test_defaulted_object_from_the_api_server_has_no_drift() -> None:
    assert matches_desired(as_stored(DEPLOYMENT, RawDeployment), DEPLOYMENT)
    assert matches_desired(as_stored(service(), RawService), service())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("progressDeadlineSeconds",), 5),
        (("template", "metadata", "annotations"), {"kubectl.kubernetes.io/restartedAt": "now"}),
        ((*MAIN, "resources", "limits", "memory"), "1Gi"),
        ((*MAIN, "volumeMounts", 0, "readOnly"), None),
    ],
)
def test_unowned_and_equivalent_fields_are_no_drift(path: tuple[str | int, ...], value: Any) -> None:
    assert matches_desired(with_field(as_stored(DEPLOYMENT, RawDeployment), path, value), DEPLOYMENT)


POD = ("template", "spec")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("paused",), True),
        (("template", "metadata", "labels", "more"), "x"),
        (
            ("template", "metadata", "annotations"),
            {"container.apparmor.security.beta.kubernetes.io/main": "unconfined"},
        ),
        ((*POD, "hostNetwork"), True),
        ((*POD, "hostPID"), True),
        ((*POD, "shareProcessNamespace"), True),
        ((*POD, "serviceAccountName"), "default"),
        ((*POD, "dnsPolicy"), "Default"),
        ((*POD, "runtimeClassName"), "nvidia"),
        ((*POD, "ephemeralContainers"), [{"name": "x"}]),
        ((*POD, "securityContext", "runAsUser"), 0),
        ((*MAIN, "securityContext", "privileged"), True),
        ((*MAIN, "securityContext", "runAsUser"), 0),
        ((*MAIN, "securityContext", "capabilities", "add"), ["SYS_ADMIN"]),
        ((*MAIN, "envFrom"), [{"secretRef": {"name": "platform"}}]),
        ((*MAIN, "ports", 0, "hostPort"), 80),
    ],
)
def test_additional_field_of_another_client_is_drift(path: tuple[str | int, ...], value: Any) -> None:
    assert not matches_desired(with_field(as_stored(DEPLOYMENT, RawDeployment), path, value), DEPLOYMENT)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("replicas",), 0),
        (("replicas",), True),
        (("revisionHistoryLimit",), 10),
        (("revisionHistoryLimit",), None),
        (("strategy", "type"), "RollingUpdate"),
        (("template", "spec", "automountServiceAccountToken"), True),
        (("template", "spec", "automountServiceAccountToken"), None),
        (("template", "spec", "affinity"), {"nodeAffinity": {}}),
        ((*MAIN, "command"), ["sh"]),
        ((*MAIN, "env", 0, "value"), "full"),
        ((*MAIN, "env"), None),
        ((*MAIN, "volumeMounts", 0, "readOnly"), True),
        ((*MAIN, "resources", "limits", "memory"), "1025Mi"),
        ((*MAIN, "resources", "limits", "cpu"), "1"),
        ((*MAIN, "resources", "requests"), None),
        (("template", "spec", "containers", 0), None),
    ],
)
def test_changed_deployment_field_is_drift(path: tuple[str | int, ...], value: Any) -> None:
    assert not matches_desired(with_field(as_stored(DEPLOYMENT, RawDeployment), path, value), DEPLOYMENT)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("type",), "NodePort"),
        (("selector", "more"), "x"),
        (("ports", 0, "protocol"), "UDP"),
        (("ports", 0, "targetPort"), "80"),
        (("ports", 1), None),
    ],
)
def test_changed_service_field_is_drift(path: tuple[str | int, ...], value: Any) -> None:
    assert not matches_desired(with_field(as_stored(service(), RawService), path, value), service())


@pytest.mark.parametrize("part", ["labels", "annotations"])
def test_foreign_metadata_is_no_drift_and_missing_metadata_is(part: str) -> None:
    desired = DEPLOYMENT["metadata"][part]
    assert matches_desired(as_stored(DEPLOYMENT, RawDeployment, **{part: desired | {"example.com/a": "b"}}), DEPLOYMENT)
    assert not matches_desired(as_stored(DEPLOYMENT, RawDeployment, **{part: {}}), DEPLOYMENT)


def test_desired_hash_changes_only_with_the_desired_spec() -> None:
    def desired_hash(**spec: Any) -> str:
        annotations: dict[str, str] = unit_deployment(observed_unit(unit(**spec)))["metadata"]["annotations"]
        return annotations[DESIRED_HASH_ANNOTATION]

    assert desired_hash() == desired_hash()
    assert desired_hash() != desired_hash(memory="1Gi")
    assert desired_hash(template={"args": ["a"]}) != desired_hash(template={"command": ["a"]})


def test_child_is_owned_by_its_owner_reference_and_orphan_is_identified_by_labels() -> None:
    owned, orphan = as_stored(DEPLOYMENT, RawDeployment), as_stored(DEPLOYMENT, RawDeployment, ownerReferences=[])
    foreign = as_stored(DEPLOYMENT, RawDeployment, ownerReferences=[], labels={"app": "web"})
    assert (is_owned(owned, UNIT), is_orphan(owned, DEPLOYMENT)) == (True, False)
    assert (is_owned(orphan, UNIT), is_orphan(orphan, DEPLOYMENT)) == (False, True)
    assert (is_owned(foreign, UNIT), is_orphan(foreign, DEPLOYMENT)) == (False, False)
    assert not matches_desired(orphan, DEPLOYMENT)


def test_replacement_preserves_foreign_metadata() -> None:
    other = {"apiVersion": "v1", "kind": "Namespace", "name": "n", "uid": "other"}
    demoted = DEPLOYMENT["metadata"]["ownerReferences"][0] | {"controller": False}
    found = as_stored(
        DEPLOYMENT,
        RawDeployment,
        labels={"example.com/a": "b"},
        annotations={"example.com/c": "d"},
        finalizers=["example.com/e"],
        ownerReferences=[other, demoted],
    )
    written = update_manifest(found, DEPLOYMENT)
    metadata = written["metadata"]
    assert metadata["resourceVersion"] == "7"
    assert metadata["labels"] == {"example.com/a": "b"} | DEPLOYMENT["metadata"]["labels"]
    assert metadata["annotations"] == {"example.com/c": "d"} | DEPLOYMENT["metadata"]["annotations"]
    assert metadata["finalizers"] == ["example.com/e"]
    assert metadata["ownerReferences"] == [other, *DEPLOYMENT["metadata"]["ownerReferences"]]
    assert written["spec"] == DEPLOYMENT["spec"]
