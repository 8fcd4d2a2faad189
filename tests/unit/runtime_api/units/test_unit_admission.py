"""A bad request is refused with all that is wrong, by the paths of the caller's own document."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, apply_update, resolve_namespace

NAMESPACES = APINamespaceSettings(units=("runtime-instance", "batch"))
HTTP = {"ports": [{"name": "http", "port": 8080}]}
GOOD = {
    "operationID": "unit-1",
    "name": "web",
    "namespace": "batch",
    "specName": "g1.1",
    "stockNamespace": "runtime-stock",
    "image": "python:3.12",
    "template": {"command": ["python"], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]},
    "access": {"primaryPort": "http", "scheme": "http"},
    "storageMounts": [{"name": "data", "mountPath": "/data"}],
    "serverless": {"enabled": True, "requestID": "f"},
}
EXISTING = {
    "specName": "g1.1",
    "image": "python:3.12",
    "memory": "16Gi",
    "gpu": 1,
    "template": {"command": ["python"], "args": ["-V"], **HTTP},
    "access": {"primaryPort": "http"},
    "serverless": {"enabled": True, "requestID": "f"},
}


def create(**changes: Any) -> CreateUnit:
    return msgspec.convert(GOOD | changes, CreateUnit)


def without(*fields: str) -> CreateUnit:
    return msgspec.convert({name: value for name, value in GOOD.items() if name not in fields}, CreateUnit)


def existing(**changes: Any) -> GPUUnitSpec:
    return msgspec.convert(EXISTING | changes, GPUUnitSpec)


def update(**body: Any) -> UpdateUnit:
    return msgspec.convert(body, UpdateUnit)


def paths(refused: pytest.ExceptionInfo[Invalid]) -> list[str]:
    return [problem.path for problem in refused.value.errors]


def test_valid_unit_request_is_unchanged() -> None:
    assert admit_unit(create(), NAMESPACES) == create()


def test_omitted_unit_fields_have_configured_defaults() -> None:
    request = admit_unit(without("namespace", "stockNamespace"), NAMESPACES)
    assert (request.namespace, request.stock_namespace) == ("runtime-instance", "runtime-stock")


def test_equivalent_unit_requests_are_the_same_request() -> None:
    sloppy = create(
        image=" python:3.12 ",
        stockNamespace="",
        template={"command": ["python"], "ports": [{"name": "http", "port": 8080, "protocol": "tcp"}]},
        access={"primaryPort": "http", "scheme": "HTTP"},
        storageMounts=[{"name": "data", "mountPath": "//data/", "readOnly": False}],
    )
    assert admit_unit(sloppy, NAMESPACES) == admit_unit(create(), NAMESPACES)
    assert canonical_request(admit_unit(sloppy, NAMESPACES)) == canonical_request(admit_unit(create(), NAMESPACES))


def test_normalized_unit_request_is_stable() -> None:
    once = admit_unit(without("namespace", "stockNamespace", "access"), NAMESPACES)
    assert admit_unit(once, NAMESPACES) == once


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no operationID": ({"operationID": ""}, "operationID: is required; choose one per operation"),
    "no name": ({"name": ""}, "name: is required"),
    "a name that no Service can carry": ({"name": "Web"}, "name: 'Web' is not a name; "),
    "another namespace": (
        {"namespace": "kube-system"},
        "namespace: 'kube-system' holds no units here; use runtime-instance or batch, or leave it out",
    ),
    "the stock namespace": ({"namespace": "runtime-stock"}, "namespace: 'runtime-stock' holds no units here; "),
    "stock from elsewhere": (
        {"stockNamespace": "batch"},
        "stockNamespace: 'batch' holds no stock here; use runtime-stock, or leave it out",
    ),
    "no flavor": ({"specName": ""}, "specName: is required; "),
    "no image": ({"image": " "}, "image: is required; "),
    "a port that the template lacks": (
        {"access": {"primaryPort": "grpc"}},
        "access.primaryPort: 'grpc' names no port of the template (it has http)",
    ),
    "a scheme that is none": ({"access": {"scheme": "ftp"}}, "access.scheme: 'ftp' is not one of http, https"),
    "a port out of range": (
        {"template": {"ports": [{"name": "http", "port": 0}]}},
        "template.ports[0].port: 0 is not between 1 and 65535",
    ),
    "a variable twice": (
        {"template": HTTP | {"envs": [{"name": "A"}, {"name": "A"}]}},
        "template.envs[1].name: A is already set by template.envs[0]; ",
    ),
    "a relative mount": (
        {"storageMounts": [{"name": "x", "mountPath": "cache"}]},
        "storageMounts[0].mountPath: 'cache' is not absolute; begin with '/'",
    ),
    "a function without requestID": ({"serverless": {"enabled": True}}, "serverless.requestID: is required; "),
    "storage for many workers": (
        {"serverless": {"requestID": "f", "maxWorkers": 2}},
        "storageMounts: a storage is mounted by one unit at a time; ",
    ),
}


@pytest.mark.parametrize(("change", "message"), REFUSED.values(), ids=REFUSED)
def test_a_create_is_refused_with_path_and_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as refused:
        admit_unit(create(**change), NAMESPACES)
    assert len(refused.value.errors) == 1
    assert refused.value.message.startswith(message)


def test_all_invalid_unit_fields_are_reported_together() -> None:
    wrong = create(operationID="", name="", namespace="a", stockNamespace="b", specName="", image="")
    with pytest.raises(Invalid) as refused:
        admit_unit(wrong, NAMESPACES)
    assert paths(refused) == ["operationID", "name", "namespace", "stockNamespace", "specName", "image"]


CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "the image": ({"image": " python:3.13 "}, {"image": "python:3.13"}),
    "a template without command": ({"template": HTTP}, {"template": HTTP}),
    "a plain access": ({"access": {}}, {"access": {}}),
    "a mount": (
        {"storageMounts": [{"name": "data", "mountPath": "/data/"}]},
        {"storageMounts": [{"name": "data", "mountPath": "/data"}]},
    ),
    "a function that takes nothing for now": (
        {"serverless": {"requestID": "f"}},
        {"serverless": {"enabled": False, "requestID": "f"}},
    ),
    "what never changes, repeated": ({"specName": "g1.1", "memory": "16384Mi", "gpu": 1}, {}),
}


@pytest.mark.parametrize(("body", "changed"), CHANGES.values(), ids=CHANGES)
def test_an_update_changes_only_what_it_names(body: dict[str, Any], changed: dict[str, Any]) -> None:
    assert apply_update(existing(), update(**body)) == existing(**changed)


def test_update_preserves_the_notation_of_unnamed_fields() -> None:
    odd = existing(memory="1024Mi", storageMounts=[{"name": "data", "mountPath": "/data/"}])
    assert apply_update(odd, update(image="new")) == msgspec.structs.replace(odd, image="new")


REFUSED_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "another flavor": ({"specName": "g2"}, "specName: never changes from g1.1; create another unit of the other"),
    "more memory": ({"memory": "32Gi"}, "memory: never changes from 16Gi, which was reserved; create another unit"),
    "more GPUs": ({"gpu": 2}, "gpu: never changes from 1, which were reserved; create another unit"),
    "another queue": (
        {"serverless": {"enabled": True, "requestID": "g"}},
        "serverless.requestID: never changes from 'f', in whose queue invocations may be waiting; repeat it",
    ),
    "a queue that is not repeated": (
        {"serverless": {"enabled": False}},
        "serverless.requestID: never changes from 'f', ",
    ),
    "no image": ({"image": ""}, "image: is required; "),
    "a template without the primary port": (
        {"template": {}},
        "access.primaryPort: 'http' names no port of the template (it has none)",
    ),
    "a mount that hides the socket": (
        {"storageMounts": [{"name": "x", "mountPath": "/run"}]},
        "storageMounts[0].mountPath: /run would hide the framework's socket ",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED_CHANGES.values(), ids=REFUSED_CHANGES)
def test_an_update_is_refused_with_path_and_remedy(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as refused:
        apply_update(existing(), update(**body))
    assert len(refused.value.errors) == 1
    assert refused.value.message.startswith(message)


def test_a_unit_becomes_a_function_later() -> None:
    plain = msgspec.structs.replace(existing(), serverless=None)
    assert apply_update(plain, update(serverless={"enabled": True, "requestID": "f"})) == existing()


@pytest.mark.parametrize("field", UpdateUnit.__struct_fields__)
def test_update_with_null_is_rejected(field: str) -> None:
    name = next(each.encode_name for each in msgspec.structs.fields(UpdateUnit) if each.name == field)
    with pytest.raises(msgspec.ValidationError, match=rf"got `null` - at `\$.{name}`"):
        update(**{name: None})


def test_a_namespace_is_one_that_the_configuration_allows() -> None:
    assert resolve_namespace("", NAMESPACES) == "runtime-instance"
    assert resolve_namespace("batch", NAMESPACES) == "batch"
    with pytest.raises(Invalid, match="'default' holds no units here; use runtime-instance or batch"):
        resolve_namespace("default", NAMESPACES)


def test_the_stock_namespace_is_not_one_for_units() -> None:
    with pytest.raises(ValueError, match="units must not name runtime-stock"):
        APINamespaceSettings(units=("runtime-stock",))
