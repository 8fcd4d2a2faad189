"""What is thought of a storage, from what was seen, and how that becomes a status."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageStatus
from gpu_runtime.controller_manager.gpu_storage.rules import STORAGE_RULES, first_violation
from gpu_runtime.controller_manager.gpu_storage.status import may_grow, refused_growth, status_of, verdict
from tests.unit.controller_manager.objects import a_storage, claim, seen_storage, storage_class

NOW = "2026-01-01T00:00:00Z"
HELD_DATA = {"capacity": "1Gi"}
GOING = {"deletionTimestamp": NOW}
CLASS = {"storage_class": storage_class()}
LAZY = {"storage_class": storage_class(binding="WaitForFirstConsumer")}
FIXED = {"storage_class": storage_class(grows=False)}
WAITING = claim(phase="Pending", capacity="")
CHOSEN = claim(phase="Pending", capacity="", annotations={"volume.kubernetes.io/selected-node": "node-1"})
NEEDS_POD = {"type": "FileSystemResizePending", "status": "True", "message": "start a pod"}


@pytest.mark.parametrize(
    ("storage", "more", "phase", "reason", "said"),
    [
        (a_storage(size="x"), {}, "Failed", "InvalidSpec", "spec.size: 'x' is not a quantity"),
        (a_storage(size="0"), {"claim": claim()}, "Failed", "InvalidSpec", "spec.size: 0 is not above 0"),
        (a_storage(), {"claim": claim(labels={}, annotations={})}, "Failed", "NameTaken", "rename one of them"),
        (a_storage(status=HELD_DATA), {}, "Failed", "ClaimLost", "restore the claim, or delete this GPUStorage"),
        (a_storage(status=HELD_DATA), {"claim": claim(**GOING)}, "Failed", "ClaimLost", "copy it before"),
        (a_storage(), {"claim": claim(**GOING)}, "Pending", "ClaimPending", "of an earlier storage"),
        (
            a_storage(),
            {"claim": claim(spec={"storageClassName": "slow"})},
            "Failed",
            "ClaimSyncFailed",
            "is of class slow, and this storage of class rook-ceph-block",
        ),
        (
            a_storage(),
            {"claim": claim(spec={"accessModes": ["ReadOnlyMany"]})},
            "Failed",
            "ClaimSyncFailed",
            "does not allow ReadWriteOnce",
        ),
    ],
)
def test_the_first_broken_rule_is_told(storage: Any, more: Any, phase: str, reason: str, said: str) -> None:
    found = first_violation(STORAGE_RULES, seen_storage(storage, **more))
    assert found
    assert (found.phase.value, found.reason.value, found.ready) == (phase, reason, False)
    assert said in found.message


def test_nothing_is_in_the_way_of_a_first_claim_nor_of_ones_own() -> None:
    for more in ({}, {"claim": claim()}, {"claim": WAITING}):
        assert first_violation(STORAGE_RULES, seen_storage(a_storage(), **more)) is None


@pytest.mark.parametrize(
    ("size", "more", "phase", "reason", "said"),
    [
        ("1Gi", {"claim": WAITING}, "Pending", "ClaimPending", "there is no StorageClass rook-ceph-block: create it"),
        ("1Gi", {"claim": WAITING, **CLASS}, "Pending", "ClaimPending", "provisioner driver of StorageClass"),
        ("1Gi", {"claim": WAITING, "complaint": "full", **CLASS}, "Pending", "ClaimPending", "the volume yet: full"),
        ("1Gi", {"claim": CHOSEN, "complaint": "full", **LAZY}, "Pending", "WaitForFirstConsumer", "node-1: full"),
        ("1Gi", {"claim": WAITING, **LAZY}, "Pending", "WaitForFirstConsumer", "mount the storage"),
        ("1Gi", {"claim": CHOSEN, **LAZY}, "Pending", "WaitForFirstConsumer", "for node node-1"),
        ("2Gi", {"claim": WAITING, **FIXED}, "Pending", "ClaimPending", "has not made the volume yet"),
        ("1Gi", {"claim": claim(phase="Lost")}, "Failed", "ClaimLost", "PersistentVolume volume-1 is gone"),
        ("1Gi", {"claim": claim()}, "Ready", "StorageReady", "holds 1Gi"),
        ("1Gi", {"claim": claim(capacity="2Gi")}, "Ready", "StorageReady", "holds 2Gi"),
        ("2Gi", {"claim": claim(), **FIXED}, "Ready", "ResizeRefused", "set its allowVolumeExpansion to true"),
        ("2Gi", {"claim": claim()}, "Ready", "ResizeRefused", "there is no StorageClass rook-ceph-block"),
        ("2Gi", {"claim": claim(requested="2Gi"), **CLASS}, "Ready", "ResizePending", "grows from 1Gi to 2Gi"),
        (
            "2Gi",
            {"claim": claim(requested="2Gi", status={"conditions": [NEEDS_POD]})},
            "Ready",
            "ResizePending",
            "; start a pod",
        ),
    ],
)
def test_the_verdict_on_a_storage(size: str, more: Any, phase: str, reason: str, said: str) -> None:
    thought = verdict(seen_storage(a_storage(size=size), **more))
    assert (thought.phase.value, thought.reason.value) == (phase, reason)
    assert said in thought.message
    assert thought.ready is (reason == "StorageReady")


@pytest.mark.parametrize(
    ("more", "asked"),
    [({"claim": claim(), **CLASS}, True), ({"claim": claim(), **FIXED}, False), ({"claim": WAITING, **CLASS}, False)],
)
def test_growth_is_asked_for_where_it_can_be_granted(more: Any, asked: bool) -> None:
    assert may_grow(seen_storage(a_storage(size="2Gi"), **more)) is asked


def test_what_kubernetes_says_of_a_refused_growth_is_passed_on() -> None:
    thought = refused_growth(seen_storage(a_storage(size="2Gi"), claim=claim(), **CLASS), "exceeded quota")
    assert thought.message == "the volume cannot grow to 2Gi, its data is untouched: exceeded quota"


def told(storage: Any, **more: Any) -> GPUStorageStatus:
    seen = seen_storage(storage, **more)
    return status_of(seen, first_violation(STORAGE_RULES, seen) or verdict(seen), NOW)


def test_the_status_of_a_storage_tells_its_claim_its_capacity_and_its_holder() -> None:
    status = told(a_storage({"unit": "web"}), claim=claim(capacity="2Gi"))
    assert (status.claim_name, status.capacity, status.mounted_by) == ("data", "2Gi", "web")
    assert (status.phase, status.observed_generation, status.mountable) == ("Ready", 1, True)


@pytest.mark.parametrize(
    ("found", "claim_name"),
    [(None, None), (claim(phase="Lost"), "data"), (claim(capacity="9Gi", labels={}, annotations={}), None)],
)
def test_what_a_lost_claim_held_is_remembered(found: Any, claim_name: str | None) -> None:
    status = told(a_storage(status=HELD_DATA), claim=found)
    assert (status.capacity, status.claim_name, status.mountable) == ("1Gi", claim_name, False)


def test_a_claim_that_is_on_its_way_out_gives_no_capacity() -> None:
    assert told(a_storage(), claim=claim(**GOING)).capacity is None


@pytest.mark.parametrize(
    ("size", "more", "mountable"),
    [
        ("1Gi", {"claim": WAITING, **CLASS}, False),
        ("1Gi", {"claim": WAITING, **LAZY}, True),
        ("2Gi", {"claim": claim(), **FIXED}, True),
        ("x", {"claim": claim()}, False),
    ],
)
def test_what_can_be_mounted(size: str, more: Any, mountable: bool) -> None:
    assert told(a_storage(size=size), **more).mountable is mountable
