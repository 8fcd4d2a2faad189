"""Rules of units: the first violated rule is reported, in the order of the rules."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from tests.unit.controller_manager.controller_objects import (
    deployment,
    make_storage,
    observed_unit,
    pod,
    storage_in_phase,
    unit,
)

MOUNTS = [{"name": "data", "mountPath": "/data"}]
READY_AND_ATTACHED = {"data": storage_in_phase("Ready", "web")}
MISSING = "GPUStorage data does not exist in this namespace: create it, or remove it from spec.storageMounts"


def attached_to(unit: str, storage: str = "data") -> str:
    return (
        f"GPUStorage {storage} is attached to unit {unit}: delete that unit, or remove the storage from"
        " spec.storageMounts of that unit"
    )


def violation(unit: Any, **fields: Any) -> tuple[str, str, bool] | None:
    blocked = first_violation(UNIT_RULES, observed_unit(unit, **fields))
    return (blocked.reason.value, blocked.message, blocked.failed) if blocked else None


@pytest.mark.parametrize(
    ("storages", "reason", "message", "failed"),
    [
        ({}, "StorageMountInvalid", MISSING, True),
        ({"data": storage_in_phase()}, "StorageNotReady", "GPUStorage data is not attached to this unit yet", False),
        (
            {"data": storage_in_phase("Ready", "b")},
            "StorageMountInvalid",
            attached_to("b"),
            True,
        ),
        ({"data": storage_in_phase("Pending", "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
        ({"data": storage_in_phase(None, "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
        ({"data": storage_in_phase("Failed", "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
    ],
)
def test_unit_waits_for_its_storage(storages: Any, reason: str, message: str, failed: bool) -> None:
    assert violation(unit(storageMounts=MOUNTS), storages=storages) == (reason, message, failed)


WAITS_FOR_FIRST_CONSUMER = {
    "phase": "Pending",
    "conditions": [{"type": "Ready", "status": "False", "reason": "WaitForFirstConsumer"}],
}
PENDING_WITH_MESSAGE = {
    "phase": "Pending",
    "conditions": [{"type": "Ready", "status": "False", "reason": "ClaimPending", "message": "no class"}],
}
ATTACHED = {"unit": "web"}


def test_storage_attached_to_another_unit_is_reported_first() -> None:
    mounts = [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]
    found = violation(
        unit(storageMounts=mounts), storages={"a": storage_in_phase("Ready"), "b": storage_in_phase("Ready", "other")}
    )
    assert found == ("StorageMountInvalid", attached_to("other", storage="b"), True)


def test_volume_that_waits_for_its_first_consumer_can_be_mounted() -> None:
    assert (
        violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(ATTACHED, WAITS_FOR_FIRST_CONSUMER)})
        is None
    )


def test_reason_of_an_unready_storage_is_reported() -> None:
    found = violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(ATTACHED, PENDING_WITH_MESSAGE)})
    assert found == ("StorageNotReady", "GPUStorage data is not Ready yet: no class", False)


def test_terminating_storage_stays_attached_but_rejects_new_units() -> None:
    terminating: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "status": {"phase": "Ready"}}
    found = violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(**terminating)})
    assert found == ("StorageMountInvalid", "GPUStorage data is being deleted: remove it from spec.storageMounts", True)
    assert violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(ATTACHED, **terminating)}) is None


OF_THIS_UNIT = {Label.UNIT: "web", Label.UNIT_UID: "uid-of-web"}
OF_PREDECESSOR = {Label.UNIT: "web", Label.UNIT_UID: "earlier"}
OF_OTHER_UNIT = {Label.UNIT: "b", Label.UNIT_UID: "other"}


@pytest.mark.parametrize(
    ("labels", "has_deployment", "waits"),
    [
        (OF_THIS_UNIT, False, False),
        (OF_THIS_UNIT, True, False),
        (OF_PREDECESSOR, False, True),
        (
            OF_PREDECESSOR,
            True,
            False,
        ),  # the unit adopts the Deployment, which terminates this pod before it creates the next one
        (OF_OTHER_UNIT, False, True),
        (OF_OTHER_UNIT, True, True),
        ({}, True, True),
    ],
)
def test_unit_waits_for_pods_of_other_units_that_mount_its_storage(
    labels: Any, has_deployment: bool, waits: bool
) -> None:
    fields = {"deployment": deployment()} if has_deployment else {}
    pods = {"data": (pod("p", labels=labels),)}
    found = violation(unit(storageMounts=MOUNTS), storages=READY_AND_ATTACHED, mounting_pods=pods, **fields)
    message = "GPUStorage data is still mounted by pod p: waiting for its termination"
    assert found == (("StorageNotReady", message, False) if waits else None)


def test_unreadable_pods_block_a_new_unit_but_not_an_existing_one() -> None:
    unreadable = {"storages": READY_AND_ATTACHED, "pod_cache_error": "forbidden"}
    found = violation(unit(storageMounts=MOUNTS), **unreadable)
    assert found
    assert found[0] == "StorageNotReady"
    assert found[1] == "cannot check whether another pod mounts a storage of this unit: forbidden"
    assert violation(unit(storageMounts=MOUNTS), deployment=deployment(), **unreadable) is None
    assert violation(unit(storageMounts=MOUNTS, running=False), **unreadable) is None


def test_stopped_unit_waits_for_no_storage() -> None:
    assert violation(unit(storageMounts=MOUNTS, running=False)) is None


def test_unit_with_its_own_ready_storage_violates_no_rule() -> None:
    assert violation(unit(storageMounts=MOUNTS), storages=READY_AND_ATTACHED) is None


def test_invalid_spec_is_the_first_rule() -> None:
    found = violation(unit(memory="much", storageMounts=MOUNTS))
    assert found
    assert found[0] == "InvalidSpec"
    assert found[1].startswith("spec.memory: 'much' is not a quantity")


def test_all_spec_errors_are_reported() -> None:
    found = violation(unit(image="", memory="-1"))
    assert found
    assert found[1].count("; ") >= 1
    assert "spec.image" in found[1]
    assert "spec.memory" in found[1]


def test_unit_without_stock_ignores_unreadable_pods() -> None:
    assert violation(unit(), pod_cache_error="forbidden") is None
