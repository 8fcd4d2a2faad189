"""A request may name an object of an allowed namespace. Other requests get an error that says what to change."""

from typing import Any, cast

import pytest

from gpu_runtime.contract.errors import Invalid, NotFound, Unavailable
from gpu_runtime.kube.meta import KubeObject, ObjectMeta
from gpu_runtime.kube.store import Store
from gpu_runtime.runtime_api.http.paging import PagedQuery
from gpu_runtime.runtime_api.object_access import ObjectAccess

ALLOWED = ("runtime-instance", "batch")


class FakeInformer:
    """An informer that caches one object in each of three namespaces."""

    def __init__(self, has_synced: bool = True) -> None:
        self.has_synced = has_synced
        self.store: Store[KubeObject] = Store()
        for namespace in (*ALLOWED, "runtime-stock"):
            self.store.put(KubeObject(metadata=ObjectMeta(name="web", namespace=namespace)))


@pytest.fixture(params=["unit", "storage"])
def objects(request: pytest.FixtureRequest) -> ObjectAccess[Any]:
    missing = request.param + " {name} does not exist in namespace {namespace}"
    return ObjectAccess(cast(Any, None), cast(Any, None), request.param, missing, ALLOWED)


def test_object_is_in_the_first_allowed_namespace_by_default(objects: ObjectAccess[Any]) -> None:
    assert objects.key("", "web") == ("runtime-instance", "web")
    assert objects.key("batch", "web") == ("batch", "web")


def test_list_covers_all_allowed_namespaces_by_default() -> None:
    objects = ObjectAccess(cast(Any, None), cast(Any, FakeInformer()), "unit", "", ALLOWED)
    for namespace, listed in {"": ["batch", "runtime-instance"], "batch": ["batch"]}.items():
        found, _ = objects.list(namespace, PagedQuery(), lambda _: True)
        assert [each.metadata.namespace for each in found] == listed
    assert objects.list("", PagedQuery(), lambda _: False) == ([], None)


def test_list_from_an_incomplete_cache_is_unavailable() -> None:
    objects = ObjectAccess(cast(Any, None), cast(Any, FakeInformer(has_synced=False)), "unit", "", ALLOWED)
    with pytest.raises(Unavailable, match="the list of units is still loading; try again"):
        objects.list("", PagedQuery(), lambda _: True)


def test_namespace_must_be_allowed(objects: ObjectAccess[Any]) -> None:
    error = f"namespace: 'kube-system' is not allowed for {objects.noun}s; use runtime-instance or batch, or omit it"
    with pytest.raises(Invalid, match=error):
        objects.key("kube-system", "web")
    with pytest.raises(Invalid, match=error):
        objects.list("kube-system", PagedQuery(), lambda _: True)


def test_object_with_an_invalid_name_does_not_exist(objects: ObjectAccess[Any]) -> None:
    with pytest.raises(NotFound, match=f"{objects.noun} No Name does not exist in namespace batch"):
        objects.key("batch", "No Name")
