"""A merge patch contains only the fields that differ, and null for each removed field."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.runtime_api.units.merge_patch import create_merge_patch

HTTP = {"name": "http", "port": 8080}
FUNCTION = {"enabled": True, "requestID": "f", "maxWorkers": 4, "framework": {"invokePath": "/run"}}


def spec(**fields: Any) -> GPUUnitSpec:
    return msgspec.convert({"specName": "g1.1", "image": "python"} | fields, GPUUnitSpec)


Case = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
CASES: dict[str, Case] = {
    "no change": ({}, {}, {}),
    "explicit defaults": ({}, {"running": True, "template": {"command": []}}, {}),
    "changed image": ({}, {"image": "other"}, {"image": "other"}),
    "stop": ({}, {"running": False}, {"running": False}),
    "start": ({"running": False}, {"running": True}, {"running": True}),
    "removed command": (
        {"template": {"command": ["python"], "args": ["-V"]}},
        {"template": {"args": ["-V"]}},
        {"template": {"command": None}},
    ),
    "emptied template": (
        {"template": {"command": ["python"], "ports": [HTTP]}},
        {"template": {}},
        {"template": {"command": None, "ports": None}},
    ),
    "added port": (
        {"template": {"command": ["python"], "ports": [HTTP]}},
        {"template": {"command": ["python"], "ports": [HTTP, {"name": "grpc", "port": 9}]}},
        {"template": {"ports": [HTTP, {"name": "grpc", "port": 9}]}},
    ),
    "emptied environment variable": (
        {"template": {"envs": [{"name": "A", "value": "1"}]}},
        {"template": {"envs": [{"name": "A"}]}},
        {"template": {"envs": [{"name": "A"}]}},
    ),
    "added access": ({}, {"access": {"primaryPort": "http"}}, {"access": {"primaryPort": "http"}}),
    "removed primary port": (
        {"access": {"primaryPort": "http", "scheme": "https"}},
        {"access": {"scheme": "https"}},
        {"access": {"primaryPort": None}},
    ),
    "scheme reset to the default": (
        {"access": {"scheme": "https"}},
        {"access": {}},
        {"access": {"scheme": "http"}},
    ),
    "removed mounts": ({"storageMounts": [{"name": "x", "mountPath": "/x"}]}, {}, {"storageMounts": None}),
    "function with fewer workers and another path": (
        {"serverless": FUNCTION},
        {"serverless": {"enabled": True, "requestID": "f"}},
        {"serverless": {"maxWorkers": 1, "framework": {"invokePath": "/invoke"}}},
    ),
    "function that becomes a plain unit": ({"serverless": FUNCTION}, {}, {"serverless": None}),
}


@pytest.mark.parametrize(("before", "after", "patch"), CASES.values(), ids=CASES)
def test_merge_patch_contains_only_differences(
    before: dict[str, Any], after: dict[str, Any], patch: dict[str, Any]
) -> None:
    encoded = msgspec.json.encode(create_merge_patch(spec(**before), spec(**after)))
    assert msgspec.json.decode(encoded) == patch


@pytest.mark.parametrize(("before", "after", "patch"), CASES.values(), ids=CASES)
def test_merge_patch_transforms_one_spec_into_the_other(before: Any, after: Any, patch: dict[str, Any]) -> None:
    merged = merge(msgspec.to_builtins(spec(**before)), patch)
    assert msgspec.convert(merged, GPUUnitSpec) == spec(**after)


def merge(target: Any, patch: Any) -> Any:
    """Apply a merge patch as RFC 7386 defines it."""
    if not isinstance(patch, dict):
        return patch
    fields = dict(target) if isinstance(target, dict) else {}
    changed = {name: merge(fields.get(name), value) for name, value in patch.items() if value is not None}
    return {name: value for name, value in fields.items() if name not in patch} | changed
