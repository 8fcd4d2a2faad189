"""What must hold before a unit is built: the first broken rule is told, in the order of the rules."""

from typing import Any

import pytest

from gpu_runtime.contract.crd.names import Annotation
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from tests.unit.controller_manager.objects import deployment, seen, storage, unit

MOUNTS = [{"name": "data", "mountPath": "/data"}]
FROM_STOCK = {Annotation.SOURCE_STOCK_UID: "s", Annotation.SOURCE_STOCK_NAME: "stock"}
READY_AND_OURS = {"data": storage("Ready", "web")}


def violation(found: Any, **more: Any) -> tuple[str, str, bool] | None:
    blocked = first_violation(UNIT_RULES, seen(found, **more))
    return (blocked.reason.value, blocked.message, blocked.failed) if blocked else None


@pytest.mark.parametrize(
    ("storages", "reason", "message", "failed"),
    [
        ({}, "StorageMountInvalid", "there is no GPUStorage data in this namespace", True),
        ({"data": storage()}, "StorageNotReady", "GPUStorage data is not attached to this unit yet", False),
        ({"data": storage("Ready", "b")}, "StorageMountInvalid", "GPUStorage data is attached to unit b", True),
        ({"data": storage("Pending", "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
        ({"data": storage(None, "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
        ({"data": storage("Failed", "web")}, "StorageNotReady", "GPUStorage data is not Ready yet", False),
    ],
)
def test_a_unit_waits_for_its_storage(storages: Any, reason: str, message: str, failed: bool) -> None:
    assert violation(unit(storageMounts=MOUNTS), storages=storages) == (reason, message, failed)


def test_a_stopped_unit_waits_for_no_storage() -> None:
    assert violation(unit(storageMounts=MOUNTS, running=False)) is None


def test_with_its_own_ready_storage_nothing_is_in_the_way() -> None:
    assert violation(unit(storageMounts=MOUNTS), storages=READY_AND_OURS) is None


def test_a_bad_spec_comes_before_everything_else() -> None:
    found = violation(unit(memory="much", storageMounts=MOUNTS))
    assert found
    assert found[0] == "InvalidSpec"
    assert found[1].startswith("spec.memory: 'much' is not a quantity")


def test_every_problem_of_a_spec_is_told() -> None:
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
def test_a_unit_waits_for_the_end_of_its_stock_before_it_is_built(more: Any, message: str | None) -> None:
    found = violation(unit(annotations=FROM_STOCK), **more)
    assert found == (("StockReleasing", message, False) if message else None)


def test_a_unit_without_stock_does_not_mind_what_cannot_be_seen() -> None:
    assert violation(unit(), pods_trouble="forbidden") is None
