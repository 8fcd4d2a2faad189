"""Invalid storage requests are rejected by field path, and equivalent requests have the same hash."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage, UpdateStorage
from gpu_runtime.runtime_api.storages.storage_admission import (
    admit_storage,
    apply_resize,
    spec_matches_request,
    storage_request_hash,
)

NAMESPACES = APINamespaceSettings(units=("runtime-instance", "batch"))
VALID_REQUEST = {"name": "model-cache", "namespace": "batch", "size": "20Gi", "storageClassName": "fast"}


def create(**changes: Any) -> CreateStorage:
    return msgspec.convert(VALID_REQUEST | changes, CreateStorage)


def hash_of(**changes: Any) -> str:
    return storage_request_hash(admit_storage(create(**changes), NAMESPACES))


def test_valid_storage_request_is_unchanged() -> None:
    assert admit_storage(create(), NAMESPACES) == create()


def test_omitted_storage_fields_have_configured_defaults() -> None:
    request = admit_storage(msgspec.convert({"name": "data", "size": "1Gi"}, CreateStorage), NAMESPACES)
    assert (request.namespace, request.storage_class_name) == ("runtime-instance", "rook-ceph-block")
    assert admit_storage(request, NAMESPACES) == request


INVALID_CREATES: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "name: is required"),
    "invalid name": ({"name": "Data"}, "name: 'Data' is not a name"),
    "too long name": ({"name": "a" * 64}, "name: "),
    "namespace that is not allowed": (
        {"namespace": "default"},
        "namespace: 'default' is not allowed for storages; use ",
    ),
    "stock namespace": (
        {"namespace": "runtime-stock"},
        "namespace: 'runtime-stock' is not allowed for storages",
    ),
    "no size": ({"size": ""}, "size: is required; write for example 20Gi"),
    "invalid size": ({"size": "many"}, "size: "),
    "zero size": ({"size": "0"}, "size: "),
    "negative size": ({"size": "-1Gi"}, "size: "),
    "fraction of a byte": ({"size": "100m"}, "size: "),
    "too large size": ({"size": "100000Ei"}, "size: "),
    "StorageClass with a space": (
        {"storageClassName": "a b"},
        "storageClassName: 'a b' is not the name of a StorageClass",
    ),
    "too long StorageClass": ({"storageClassName": "a" * 254}, "storageClassName: "),
}


@pytest.mark.parametrize(("changes", "message"), INVALID_CREATES.values(), ids=INVALID_CREATES)
def test_invalid_storage_field_is_reported_by_path(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        admit_storage(create(**changes), NAMESPACES)
    assert raised.value.message.startswith(message), raised.value.message
    assert len(raised.value.errors) == 1


def test_all_invalid_storage_fields_are_reported_together() -> None:
    with pytest.raises(Invalid) as raised:
        admit_storage(create(name="", namespace="default", size="x", storageClassName=" "), NAMESPACES)
    assert [each.path for each in raised.value.errors] == ["name", "namespace", "size", "storageClassName"]


@pytest.mark.parametrize("size", ["20Gi", "20480Mi", "21474836480", "20971520Ki", "21474836480000m"])
def test_equal_sizes_are_the_same_request(size: str) -> None:
    assert hash_of(size=size) == hash_of()


def test_explicit_defaults_are_the_same_request() -> None:
    defaults = {"namespace": "runtime-instance", "storageClassName": "rook-ceph-block"}
    assert hash_of(namespace="", storageClassName="") == hash_of(**defaults)


@pytest.mark.parametrize("other", [{"name": "b"}, {"namespace": ""}, {"size": "20G"}, {"storageClassName": ""}])
def test_different_storage_requests_are_different_requests(other: dict[str, str]) -> None:
    assert hash_of(**other) != hash_of()


@pytest.mark.parametrize(
    ("size", "class_name", "same"),
    [
        ("20Gi", "fast", True),
        ("20480Mi", "fast", True),
        ("21474836480", "fast", True),
        ("20G", "fast", False),
        ("many", "fast", False),
        ("20Gi", "slow", False),
    ],
)
def test_storage_created_with_kubectl_matches_an_equivalent_request(size: str, class_name: str, same: bool) -> None:
    spec = GPUStorageSpec(size=size, storage_class_name=class_name)
    assert spec_matches_request(spec, admit_storage(create(), NAMESPACES)) is same


@pytest.mark.parametrize(
    ("current", "requested", "expected"),
    [
        ("20Gi", "40Gi", "40Gi"),
        ("20Gi", "40960Mi", "40Gi"),
        ("20Gi", "20Gi", "20Gi"),
        ("20480Mi", "20Gi", "20480Mi"),
        ("20Gi", "21474836480", "20Gi"),
        ("many", "1Gi", "1Gi"),
    ],
)
def test_storage_grows_and_an_equal_size_is_no_change(current: str, requested: str, expected: str) -> None:
    spec = GPUStorageSpec(size=current, storage_class_name="fast")
    assert apply_resize(spec, UpdateStorage(size=requested)) == msgspec.structs.replace(spec, size=expected)


@pytest.mark.parametrize("size", ["19Gi", "20G", "1", "", "many", "0", "-40Gi"])
def test_smaller_or_invalid_size_is_rejected(size: str) -> None:
    with pytest.raises(Invalid, match=r"^size: "):
        apply_resize(GPUStorageSpec(size="20Gi"), UpdateStorage(size=size))
