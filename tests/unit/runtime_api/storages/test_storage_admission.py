"""A bad request for a storage is refused by the paths of the caller's own document; one meaning is one request."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.storages.requests import CreateStorage, UpdateStorage
from gpu_runtime.runtime_api.storages.storage_admission import accepted, chosen, grown, identity, is_as_asked

NAMESPACES = Namespaces(units=("runtime-instance", "batch"))
GOOD = {"name": "model-cache", "namespace": "batch", "size": "20Gi", "storageClassName": "fast"}


def create(**changes: Any) -> CreateStorage:
    return msgspec.convert(GOOD | changes, CreateStorage)


def identity_of(**changes: Any) -> str:
    return identity(accepted(create(**changes), NAMESPACES))


def test_a_good_request_is_taken_as_it_is() -> None:
    assert accepted(create(), NAMESPACES) == create()


def test_what_is_left_out_is_what_the_configuration_says() -> None:
    request = accepted(msgspec.convert({"name": "data", "size": "1Gi"}, CreateStorage), NAMESPACES)
    assert (request.namespace, request.storage_class_name) == ("runtime-instance", "rook-ceph-block")
    assert accepted(request, NAMESPACES) == request


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
def test_what_is_wrong_is_named_by_its_path(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as refused:
        accepted(create(**changes), NAMESPACES)
    assert refused.value.message.startswith(said), refused.value.message
    assert len(refused.value.problems) == 1


def test_all_that_is_wrong_is_named_at_once() -> None:
    with pytest.raises(Invalid) as refused:
        accepted(create(name="", namespace="default", size="x", storageClassName=" "), NAMESPACES)
    assert [each.path for each in refused.value.problems] == ["name", "namespace", "size", "storageClassName"]


@pytest.mark.parametrize("size", ["20Gi", "20480Mi", "21474836480", "20971520Ki", "21474836480000m"])
def test_another_spelling_of_the_size_is_the_same_request(size: str) -> None:
    assert identity_of(size=size) == identity_of()


def test_the_defaults_written_out_are_the_same_request() -> None:
    written = {"namespace": "runtime-instance", "storageClassName": "rook-ceph-block"}
    assert identity_of(namespace="", storageClassName="") == identity_of(**written)


@pytest.mark.parametrize("other", [{"name": "b"}, {"namespace": ""}, {"size": "20G"}, {"storageClassName": ""}])
def test_whatever_differs_makes_another_request(other: dict[str, str]) -> None:
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
def test_a_storage_made_by_hand_is_as_asked_if_it_means_the_same(size: str, class_name: str, same: bool) -> None:
    spec = GPUStorageSpec(size=size, storage_class_name=class_name)
    assert is_as_asked(spec, accepted(create(), NAMESPACES)) is same


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
def test_a_storage_grows_to_what_is_asked_and_the_same_in_other_words_is_no_change(
    now: str, asked: str, after: str
) -> None:
    spec = GPUStorageSpec(size=now, storage_class_name="fast")
    assert grown(spec, UpdateStorage(size=asked)) == msgspec.structs.replace(spec, size=after)


@pytest.mark.parametrize("size", ["19Gi", "20G", "1", "", "many", "0", "-40Gi"])
def test_a_storage_never_shrinks(size: str) -> None:
    with pytest.raises(Invalid, match=r"^size: "):
        grown(GPUStorageSpec(size="20Gi"), UpdateStorage(size=size))


def test_the_namespace_is_the_first_one_or_an_allowed_one() -> None:
    assert (chosen("", NAMESPACES), chosen("batch", NAMESPACES)) == ("runtime-instance", "batch")
    with pytest.raises(Invalid, match="namespace: 'kube-system' holds no storages here; use runtime-instance or batch"):
        chosen("kube-system", NAMESPACES)
