"""Requests with the same meaning have the same hash, and requests with different meanings have different hashes."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.operation import OperationType
from gpu_runtime.contract.request_hash import canonical_request, request_hash
from gpu_runtime.contract.validation import normalize_storage, normalize_unit


def canonical(**spec: Any) -> str:
    unit = msgspec.convert({"specName": "g1.1", "image": "python:3.12"} | spec, GPUUnitSpec)
    return canonical_request(normalize_unit(unit))


PLAIN = canonical()
PORT = {"name": "http", "port": 8080}

SAME = {
    "explicit defaults": ({"gpu": 0, "running": True, "template": {}, "storageMounts": []}, {}),
    "explicit default of a nested field": (
        {"serverless": {"idleTimeoutSeconds": 300, "framework": {"invokePath": "/invoke"}}},
        {"serverless": {}},
    ),
    "another spelling of the memory": ({"memory": "1024Mi"}, {"memory": "1Gi"}),
    "explicit protocol": ({"template": {"ports": [PORT | {"protocol": "tcp"}]}}, {"template": {"ports": [PORT]}}),
    "another spelling of the path": (
        {"storageMounts": [{"name": "a", "mountPath": "//data//x/"}]},
        {"storageMounts": [{"name": "a", "mountPath": "/data/x"}]},
    ),
}

DIFFERENT = {
    "another image": {"image": "python:3.13"},
    "other memory": {"memory": "1G"},
    "stopped": {"running": False},
    "an empty argument": {"template": {"args": [""]}},
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_equivalent_requests_have_one_canonical_form(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert canonical(**one) == canonical(**other)


@pytest.mark.parametrize("change", DIFFERENT.values(), ids=DIFFERENT)
def test_different_requests_have_different_canonical_forms(change: dict[str, Any]) -> None:
    assert canonical(**change) != PLAIN


def test_order_of_lists_is_part_of_the_canonical_form() -> None:
    assert canonical(template={"args": ["a", "b"]}) != canonical(template={"args": ["b", "a"]})


def test_canonical_form_decodes_to_the_request() -> None:
    assert PLAIN == '{"image":"python:3.12","specName":"g1.1"}'
    assert msgspec.json.decode(PLAIN, type=GPUUnitSpec).image == "python:3.12"


def test_the_hash_never_changes_between_versions() -> None:
    """Recorded operations outlive an upgrade, so the expected value of this test must never change."""
    expected = "44f59c9856bd614e4a011d5cceffc6eb8eb2b1f7c0c9c863acc55fd7d282bc73"
    assert request_hash(OperationType.CREATE_UNIT, PLAIN) == expected
    assert request_hash(OperationType.SEED_STOCK, PLAIN) != request_hash(OperationType.CREATE_UNIT, PLAIN)


def test_storage_without_class_equals_storage_with_the_default_class() -> None:
    one, other = GPUStorageSpec(size="1Gi", storage_class_name=""), GPUStorageSpec(size="1024Mi")
    assert canonical_request(normalize_storage(one)) == canonical_request(normalize_storage(other))
