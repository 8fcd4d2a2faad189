"""A request may name an object of an allowed namespace. Other requests get an error that says what to change."""

from typing import Any, cast

import pytest

from gpu_runtime.contract.errors import Invalid, NotFound
from gpu_runtime.runtime_api.object_access import ObjectAccess

ALLOWED = ("runtime-instance", "batch")


@pytest.fixture(params=["unit", "storage"])
def objects(request: pytest.FixtureRequest) -> ObjectAccess[Any]:
    missing = request.param + " {name} does not exist in namespace {namespace}"
    return ObjectAccess(cast(Any, None), cast(Any, None), request.param, missing, ALLOWED)


def test_object_is_in_the_first_allowed_namespace_by_default(objects: ObjectAccess[Any]) -> None:
    assert objects.key("", "web") == ("runtime-instance", "web")
    assert objects.key("batch", "web") == ("batch", "web")


def test_list_covers_all_allowed_namespaces_by_default(objects: ObjectAccess[Any]) -> None:
    assert objects.listed_namespaces("") == ALLOWED
    assert objects.listed_namespaces("batch") == ("batch",)


def test_namespace_must_be_allowed(objects: ObjectAccess[Any]) -> None:
    error = f"namespace: 'kube-system' is not allowed for {objects.noun}s; use runtime-instance or batch, or omit it"
    with pytest.raises(Invalid, match=error):
        objects.key("kube-system", "web")
    with pytest.raises(Invalid, match=error):
        objects.listed_namespaces("kube-system")


def test_object_with_an_invalid_name_does_not_exist(objects: ObjectAccess[Any]) -> None:
    with pytest.raises(NotFound, match=f"{objects.noun} No Name does not exist in namespace batch"):
        objects.key("batch", "No Name")
