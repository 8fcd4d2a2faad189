"""Which prepared pods a unit adopts, and the objects with which it does."""

from typing import Any, cast

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.contract.prepared_pods import awaits_pod, claim_labels, claim_patch
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.gpu_unit import adoption
from gpu_runtime.controller_manager.gpu_unit.adoption import (
    PodAdopter,
    fits_unit,
    is_claimed_for,
    replica_set_manifest,
    takes_pod_for,
)
from gpu_runtime.controller_manager.gpu_unit.children.deployment import deployment as unit_deployment
from gpu_runtime.controller_manager.gpu_unit.children.network_policy import network_policy as unit_network_policy
from gpu_runtime.controller_manager.gpu_unit.children.service import service as unit_service
from gpu_runtime.controller_manager.settings import EgressSettings, PodSettings
from gpu_runtime.controller_manager.stock_pool.children.deployment import deployment as pool_deployment
from gpu_runtime.controller_manager.stock_pool.children.network_policy import network_policy
from gpu_runtime.controller_manager.stock_pool.status import readiness, status_of
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.controller_manager.workload.namespace_isolation import ISOLATION_POLICY, isolation_policies
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import ApiStatus, KubeConflict
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.controller_manager.controller_objects import (
    SETTINGS,
    deployment,
    observed_pool,
    observed_unit,
    pool,
    unit,
)

TEMPLATE = {"command": ["serve"], "ports": [{"name": "http", "port": 80}]}
POOL = pool(image="python", gpu=1, template=TEMPLATE, adoptable=True)
FROM_POD = {
    Annotation.OPERATION_ID: "make",
    Annotation.OPERATION_UID: "op-uid",
    Annotation.SOURCE_STOCK_NAME: "warm-1",
    Annotation.SOURCE_STOCK_UID: "pod-uid",
    Annotation.SOURCE_STOCK_POOL: "warm",
    Annotation.SOURCE_STOCK_NODE: "node-1",
}
DEFAULT_PROBE = {"readiness": {"tcpSocket": {}, "periodSeconds": 1}}


def unit_from_pod(annotations: dict[str, str] | None = None, **spec: Any) -> GPUUnit:
    ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
    fields: dict[str, Any] = {"gpu": 1, "template": {"command": ["serve"], "ports": ports}, "probes": DEFAULT_PROBE}
    return unit(annotations=FROM_POD | (annotations or {}), **fields | spec)


def operation(**changes: Any) -> Operation:
    target = {"kind": "GPUUnit", "namespace": "runtime-instance", "name": "web"}
    spec = {
        "operationID": "make",
        "type": "CreateUnit",
        "requestHash": "",
        "target": target | changes.pop("target", {}),
    }
    stock = {"namespace": "runtime-instance", "name": "warm-1", "uid": "pod-uid", "pool": "warm"}
    status = {"state": "Running", "attempt": 1, "stock": stock} | changes
    return msgspec.convert({"metadata": {"uid": "op-uid"}, "spec": spec, "status": status}, Operation)


def claimed_pod(**changes: Any) -> Pod:
    """A pod of the pool, after the claim."""
    template = pool_deployment(observed_pool(POOL))["spec"]["template"]
    patch = claim_patch(operation())["metadata"]
    labels = template["metadata"]["labels"] | patch["labels"]
    metadata = {
        "name": "warm-1",
        "namespace": "runtime-instance",
        "uid": "pod-uid",
        "labels": labels,
        "annotations": template["metadata"]["annotations"] | patch["annotations"],
    }
    return msgspec.convert({"metadata": metadata | changes}, Pod)


def test_pods_of_a_pool_and_of_a_unit_are_equal_except_for_the_affinity() -> None:
    prepared = pool_deployment(observed_pool(POOL))["spec"]["template"]["spec"]
    active = unit_deployment(observed_unit(unit_from_pod()))["spec"]["template"]["spec"]
    assert prepared | {"affinity": None} == active | {"affinity": None}
    assert active["affinity"]
    assert prepared["priorityClassName"] == "gpu-runtime-handoff"


def test_unit_adopts_the_pod_that_its_handoff_claimed() -> None:
    observed = observed_unit(unit_from_pod(), prepared_pod=claimed_pod())
    assert is_claimed_for(observed, claimed_pod())
    assert fits_unit(observed, claimed_pod())


FOREIGN_OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "worker", "uid": "r", "controller": True}
NOT_CLAIMED: dict[str, Any] = {
    "pod of a worker": {"labels": {Label.PREPARED: "true"}, "ownerReferences": [FOREIGN_OWNER]},
    "pod that a unit has taken": {"labels": {Label.UNIT_UID: "uid-of-web"}, "ownerReferences": [FOREIGN_OWNER]},
    "pod of another unit": {"labels": {Label.PREPARED: "true", Label.UNIT_UID: "other"}},
    "pod that is not prepared": {"labels": {}},
    "later pod with the same name": {"uid": "other"},
    "terminating pod": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "pod of another operation": {
        "annotations": claimed_pod().metadata.annotations | {Annotation.OPERATION_UID: "other"}
    },
}


@pytest.mark.parametrize("changes", NOT_CLAIMED.values(), ids=NOT_CLAIMED)
def test_unit_takes_no_other_pod(changes: dict[str, Any]) -> None:
    assert not is_claimed_for(observed_unit(unit_from_pod()), claimed_pod(**changes))


FORGED: dict[str, tuple[GPUUnit, Operation | None]] = {
    "no operation": (unit_from_pod(), None),
    "operation of another unit": (unit_from_pod(), operation(target={"name": "other"})),
    "operation in another namespace": (unit_from_pod(), operation(target={"namespace": "other"})),
    "unit with a copied annotation": (unit_from_pod({Annotation.OPERATION_UID: "forged"}), operation()),
    "later unit with the same name": (unit_from_pod(), operation(state="Succeeded", targetUID="earlier")),
    "operation without stock": (unit_from_pod(), operation(stock=None)),
    "operation with other stock": (unit_from_pod(), operation(stock={"namespace": "n", "name": "x", "uid": "y"})),
    "failed operation": (unit_from_pod(), operation(state="Failed")),
}


@pytest.mark.parametrize(("forged", "recorded"), FORGED.values(), ids=FORGED)
def test_pod_is_taken_only_for_the_unit_of_its_operation(forged: GPUUnit, recorded: Operation | None) -> None:
    assert not takes_pod_for(recorded, forged, claimed_pod())


@pytest.mark.parametrize("status", [{}, {"state": "Succeeded", "targetUID": "uid-of-web"}])
def test_pod_is_taken_before_and_after_the_commit(status: dict[str, Any]) -> None:
    assert takes_pod_for(operation(**status), unit_from_pod(), claimed_pod())


COMMITTED: dict[str, Any] = {"state": "Succeeded", "targetUID": "uid-of-web"}
LEFT: dict[str, tuple[GPUUnit, Operation, Pod]] = {
    "later unit with the same name": (unit_from_pod(), operation(**COMMITTED | {"targetUID": "other"}), claimed_pod()),
    "changed operation": (unit_from_pod({Annotation.OPERATION_UID: "other"}), operation(**COMMITTED), claimed_pod()),
    "changed pod": (unit_from_pod({Annotation.SOURCE_STOCK_UID: "other"}), operation(**COMMITTED), claimed_pod()),
    "changed name": (unit_from_pod({Annotation.SOURCE_STOCK_NAME: "other"}), operation(**COMMITTED), claimed_pod()),
    "removed pool": (unit_from_pod({Annotation.SOURCE_STOCK_POOL: ""}), operation(**COMMITTED), claimed_pod()),
    "pod of another unit": (
        unit_from_pod(),
        operation(**COMMITTED),
        claimed_pod(labels=claimed_pod().metadata.labels | {Label.UNIT_UID: "other"}),
    ),
}


@pytest.mark.parametrize(("found", "recorded", "pod"), LEFT.values(), ids=LEFT)
def test_recovery_deletes_a_claimed_pod_that_no_unit_will_adopt(found: GPUUnit, recorded: Operation, pod: Pod) -> None:
    assert not awaits_pod(found, recorded, pod)


def test_recovery_keeps_a_claimed_pod_that_its_unit_will_adopt() -> None:
    assert awaits_pod(unit_from_pod(), operation(**COMMITTED), claimed_pod())


UNFIT: dict[str, dict[str, Any]] = {
    "stopped unit": {"unit": unit_from_pod(running=False)},
    "changed unit": {"unit": unit_from_pod(image="other")},
    "unit with a Deployment": {"unit": unit_from_pod(), "deployment": deployment()},
    "changed settings": {
        "unit": unit_from_pod(),
        "settings": msgspec.structs.replace(SETTINGS, pods=PodSettings(default_ephemeral_storage="1Gi")),
    },
}


@pytest.mark.parametrize("fields", UNFIT.values(), ids=UNFIT)
def test_pod_that_does_not_fit_is_not_adopted(fields: dict[str, Any]) -> None:
    assert not fits_unit(observed_unit(**fields), claimed_pod())


class StubKube:
    """A Kubernetes client that knows one Operation. Every pod has changed since it was read."""

    def __init__(self) -> None:
        self.deletions: list[dict[str, str]] = []

    async def get(self, _resource: object, _key: ObjectKey) -> Operation:
        return operation(state="Succeeded", targetUID="uid-of-web")

    async def delete(self, _resource: object, _key: ObjectKey, **preconditions: str) -> None:
        self.deletions.append(preconditions)
        raise KubeConflict(ApiStatus(code=409, message="the pod has changed"))


async def no_changes(*_: object) -> None:
    """Replace the function that creates the NetworkPolicy and the Service of the unit."""


async def test_pod_that_does_not_fit_is_deleted_only_if_it_has_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of a new leader can show the Deployment of the unit before it shows that the unit owns the pod."""
    monkeypatch.setattr(adoption, "sync_children", no_changes)
    kube, pod = StubKube(), claimed_pod(resourceVersion="7")
    live = msgspec.convert(unit_deployment(observed_unit(unit_from_pod())), RawDeployment)
    observed = observed_unit(unit_from_pod(), deployment=live, prepared_pod=pod)
    adopter = PodAdopter(cast(KubeClient, kube), cast(ControllerInformers, None), "runtime-system")
    assert await adopter.adopt(observed) is None
    assert kube.deletions == [{"uid": "pod-uid", "resource_version": "7"}]


async def test_claimed_pod_is_kept_until_the_deployment_of_an_earlier_unit_is_deleted() -> None:
    """The unit was deleted and created again with the same name. The garbage collector deletes the old Deployment."""
    kube = StubKube()
    earlier = msgspec.structs.replace(unit_from_pod().metadata, uid="earlier")
    live = unit_deployment(observed_unit(msgspec.structs.replace(unit_from_pod(), metadata=earlier)))
    observed = observed_unit(
        unit_from_pod(), deployment=msgspec.convert(live, RawDeployment), prepared_pod=claimed_pod()
    )
    adopter = PodAdopter(cast(KubeClient, kube), cast(ControllerInformers, None), "runtime-system")
    assert await adopter.adopt(observed) is None, "the sync of the children then reports the old Deployment"
    assert kube.deletions == []


def test_service_and_policy_of_a_unit_select_no_pod_that_another_operation_has_claimed() -> None:
    """Two operations can claim pods for units with the same name. Only one of them creates its unit."""
    observed = observed_unit(unit_from_pod())
    own = unit_deployment(observed)["spec"]["template"]["metadata"]["labels"]
    other = claim_labels("web", "other")
    service, policy = unit_service(observed), unit_network_policy(observed)
    assert service
    assert policy
    for selector in (service["spec"]["selector"], policy["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= claimed_pod().metadata.labels.items()
        assert selector.items() <= own.items(), "later pods of the unit are selected, too"
        assert not selector.items() <= (claimed_pod().metadata.labels | other).items()


def test_replica_set_and_deployment_have_the_same_pod_template() -> None:
    observed = observed_unit(unit_from_pod())
    replica_set, desired = replica_set_manifest(observed), unit_deployment(observed)
    template, expected = replica_set["spec"]["template"], desired["spec"]["template"]
    template_hash = template["metadata"]["labels"].pop("pod-template-hash")
    assert template == expected
    assert replica_set["metadata"]["name"] == f"web-{template_hash}"
    assert replica_set["spec"]["selector"]["matchLabels"] == {Label.UNIT: "web", "pod-template-hash": template_hash}
    assert [each.get("controller") for each in replica_set["metadata"]["ownerReferences"]] == [None]


def test_no_policy_opens_a_claimed_pod_before_the_unit_exists() -> None:
    policies = isolation_policies("runtime-instance", EgressSettings())
    isolation = policies[ISOLATION_POLICY]
    assert isolation
    assert isolation["spec"]["podSelector"]["matchLabels"].items() <= claimed_pod().metadata.labels.items()
    assert isolation["spec"]["ingress"] == []
    assert network_policy(observed_pool(POOL)) is None
    assert network_policy(observed_pool(pool())) is None


def test_policy_of_a_pool_does_not_open_pods_that_were_prepared_before_the_pool_changed() -> None:
    policy = network_policy(observed_pool(pool(image="python", template=TEMPLATE)))
    assert policy
    selector = policy["spec"]["podSelector"]
    assert selector["matchLabels"] == {Label.POOL: "warm"}
    assert selector["matchExpressions"] == [{"key": Label.PREPARED_BY, "operator": "DoesNotExist"}]
    assert Label.PREPARED_BY in claimed_pod().metadata.labels
    assert [each["port"] for each in policy["spec"]["ingress"][0]["ports"]] == [80]


@pytest.mark.parametrize(
    ("spec", "status", "reason"),
    [
        ({"image": "python", "template": TEMPLATE, "adoptable": True}, "True", "Adoptable"),
        ({"image": "python", "adoptable": True}, "False", "Placeholder"),
        ({"template": TEMPLATE, "adoptable": True}, "False", "Placeholder"),
        ({"image": "python", "template": TEMPLATE}, "False", "NotRequested"),
    ],
)
def test_status_of_a_pool_says_whether_it_is_adoptable(spec: dict[str, Any], status: str, reason: str) -> None:
    observed = observed_pool(pool(**spec))
    conditions = {each.type: each for each in status_of(observed, readiness(observed), "", is_built=True).conditions}
    assert (conditions["Adoptable"].status, conditions["Adoptable"].reason) == (status, reason)


def test_placeholder_pool_has_no_prepared_pods() -> None:
    template = pool_deployment(observed_pool(pool(image="python", adoptable=True)))["spec"]["template"]
    assert Label.PREPARED not in template["metadata"]["labels"]
    assert template["spec"]["priorityClassName"] == "gpu-runtime-stock"
