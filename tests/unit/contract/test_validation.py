"""What is wrong with a spec is said with the field's path and a remedy."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.well_known import MAX_POOL_NAME_LENGTH, UnitRole
from gpu_runtime.contract.validation import (
    growth_errors,
    name_errors,
    operation_id_errors,
    pool_errors,
    storage_errors,
    unit_errors,
)
from gpu_runtime.manifests.samples import FUNCTION, POOL, STOCK_UNIT, STORAGE, UNIT_WITH_STORAGE

HTTP = {"ports": [{"name": "http", "port": 8080}]}


def unit(**spec: Any) -> GPUUnitSpec:
    return msgspec.convert({"specName": "g1.1", "image": "python:3.12"} | spec, GPUUnitSpec)


def pool(**spec: Any) -> StockPoolSpec:
    return msgspec.convert({"specName": "g1.1", "replicas": 1} | spec, StockPoolSpec)


def storage(**spec: Any) -> GPUStorageSpec:
    return msgspec.convert({"size": "20Gi"} | spec, GPUStorageSpec)


def ports(*ports: tuple[str, int] | tuple[str, int, str]) -> dict[str, Any]:
    return {"ports": [dict(zip(("name", "port", "protocol"), port, strict=False)) for port in ports]}


def mounts(**paths: str) -> list[dict[str, str]]:
    return [{"name": name, "mountPath": path} for name, path in paths.items()]


def function(**block: Any) -> dict[str, Any]:
    return {"enabled": True, "requestID": "f"} | block


def test_valid_specs_have_no_errors() -> None:
    assert unit_errors(UNIT_WITH_STORAGE.spec, UnitRole.ACTIVE) == ()
    assert unit_errors(FUNCTION.spec, UnitRole.ACTIVE) == ()
    assert unit_errors(STOCK_UNIT.spec, UnitRole.STOCK) == ()
    assert pool_errors(POOL.spec) == ()
    assert pool_errors(pool(replicas=0)) == ()
    assert storage_errors(STORAGE.spec) == ()
    assert unit_errors(unit(template=ports(("a", 53), ("b", 53, "UDP"))), UnitRole.ACTIVE) == ()


UNITS = {
    "no flavor": (unit(specName=""), "specName: is required; name the flavor, for example g1.1"),
    "no image": (unit(image=""), "image: is required; name the image to run"),
    "an image with a blank": (unit(image="python 3"), "image: 'python 3' is not an image; it must not contain blanks"),
    "memory that is no quantity": (
        unit(memory="not-a-quantity"),
        "memory: 'not-a-quantity' is not a quantity; write for example 512Mi or 16Gi",
    ),
    "no memory at all": (unit(memory="0"), "memory: 0 is not above 0"),
    "thousandths of a byte": (
        unit(memory="1600m"),
        "memory: 1600m is not a whole number of bytes; write for example 512Mi or 16Gi",
    ),
    "memory beyond counting": (unit(memory="8Ei"), "memory: 8Ei is more than Kubernetes can count; use less than 8Ei"),
    "negative gpu": (unit(gpu=-1), "gpu: -1 is not between 0 and 2147483647"),
    "a port out of range": (
        unit(template=ports(("a", 80), ("b", 70000))),
        "template.ports[1].port: 70000 is not between 1 and 65535",
    ),
    "a port twice": (
        unit(template=ports(("a", 80), ("b", 80))),
        "template.ports[1].port: 80/TCP is already the port of template.ports[0]",
    ),
    "a port name twice": (
        unit(template=ports(("a", 80), ("a", 81))),
        "template.ports[1].name: 'a' is already the name of template.ports[0]",
    ),
    "an unknown protocol": (
        unit(template=ports(("a", 80, "QUIC"))),
        "template.ports[0].protocol: 'QUIC' is not one of TCP, UDP, SCTP",
    ),
    "a variable twice": (
        unit(template={"envs": [{"name": "A", "value": "1"}, {"name": "A"}]}),
        "template.envs[1].name: A is already set by template.envs[0]; keep one of them",
    ),
    "a variable whose name is too long": (
        unit(template={"envs": [{"name": "A" * 256}]}),
        "template.envs[0].name: has 256 characters; use at most 255",
    ),
    "a variable whose value is too long": (
        unit(template={"envs": [{"name": "A", "value": "x" * 32769}]}),
        "template.envs[0].value: has 32769 characters; use at most 32768",
    ),
    "a primary port that the template lacks": (
        unit(template=HTTP, access={"primaryPort": "grpc"}),
        "access.primaryPort: 'grpc' names no port of the template (it has http)",
    ),
    "a primary port without any port": (
        unit(access={"primaryPort": "http"}),
        "access.primaryPort: 'http' names no port of the template (it has none)",
    ),
    "a primary port that speaks no HTTP": (
        unit(template=ports(("dns", 53, "UDP")), access={"primaryPort": "dns"}),
        "access.primaryPort: 'dns' is a UDP port; choose a TCP port",
    ),
    "an unknown scheme": (unit(access={"scheme": "ftp"}), "access.scheme: 'ftp' is not one of http, https"),
    "a relative mount": (
        unit(storageMounts=mounts(x="cache")),
        "storageMounts[0].mountPath: 'cache' is not absolute; begin with '/'",
    ),
    "a mount that climbs": (
        unit(storageMounts=mounts(x="/a/../b")),
        "storageMounts[0].mountPath: /a/../b contains '..'; write /b",
    ),
    "a mount over the image": (
        unit(storageMounts=mounts(x="//")),
        "storageMounts[0].mountPath: '/' would hide the whole image; mount below it",
    ),
    "a mount over the kernel's files": (
        unit(storageMounts=mounts(x="/proc/1")),
        "storageMounts[0].mountPath: /proc/1 belongs to the kernel; mount elsewhere",
    ),
    "a mount within a mount": (
        unit(storageMounts=mounts(x="/data", y="/data/cache/")),
        "storageMounts[1].mountPath: /data/cache/ overlaps /data of storageMounts[0]; one would hide the other",
    ),
    "a storage twice": (
        unit(storageMounts=mounts(x="/a") + mounts(x="/b")),
        "storageMounts[1].name: 'x' is already mounted by storageMounts[0]; mount a storage once",
    ),
    "a storage that has no name": (unit(storageMounts=mounts(X="/a")), "storageMounts[0].name: 'X' is not a name; "),
    "a function without requestID": (
        unit(serverless=function(requestID="")),
        "serverless.requestID: is required; it names the function's queue",
    ),
    "a requestID of two tokens": (
        unit(serverless=function(requestID="a.b")),
        "serverless.requestID: 'a.b' is not a requestID; use lower-case letters, digits, '-' and '_'",
    ),
    "more workers kept than allowed": (
        unit(serverless=function(minAvailableCount=2)),
        "serverless.minAvailableCount: 2 is above maxWorkers, which is 1",
    ),
    "storage for many workers": (
        unit(serverless=function(maxWorkers=2), storageMounts=mounts(x="/a")),
        "storageMounts: a storage is mounted by one unit at a time; set maxWorkers to 1 or mount nothing",
    ),
    "a mount that hides the socket": (
        unit(serverless=function(), storageMounts=mounts(x="/run")),
        "storageMounts[0].mountPath: /run would hide the framework's socket /run/gpu-runtime/framework.sock",
    ),
    "a socket path that Linux cannot hold": (
        unit(serverless=function(framework={"socketPath": "/run/" + "s" * 103})),
        "serverless.framework.socketPath: is longer than Linux allows for a socket; use at most 107",
    ),
    "a socket that is relative": (
        unit(serverless=function(framework={"socketPath": "f.sock"})),
        "serverless.framework.socketPath: 'f.sock' is not an absolute path of a file in a directory of its own",
    ),
    "an invoke path that is none": (
        unit(serverless=function(framework={"invokePath": "invoke"})),
        "serverless.framework.invokePath: 'invoke' is not an HTTP path; begin with '/'",
    ),
    "a health path that is too long": (
        unit(serverless=function(framework={"healthPath": "/" + "x" * 1024})),
        "serverless.framework.healthPath: has 1025 characters; use at most 1024",
    ),
}


@pytest.mark.parametrize(("spec", "message"), UNITS.values(), ids=UNITS)
def test_an_active_unit_is_refused_with_path_and_remedy(spec: GPUUnitSpec, message: str) -> None:
    (problem,) = unit_errors(spec, UnitRole.ACTIVE)
    assert str(problem).startswith(message)


@pytest.mark.parametrize("name", ["1 bad", "", "A=B", "1A", "..", ".", "..A", "A\n", "Ä"])
def test_invalid_environment_variable_name_is_rejected(name: str) -> None:
    (problem,) = pool_errors(pool(template={"envs": [{"name": name}]}))
    assert problem.path == "template.envs[0].name"


@pytest.mark.parametrize("name", ["MODEL_ID", "a.b-c", "_", ".hidden"])
def test_valid_environment_variable_name_is_accepted(name: str) -> None:
    assert pool_errors(pool(template={"envs": [{"name": name}]})) == ()


@pytest.mark.parametrize("name", ["", "HTTP", "a" * 16, "8080", "a--b", "-a", "a-", "a_b"])
def test_port_name_that_is_no_service_name_is_rejected(name: str) -> None:
    (problem,) = unit_errors(unit(template=ports((name, 80))), UnitRole.ACTIVE)
    assert problem.path == "template.ports[0].name"


def test_only_the_reservation_of_a_stock_unit_is_validated() -> None:
    assert unit_errors(unit(image="", template=ports(("a", 70000))), UnitRole.STOCK) == ()
    (problem,) = unit_errors(unit(memory="x"), UnitRole.STOCK)
    assert problem.path == "memory"
    (problem,) = unit_errors(unit(storageMounts=mounts(x="/a")), UnitRole.STOCK)
    assert problem.path == "storageMounts"


def test_all_errors_are_reported_together_with_document_paths() -> None:
    spec = unit(memory="x", gpu=-1, image="", template=ports(("a", 0)))
    paths = [problem.path for problem in unit_errors(spec, UnitRole.ACTIVE, path="spec")]
    assert paths == ["spec.memory", "spec.gpu", "spec.image", "spec.template.ports[0].port"]
    (problem,) = unit_errors(
        unit(serverless=function(maxWorkers=2), storageMounts=mounts(x="/a")), UnitRole.ACTIVE, path="spec"
    )
    assert problem.path == "spec.storageMounts"


def test_invalid_pool_and_storage_are_rejected_with_path_and_remedy() -> None:
    assert [str(problem) for problem in pool_errors(pool(replicas=-1))] == [
        "replicas: -1 is not between 0 and 2147483647"
    ]
    assert [str(problem) for problem in storage_errors(storage(size=""))] == [
        "size: is required; write for example 20Gi"
    ]
    assert [problem.path for problem in storage_errors(storage(size="lots"))] == ["size"]
    assert [problem.path for problem in storage_errors(storage(storageClassName="a b"))] == ["storageClassName"]


@pytest.mark.parametrize(
    ("current", "wanted", "message"),
    [
        ("1Gi", "2Gi", None),
        ("1Gi", "1024Mi", None),
        ("lots", "1Gi", None),
        ("2Gi", "1Gi", "size: 1Gi is less than the current 2Gi; a storage only grows"),
        ("20Gi", "20G", "size: 20G is less than the current 20Gi; a storage only grows"),
        ("1Gi", "more", "size: 'more' is not a quantity; write for example 512Mi or 16Gi"),
    ],
)
def test_a_storage_only_grows(current: str, wanted: str, message: str | None) -> None:
    assert [str(problem) for problem in growth_errors(current, wanted)] == ([message] if message else [])


@pytest.mark.parametrize("name", ["demo", "a", "a-1", "a" * 63])
def test_valid_unit_names_are_accepted(name: str) -> None:
    assert list(name_errors(name)) == []


@pytest.mark.parametrize("name", ["", "Not_A_Name", "1a", "-a", "a-", "a.b", "a" * 64, "a\n"])
def test_invalid_unit_names_are_rejected(name: str) -> None:
    (problem,) = name_errors(name)
    assert problem.path == "name"


def test_pool_name_limit_includes_the_child_prefix() -> None:
    assert MAX_POOL_NAME_LENGTH == 58
    (problem,) = name_errors("p" * 59, max_length=MAX_POOL_NAME_LENGTH)
    assert "use at most 58" in problem.message


@pytest.mark.parametrize("operation_id", ["", " a", "a\n", "a" * 257, "a\0"])
def test_an_operation_id_is_printable_and_bounded(operation_id: str) -> None:
    (problem,) = operation_id_errors(operation_id)
    assert problem.path == "operationID"
