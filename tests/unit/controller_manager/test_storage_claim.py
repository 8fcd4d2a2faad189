"""The claim of a storage: what it is, whose it is, and what may be changed about it."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.controller_manager.gpu_storage.children import claim as wanted
from gpu_runtime.controller_manager.gpu_storage.children import corrected, growth, is_ours
from tests.unit.controller_manager.objects import a_storage, claim

STORAGE = "runtime.lokiwager.io/storage"
STORAGE_UID = "runtime.lokiwager.io/storage-uid"
MANAGED_BY = "app.kubernetes.io/managed-by"


def test_a_claim_carries_the_storages_name_and_no_owner() -> None:
    assert wanted(a_storage(size="20Gi", storageClassName="fast")) == {
        "metadata": {
            "namespace": "runtime-instance",
            "name": "data",
            "labels": {MANAGED_BY: "gpu-runtime", STORAGE: "data"},
            "annotations": {STORAGE_UID: "uid-of-data"},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "resources": {"requests": {"storage": "20Gi"}},
        },
    }


@pytest.mark.parametrize(
    ("labels", "annotations", "ours"),
    [
        ({STORAGE: "data"}, {}, True),
        ({STORAGE: "data"}, {STORAGE_UID: "before-the-restore"}, True),
        ({}, {STORAGE_UID: "uid-of-data"}, True),
        ({STORAGE: "other"}, {STORAGE_UID: "uid-of-data"}, True),
        ({STORAGE: "other"}, {}, False),
        ({MANAGED_BY: "gpu-runtime"}, {}, False),
        ({}, {STORAGE_UID: "other"}, False),
    ],
)
def test_a_claim_is_known_by_its_label_or_by_its_storages_uid(labels: Any, annotations: Any, ours: bool) -> None:
    assert is_ours(claim(labels=labels, annotations=annotations), a_storage()) is ours


def test_a_claim_as_it_should_be_is_left_alone() -> None:
    kept = claim()
    more = claim(labels=kept.metadata.labels | {"a": "b"}, annotations=kept.metadata.annotations | {"c": "d"})
    assert [corrected(each, a_storage()) for each in (kept, more)] == [None, None]


def test_only_what_is_wrong_about_a_claim_is_written() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    found = claim(labels={STORAGE: "data", "a": "b"}, ownerReferences=[owner])
    assert corrected(found, a_storage()) == {
        "metadata": {"labels": {MANAGED_BY: "gpu-runtime"}, "ownerReferences": None}
    }


@pytest.mark.parametrize(
    ("size", "requested", "grows"),
    [
        ("2Gi", "1Gi", True),
        ("1024Mi", "1Gi", False),
        ("1Gi", "2Gi", False),
        ("1025Mi", "1Gi", True),
        ("1Gi", "1G", True),
    ],
)
def test_a_claim_only_grows(size: str, requested: str, grows: bool) -> None:
    change = growth(claim(requested=requested), a_storage(size=size))
    assert change == ({"spec": {"resources": {"requests": {"storage": size}}}} if grows else None)


def test_a_claim_that_asks_for_nothing_is_less_than_anything() -> None:
    assert growth(msgspec.structs.replace(claim(), spec=type(claim().spec)()), a_storage())
