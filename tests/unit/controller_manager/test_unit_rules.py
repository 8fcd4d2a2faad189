"""What must hold before a unit is built: the first broken rule is told, in the order of the rules."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.well_known import Annotation, Label
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
FROM_STOCK = {Annotation.SOURCE_STOCK_UID: "s", Annotation.SOURCE_STOCK_NAME: "stock"}
READY_AND_OURS = {"data": storage_in_phase("Ready", "web")}


def violation(found: Any, **more: Any) -> tuple[str, str, bool] | None:
    blocked = first_violation(UNIT_RULES, observed_unit(found, **more))
    return (blocked.reason.value, blocked.message, blocked.failed) if blocked else None


@pytest.mark.parametrize(
    ("storages", "reason", "message", "failed"),
    [
        ({}, "StorageMountInvalid", "there is no GPUStorage data in this namespace", True),
        ({"data": storage_in_phase()}, "StorageNotReady", "GPUStorage data is not attached to this unit yet", False),
        (
            {"data": storage_in_phase("Ready", "b")},
            "StorageMountInvalid",
            "GPUStorage data is attached to unit b",
            True,
        ),
        ({"data": storage_in_phase("Pending", "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
        ({"data": storage_in_phase(None, "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
        ({"data": storage_in_phase("Failed", "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
    ],
)
def test_a_unit_waits_for_its_storage(storages: Any, reason: str, message: str, failed: bool) -> None:
    assert violation(unit(storageMounts=MOUNTS), storages=storages) == (reason, message, failed)


LAZY = {"phase": "Pending", "conditions": [{"type": "Ready", "status": "False", "reason": "WaitForFirstConsumer"}]}
EXPLAINED = {
    "phase": "Pending",
    "conditions": [{"type": "Ready", "status": "False", "reason": "ClaimPending", "message": "no class"}],
}
HELD = {"unit": "web"}


def test_storage_attached_to_another_unit_is_reported_first() -> None:
    mounts = [{"name": "a", "mountPath": "/a"}, {"name": "b", "mountPath": "/b"}]
    found = violation(
        unit(storageMounts=mounts), storages={"a": storage_in_phase("Ready"), "b": storage_in_phase("Ready", "other")}
    )
    assert found == ("StorageMountInvalid", "GPUStorage b is attached to unit other", True)


def test_a_volume_that_waits_for_its_first_unit_can_be_mounted() -> None:
    assert violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(HELD, LAZY)}) is None


def test_reason_of_an_unready_storage_is_reported() -> None:
    found = violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(HELD, EXPLAINED)})
    assert found == ("StorageNotReady", "GPUStorage data is not Ready yet: no class", False)


def test_terminating_storage_stays_attached_but_rejects_new_units() -> None:
    going: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "status": {"phase": "Ready"}}
    found = violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(**going)})
    assert found == ("StorageMountInvalid", "GPUStorage data is being deleted", True)
    assert violation(unit(storageMounts=MOUNTS), storages={"data": make_storage(HELD, **going)}) is None


OF_THIS_UNIT = {Label.UNIT: "web", Label.UNIT_UID: "uid-of-web"}
OF_A_NAMESAKE = {Label.UNIT: "web", Label.UNIT_UID: "earlier"}
OF_ANOTHER = {Label.UNIT: "b", Label.UNIT_UID: "other"}


@pytest.mark.parametrize(
    ("labels", "built", "waits"),
    [
        (OF_THIS_UNIT, False, False),
        (OF_THIS_UNIT, True, False),
        (OF_A_NAMESAKE, False, True),
        (OF_A_NAMESAKE, True, False),  # the Deployment is taken over, and ends the pod before it makes the next
        (OF_ANOTHER, False, True),
        (OF_ANOTHER, True, True),
        ({}, True, True),
    ],
)
def test_unit_waits_for_pods_of_other_units_that_mount_its_storage(labels: Any, built: bool, waits: bool) -> None:
    more = {"deployment": deployment()} if built else {}
    mounting = {"data": (pod("p", labels=labels),)}
    found = violation(unit(storageMounts=MOUNTS), storages=READY_AND_OURS, mounting=mounting, **more)
    assert found == (("StorageNotReady", "GPUStorage data is still mounted by pod p", False) if waits else None)


def test_unreadable_pods_block_a_new_unit_but_not_an_existing_one() -> None:
    blind = {"storages": READY_AND_OURS, "pods_trouble": "forbidden"}
    found = violation(unit(storageMounts=MOUNTS), **blind)
    assert found
    assert (found[0], "cannot be seen: forbidden" in found[1]) == ("StorageNotReady", True)
    assert violation(unit(storageMounts=MOUNTS), deployment=deployment(), **blind) is None
    assert violation(unit(storageMounts=MOUNTS, running=False), **blind) is None


def test_a_stopped_unit_waits_for_no_storage() -> None:
    assert violation(unit(storageMounts=MOUNTS, running=False)) is None


def test_unit_with_its_own_ready_storage_violates_no_rule() -> None:
    assert violation(unit(storageMounts=MOUNTS), storages=READY_AND_OURS) is None


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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"stock_remains": ("Pod runtime-stock/p",)}, "the GPUs are still with Pod runtime-stock/p"),
        ({"pods_trouble": "forbidden"}, "whether the stock's pod is gone cannot be seen: forbidden"),
        ({}, None),
        ({"stock_remains": ("Pod runtime-stock/p",), "deployment": deployment()}, None),
        ({"pods_trouble": "forbidden", "deployment": deployment()}, None),
    ],
)
def test_unit_waits_for_the_deletion_of_its_stock_unit(more: Any, message: str | None) -> None:
    found = violation(unit(annotations=FROM_STOCK), **more)
    assert found == (("StockReleasing", message, False) if message else None)


def test_unit_without_stock_ignores_unreadable_pods() -> None:
    assert violation(unit(), pods_trouble="forbidden") is None
