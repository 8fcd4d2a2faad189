"""A merge patch says what differs and nothing else; what is to go away is said, since what is left out stays."""

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
    "nothing": ({}, {}, {}),
    "what is said and what is the default": ({}, {"running": True, "template": {"command": []}}, {}),
    "another image": ({}, {"image": "other"}, {"image": "other"}),
    "stop": ({}, {"running": False}, {"running": False}),
    "start": ({"running": False}, {"running": True}, {"running": True}),
    "a command that goes": (
        {"template": {"command": ["python"], "args": ["-V"]}},
        {"template": {"args": ["-V"]}},
        {"template": {"command": None}},
    ),
    "a template that goes": (
        {"template": {"command": ["python"], "ports": [HTTP]}},
        {"template": {}},
        {"template": {"command": None, "ports": None}},
    ),
    "one port more": (
        {"template": {"command": ["python"], "ports": [HTTP]}},
        {"template": {"command": ["python"], "ports": [HTTP, {"name": "grpc", "port": 9}]}},
        {"template": {"ports": [HTTP, {"name": "grpc", "port": 9}]}},
    ),
    "a value that is emptied": (
        {"template": {"envs": [{"name": "A", "value": "1"}]}},
        {"template": {"envs": [{"name": "A"}]}},
        {"template": {"envs": [{"name": "A"}]}},
    ),
    "access that comes": ({}, {"access": {"primaryPort": "http"}}, {"access": {"primaryPort": "http"}}),
    "a primary port that goes": (
        {"access": {"primaryPort": "http", "scheme": "https"}},
        {"access": {"scheme": "https"}},
        {"access": {"primaryPort": None}},
    ),
    "a scheme that is the default again": (
        {"access": {"scheme": "https"}},
        {"access": {}},
        {"access": {"scheme": "http"}},
    ),
    "mounts that go": ({"storageMounts": [{"name": "x", "mountPath": "/x"}]}, {}, {"storageMounts": None}),
    "a function that scales less and is called elsewhere": (
        {"serverless": FUNCTION},
        {"serverless": {"enabled": True, "requestID": "f"}},
        {"serverless": {"maxWorkers": 1, "framework": {"invokePath": "/invoke"}}},
    ),
    "a plain unit again": ({"serverless": FUNCTION}, {}, {"serverless": None}),
}


@pytest.mark.parametrize(("before", "after", "patch"), CASES.values(), ids=CASES)
def test_merge_patch_contains_only_differences(
    before: dict[str, Any], after: dict[str, Any], patch: dict[str, Any]
) -> None:
    said = msgspec.json.encode(create_merge_patch(spec(**before), spec(**after)))
    assert msgspec.json.decode(said) == patch


@pytest.mark.parametrize(("before", "after", "patch"), CASES.values(), ids=CASES)
def test_merge_patch_transforms_one_spec_into_the_other(before: Any, after: Any, patch: dict[str, Any]) -> None:
    merged = merge(msgspec.to_builtins(spec(**before)), patch)
    assert msgspec.convert(merged, GPUUnitSpec) == spec(**after)


def merge(target: Any, patch: Any) -> Any:
    """As RFC 7386 has it."""
    if not isinstance(patch, dict):
        return patch
    kept = dict(target) if isinstance(target, dict) else {}
    changed = {name: merge(kept.get(name), value) for name, value in patch.items() if value is not None}
    return {name: value for name, value in kept.items() if name not in patch} | changed
