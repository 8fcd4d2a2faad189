"""A bad request for a storage is refused by the paths of the caller's own document; one meaning is one request."""

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
    resolve_namespace,
    spec_matches_request,
    storage_request_hash,
)

NAMESPACES = APINamespaceSettings(units=("runtime-instance", "batch"))
GOOD = {"name": "model-cache", "namespace": "batch", "size": "20Gi", "storageClassName": "fast"}


def create(**changes: Any) -> CreateStorage:
    return msgspec.convert(GOOD | changes, CreateStorage)


def identity_of(**changes: Any) -> str:
    return storage_request_hash(admit_storage(create(**changes), NAMESPACES))


def test_valid_storage_request_is_unchanged() -> None:
    assert admit_storage(create(), NAMESPACES) == create()


def test_omitted_storage_fields_have_configured_defaults() -> None:
    request = admit_storage(msgspec.convert({"name": "data", "size": "1Gi"}, CreateStorage), NAMESPACES)
    assert (request.namespace, request.storage_class_name) == ("runtime-instance", "rook-ceph-block")
    assert admit_storage(request, NAMESPACES) == request


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no name": ({"name": ""}, "name: is required"),
    "a name that no claim can carry": ({"name": "Data"}, "name: 'Data' is not a name"),
    "a name that is too long": ({"name": "a" * 64}, "name: "),
    "another namespace": ({"namespace": "default"}, "namespace: 'default' holds no storages here; use "),
    "stock's namespace": ({"namespace": "runtime-stock"}, "namespace: 'runtime-stock' holds no storages here"),
    "no size": ({"size": ""}, "size: is required; write for example 20Gi"),
    "a size that is none": ({"size": "many"}, "size: "),
    "nothing": ({"size": "0"}, "size: "),
    "less than nothing": ({"size": "-1Gi"}, "size: "),
    "a part of a byte": ({"size": "100m"}, "size: "),
    "more than any volume": ({"size": "100000Ei"}, "size: "),
    "a class with a space": ({"storageClassName": "a b"}, "storageClassName: 'a b' is not the name of a StorageClass"),
    "a class that is too long": ({"storageClassName": "a" * 254}, "storageClassName: "),
}


@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_invalid_storage_field_is_reported_by_path(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as refused:
        admit_storage(create(**changes), NAMESPACES)
    assert refused.value.message.startswith(said), refused.value.message
    assert len(refused.value.errors) == 1


def test_all_invalid_storage_fields_are_reported_together() -> None:
    with pytest.raises(Invalid) as refused:
        admit_storage(create(name="", namespace="default", size="x", storageClassName=" "), NAMESPACES)
    assert [each.path for each in refused.value.errors] == ["name", "namespace", "size", "storageClassName"]


@pytest.mark.parametrize("size", ["20Gi", "20480Mi", "21474836480", "20971520Ki", "21474836480000m"])
def test_equal_sizes_are_the_same_request(size: str) -> None:
    assert identity_of(size=size) == identity_of()


def test_the_defaults_written_out_are_the_same_request() -> None:
    written = {"namespace": "runtime-instance", "storageClassName": "rook-ceph-block"}
    assert identity_of(namespace="", storageClassName="") == identity_of(**written)


@pytest.mark.parametrize("other", [{"name": "b"}, {"namespace": ""}, {"size": "20G"}, {"storageClassName": ""}])
def test_different_storage_requests_are_different_requests(other: dict[str, str]) -> None:
    assert identity_of(**other) != identity_of()


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
    ("now", "asked", "after"),
    [
        ("20Gi", "40Gi", "40Gi"),
        ("20Gi", "40960Mi", "40Gi"),
        ("20Gi", "20Gi", "20Gi"),
        ("20480Mi", "20Gi", "20480Mi"),
        ("20Gi", "21474836480", "20Gi"),
        ("many", "1Gi", "1Gi"),
    ],
)
def test_storage_grows_and_an_equal_size_is_no_change(now: str, asked: str, after: str) -> None:
    spec = GPUStorageSpec(size=now, storage_class_name="fast")
    assert apply_resize(spec, UpdateStorage(size=asked)) == msgspec.structs.replace(spec, size=after)


@pytest.mark.parametrize("size", ["19Gi", "20G", "1", "", "many", "0", "-40Gi"])
def test_a_storage_never_shrinks(size: str) -> None:
    with pytest.raises(Invalid, match=r"^size: "):
        apply_resize(GPUStorageSpec(size="20Gi"), UpdateStorage(size=size))


def test_the_namespace_is_the_first_one_or_an_allowed_one() -> None:
    assert (resolve_namespace("", NAMESPACES), resolve_namespace("batch", NAMESPACES)) == ("runtime-instance", "batch")
    with pytest.raises(Invalid, match="namespace: 'kube-system' holds no storages here; use runtime-instance or batch"):
        resolve_namespace("kube-system", NAMESPACES)
