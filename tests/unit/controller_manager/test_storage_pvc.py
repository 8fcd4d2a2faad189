"""The PersistentVolumeClaim of a storage: its manifest, its owner, and the patches of an existing one."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.controller_manager.gpu_storage.children import (
    expansion_patch,
    is_pvc_of,
    metadata_patch,
    pvc_manifest,
)
from tests.unit.controller_manager.controller_objects import make_storage, pvc

STORAGE = "runtime.lokiwager.io/storage"
STORAGE_UID = "runtime.lokiwager.io/storage-uid"
MANAGED_BY = "app.kubernetes.io/managed-by"


def test_pvc_has_the_storage_name_and_no_owner_reference() -> None:
    assert pvc_manifest(make_storage(size="20Gi", storageClassName="fast")) == {
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
    ("labels", "annotations", "belongs"),
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
def test_pvc_is_owned_by_label_or_by_storage_uid(labels: Any, annotations: Any, belongs: bool) -> None:
    assert is_pvc_of(pvc(labels=labels, annotations=annotations), make_storage()) is belongs


def test_correct_pvc_needs_no_patch() -> None:
    plain = pvc()
    extended = pvc(labels=plain.metadata.labels | {"a": "b"}, annotations=plain.metadata.annotations | {"c": "d"})
    assert [metadata_patch(each, make_storage()) for each in (plain, extended)] == [None, None]


def test_pvc_patch_contains_only_differences() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
    live = pvc(labels={STORAGE: "data", "a": "b"}, ownerReferences=[owner])
    assert metadata_patch(live, make_storage()) == {
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
def test_pvc_request_only_grows(size: str, requested: str, grows: bool) -> None:
    patch = expansion_patch(pvc(requested=requested), make_storage(size=size))
    assert patch == ({"spec": {"resources": {"requests": {"storage": size}}}} if grows else None)


def test_pvc_without_a_request_is_resized() -> None:
    assert expansion_patch(msgspec.structs.replace(pvc(), spec=type(pvc().spec)()), make_storage())
