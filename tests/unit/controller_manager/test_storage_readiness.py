"""What is thought of a storage, from what was seen, and how that becomes a status."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageStatus
from gpu_runtime.controller_manager.gpu_storage.rules import STORAGE_RULES, first_violation
from gpu_runtime.controller_manager.gpu_storage.status import can_expand, expansion_refused, readiness, status_of
from tests.unit.controller_manager.controller_objects import make_storage, observed_storage, pvc, storage_class

NOW = "2026-01-01T00:00:00Z"
HELD_DATA = {"capacity": "1Gi"}
GOING = {"deletionTimestamp": NOW}
CLASS = {"storage_class": storage_class()}
LAZY = {"storage_class": storage_class(binding="WaitForFirstConsumer")}
FIXED = {"storage_class": storage_class(allow_expansion=False)}
PENDING_PVC = pvc(phase="Pending", capacity="")
CHOSEN = pvc(phase="Pending", capacity="", annotations={"volume.kubernetes.io/selected-node": "node-1"})
NEEDS_POD = {"type": "FileSystemResizePending", "status": "True", "message": "start a pod"}


@pytest.mark.parametrize(
    ("storage", "more", "phase", "reason", "said"),
    [
        (make_storage(size="x"), {}, "Failed", "InvalidSpec", "spec.size: 'x' is not a quantity"),
        (make_storage(size="0"), {"claim": pvc()}, "Failed", "InvalidSpec", "spec.size: 0 is not above 0"),
        (make_storage(), {"claim": pvc(labels={}, annotations={})}, "Failed", "NameTaken", "rename one of them"),
        (make_storage(status=HELD_DATA), {}, "Failed", "ClaimLost", "restore the claim, or delete this GPUStorage"),
        (make_storage(status=HELD_DATA), {"claim": pvc(**GOING)}, "Failed", "ClaimLost", "copy it before"),
        (make_storage(), {"claim": pvc(**GOING)}, "Pending", "ClaimPending", "of an earlier storage"),
        (
            make_storage(),
            {"claim": pvc(spec={"storageClassName": "slow"})},
            "Failed",
            "ClaimSyncFailed",
            "is of class slow, and this storage of class rook-ceph-block",
        ),
        (
            make_storage(),
            {"claim": pvc(spec={"accessModes": ["ReadOnlyMany"]})},
            "Failed",
            "ClaimSyncFailed",
            "does not allow ReadWriteOnce",
        ),
    ],
)
def test_first_violated_storage_rule_is_reported(storage: Any, more: Any, phase: str, reason: str, said: str) -> None:
    found = first_violation(STORAGE_RULES, observed_storage(storage, **more))
    assert found
    assert (found.phase.value, found.reason.value, found.ready) == (phase, reason, False)
    assert said in found.message


def test_no_rule_is_violated_without_pvc_or_with_own_pvc() -> None:
    for more in ({}, {"claim": pvc()}, {"claim": PENDING_PVC}):
        assert first_violation(STORAGE_RULES, observed_storage(make_storage(), **more)) is None


@pytest.mark.parametrize(
    ("size", "more", "phase", "reason", "said"),
    [
        (
            "1Gi",
            {"claim": PENDING_PVC},
            "Pending",
            "ClaimPending",
            "there is no StorageClass rook-ceph-block: create it",
        ),
        ("1Gi", {"claim": PENDING_PVC, **CLASS}, "Pending", "ClaimPending", "provisioner driver of StorageClass"),
        (
            "1Gi",
            {"claim": PENDING_PVC, "complaint": "full", **CLASS},
            "Pending",
            "ClaimPending",
            "the volume yet: full",
        ),
        ("1Gi", {"claim": CHOSEN, "complaint": "full", **LAZY}, "Pending", "WaitForFirstConsumer", "node-1: full"),
        ("1Gi", {"claim": PENDING_PVC, **LAZY}, "Pending", "WaitForFirstConsumer", "mount the storage"),
        ("1Gi", {"claim": CHOSEN, **LAZY}, "Pending", "WaitForFirstConsumer", "for node node-1"),
        ("2Gi", {"claim": PENDING_PVC, **FIXED}, "Pending", "ClaimPending", "has not made the volume yet"),
        ("1Gi", {"claim": pvc(phase="Lost")}, "Failed", "ClaimLost", "PersistentVolume volume-1 is gone"),
        ("1Gi", {"claim": pvc()}, "Ready", "StorageReady", "holds 1Gi"),
        ("1Gi", {"claim": pvc(capacity="2Gi")}, "Ready", "StorageReady", "holds 2Gi"),
        ("2Gi", {"claim": pvc(), **FIXED}, "Ready", "ResizeRefused", "set its allowVolumeExpansion to true"),
        ("2Gi", {"claim": pvc()}, "Ready", "ResizeRefused", "there is no StorageClass rook-ceph-block"),
        ("2Gi", {"claim": pvc(requested="2Gi"), **CLASS}, "Ready", "ResizePending", "grows from 1Gi to 2Gi"),
        (
            "2Gi",
            {"claim": pvc(requested="2Gi", status={"conditions": [NEEDS_POD]})},
            "Ready",
            "ResizePending",
            "; start a pod",
        ),
    ],
)
def test_readiness_of_a_storage(size: str, more: Any, phase: str, reason: str, said: str) -> None:
    thought = readiness(observed_storage(make_storage(size=size), **more))
    assert (thought.phase.value, thought.reason.value) == (phase, reason)
    assert said in thought.message
    assert thought.ready is (reason == "StorageReady")


@pytest.mark.parametrize(
    ("more", "asked"),
    [({"claim": pvc(), **CLASS}, True), ({"claim": pvc(), **FIXED}, False), ({"claim": PENDING_PVC, **CLASS}, False)],
)
def test_resize_is_requested_only_when_the_class_allows_it(more: Any, asked: bool) -> None:
    assert can_expand(observed_storage(make_storage(size="2Gi"), **more)) is asked


def test_resize_rejection_message_is_reported() -> None:
    thought = expansion_refused(observed_storage(make_storage(size="2Gi"), claim=pvc(), **CLASS), "exceeded quota")
    assert thought.message == "the volume cannot grow to 2Gi, its data is untouched: exceeded quota"


def storage_status(storage: Any, **more: Any) -> GPUStorageStatus:
    seen = observed_storage(storage, **more)
    return status_of(seen, first_violation(STORAGE_RULES, seen) or readiness(seen), NOW)


def test_storage_status_has_pvc_capacity_and_mounting_unit() -> None:
    status = storage_status(make_storage({"unit": "web"}), claim=pvc(capacity="2Gi"))
    assert (status.claim_name, status.capacity, status.mounted_by) == ("data", "2Gi", "web")
    assert (status.phase, status.observed_generation, status.mountable) == ("Ready", 1, True)


@pytest.mark.parametrize(
    ("found", "claim_name"),
    [(None, None), (pvc(phase="Lost"), "data"), (pvc(capacity="9Gi", labels={}, annotations={}), None)],
)
def test_capacity_of_a_lost_pvc_stays_in_the_status(found: Any, claim_name: str | None) -> None:
    status = storage_status(make_storage(status=HELD_DATA), claim=found)
    assert (status.capacity, status.claim_name, status.mountable) == ("1Gi", claim_name, False)


def test_terminating_pvc_reports_no_capacity() -> None:
    assert storage_status(make_storage(), claim=pvc(**GOING)).capacity is None


@pytest.mark.parametrize(
    ("size", "more", "mountable"),
    [
        ("1Gi", {"claim": PENDING_PVC, **CLASS}, False),
        ("1Gi", {"claim": PENDING_PVC, **LAZY}, True),
        ("2Gi", {"claim": pvc(), **FIXED}, True),
        ("x", {"claim": pvc()}, False),
    ],
)
def test_mountable_by_readiness(size: str, more: Any, mountable: bool) -> None:
    assert storage_status(make_storage(size=size), **more).mountable is mountable
