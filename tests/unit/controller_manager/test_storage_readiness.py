"""Readiness of a storage, and the status that reports it."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageStatus
from gpu_runtime.controller_manager.gpu_storage.rules import STORAGE_RULES, first_violation
from gpu_runtime.controller_manager.gpu_storage.status import can_expand, expansion_refused, readiness, status_of
from tests.unit.controller_manager.controller_objects import make_storage, observed_storage, pvc, storage_class

NOW = "2026-01-01T00:00:00Z"
PROVISIONED = {"capacity": "1Gi"}
TERMINATING = {"deletionTimestamp": NOW}
CLASS = {"storage_class": storage_class()}
WAIT_FOR_CONSUMER_CLASS = {"storage_class": storage_class(binding="WaitForFirstConsumer")}
NOT_EXPANDABLE_CLASS = {"storage_class": storage_class(allow_expansion=False)}
PENDING_PVC = pvc(phase="Pending", capacity="")
SCHEDULED_PVC = pvc(phase="Pending", capacity="", annotations={"volume.kubernetes.io/selected-node": "node-1"})
NEEDS_POD = {"type": "FileSystemResizePending", "status": "True", "message": "start a pod"}


@pytest.mark.parametrize(
    ("storage", "fields", "phase", "reason", "message"),
    [
        (make_storage(size="x"), {}, "Failed", "InvalidSpec", "spec.size: 'x' is not a quantity"),
        (make_storage(size="0"), {"pvc": pvc()}, "Failed", "InvalidSpec", "spec.size: 0 is not greater than 0"),
        (
            make_storage(),
            {"pvc": pvc(labels={}, annotations={})},
            "Failed",
            "NameTaken",
            "set the label runtime.lokiwager.io/storage=data on the PVC to adopt it",
        ),
        (make_storage(status=PROVISIONED), {}, "Failed", "ClaimLost", "restore the PVC, or delete this GPUStorage"),
        (
            make_storage(status=PROVISIONED),
            {"pvc": pvc(**TERMINATING)},
            "Failed",
            "ClaimLost",
            "copy its data now, because the data is lost when",
        ),
        (
            make_storage(),
            {"pvc": pvc(**TERMINATING)},
            "Pending",
            "ClaimPending",
            "of a deleted GPUStorage still exists",
        ),
        (
            make_storage(),
            {"pvc": pvc(spec={"storageClassName": "slow"})},
            "Failed",
            "ClaimSyncFailed",
            "has StorageClass slow instead of rook-ceph-block",
        ),
        (
            make_storage(),
            {"pvc": pvc(spec={"accessModes": ["ReadOnlyMany"]})},
            "Failed",
            "ClaimSyncFailed",
            "does not allow access mode ReadWriteOnce",
        ),
    ],
)
def test_first_violated_storage_rule_is_reported(
    storage: Any, fields: Any, phase: str, reason: str, message: str
) -> None:
    violation = first_violation(STORAGE_RULES, observed_storage(storage, **fields))
    assert violation
    assert (violation.phase.value, violation.reason.value, violation.ready) == (phase, reason, False)
    assert message in violation.message


def test_no_rule_is_violated_without_pvc_or_with_own_pvc() -> None:
    for fields in ({}, {"pvc": pvc()}, {"pvc": PENDING_PVC}):
        assert first_violation(STORAGE_RULES, observed_storage(make_storage(), **fields)) is None


@pytest.mark.parametrize(
    ("size", "fields", "phase", "reason", "message"),
    [
        (
            "1Gi",
            {"pvc": PENDING_PVC},
            "Pending",
            "ClaimPending",
            "StorageClass rook-ceph-block does not exist: create it",
        ),
        ("1Gi", {"pvc": PENDING_PVC, **CLASS}, "Pending", "ClaimPending", "provisioner driver of StorageClass"),
        (
            "1Gi",
            {"pvc": PENDING_PVC, "provisioner_warning": "full", **CLASS},
            "Pending",
            "ClaimPending",
            "the volume yet: full",
        ),
        (
            "1Gi",
            {"pvc": SCHEDULED_PVC, "provisioner_warning": "full", **WAIT_FOR_CONSUMER_CLASS},
            "Pending",
            "WaitForFirstConsumer",
            "node-1: full",
        ),
        (
            "1Gi",
            {"pvc": PENDING_PVC, **WAIT_FOR_CONSUMER_CLASS},
            "Pending",
            "WaitForFirstConsumer",
            "create a unit that mounts the storage",
        ),
        (
            "1Gi",
            {"pvc": SCHEDULED_PVC, **WAIT_FOR_CONSUMER_CLASS},
            "Pending",
            "WaitForFirstConsumer",
            "for node node-1",
        ),
        (
            "2Gi",
            {"pvc": PENDING_PVC, **NOT_EXPANDABLE_CLASS},
            "Pending",
            "ClaimPending",
            "has not created the volume yet",
        ),
        ("1Gi", {"pvc": pvc(phase="Lost")}, "Failed", "ClaimLost", "PersistentVolume volume-1 does not exist any more"),
        ("1Gi", {"pvc": pvc()}, "Ready", "StorageReady", "has a capacity of 1Gi"),
        ("1Gi", {"pvc": pvc(capacity="2Gi")}, "Ready", "StorageReady", "has a capacity of 2Gi"),
        (
            "2Gi",
            {"pvc": pvc(), **NOT_EXPANDABLE_CLASS},
            "Ready",
            "ResizeRefused",
            "set its allowVolumeExpansion to true",
        ),
        (
            "2Gi",
            {"pvc": pvc()},
            "Ready",
            "ResizeRefused",
            "StorageClass rook-ceph-block does not exist: create it with allowVolumeExpansion",
        ),
        ("2Gi", {"pvc": pvc(requested="2Gi"), **CLASS}, "Ready", "ResizePending", "is being expanded from 1Gi to 2Gi"),
        (
            "2Gi",
            {"pvc": pvc(requested="2Gi", status={"conditions": [NEEDS_POD]})},
            "Ready",
            "ResizePending",
            "; start a pod",
        ),
    ],
)
def test_readiness_of_a_storage(size: str, fields: Any, phase: str, reason: str, message: str) -> None:
    result = readiness(observed_storage(make_storage(size=size), **fields))
    assert (result.phase.value, result.reason.value) == (phase, reason)
    assert message in result.message
    assert result.ready is (reason == "StorageReady")


@pytest.mark.parametrize(
    ("fields", "can_be_expanded"),
    [
        ({"pvc": pvc(), **CLASS}, True),
        ({"pvc": pvc(), **NOT_EXPANDABLE_CLASS}, False),
        ({"pvc": PENDING_PVC, **CLASS}, False),
    ],
)
def test_resize_is_requested_only_when_the_class_allows_it(fields: Any, can_be_expanded: bool) -> None:
    assert can_expand(observed_storage(make_storage(size="2Gi"), **fields)) is can_be_expanded


def test_resize_rejection_message_is_reported() -> None:
    result = expansion_refused(observed_storage(make_storage(size="2Gi"), pvc=pvc(), **CLASS), "exceeded quota")
    message = "the volume and its data are unchanged, because the volume cannot be expanded to 2Gi: exceeded quota"
    assert result.message == message


def storage_status(storage: Any, **fields: Any) -> GPUStorageStatus:
    observed = observed_storage(storage, **fields)
    return status_of(observed, first_violation(STORAGE_RULES, observed) or readiness(observed), NOW)


def test_storage_status_has_pvc_capacity_and_mounting_unit() -> None:
    status = storage_status(make_storage({"unit": "web"}), pvc=pvc(capacity="2Gi"))
    assert (status.claim_name, status.capacity, status.mounted_by) == ("data", "2Gi", "web")
    assert (status.phase, status.observed_generation, status.mountable) == ("Ready", 1, True)


@pytest.mark.parametrize(
    ("live", "claim_name"),
    [(None, None), (pvc(phase="Lost"), "data"), (pvc(capacity="9Gi", labels={}, annotations={}), None)],
)
def test_capacity_of_a_lost_pvc_stays_in_the_status(live: Any, claim_name: str | None) -> None:
    status = storage_status(make_storage(status=PROVISIONED), pvc=live)
    assert (status.capacity, status.claim_name, status.mountable) == ("1Gi", claim_name, False)


def test_terminating_pvc_reports_no_capacity() -> None:
    assert storage_status(make_storage(), pvc=pvc(**TERMINATING)).capacity is None


@pytest.mark.parametrize(
    ("size", "fields", "mountable"),
    [
        ("1Gi", {"pvc": PENDING_PVC, **CLASS}, False),
        ("1Gi", {"pvc": PENDING_PVC, **WAIT_FOR_CONSUMER_CLASS}, True),
        ("2Gi", {"pvc": pvc(), **NOT_EXPANDABLE_CLASS}, True),
        ("x", {"pvc": pvc()}, False),
    ],
)
def test_mountable_by_readiness(size: str, fields: Any, mountable: bool) -> None:
    assert storage_status(make_storage(size=size), **fields).mountable is mountable
