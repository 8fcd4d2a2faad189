"""Validation errors name the path of the field and a remedy."""

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
from gpu_runtime.contract.validation.pod_policy import PodPolicy
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


def probed(probe: dict[str, Any], kind: str = "readiness", **spec: Any) -> GPUUnitSpec:
    return unit(**{"template": ports(("http", 8080)), "probes": {kind: probe}} | spec)


TCP_CHECK = {"tcpSocket": {"port": "http"}}
UDP_PORT = {"ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}

UNITS = {
    "probe of an unknown port": (
        probed({"tcpSocket": {"port": "web"}}),
        "probes.readiness.tcpSocket.port: 'web' is not the name of a port in template.ports; the names there: http",
    ),
    "probe of a UDP port": (
        probed({"httpGet": {"port": "dns"}}, template=UDP_PORT),
        "probes.readiness.httpGet.port: 'dns' is a UDP port; choose a TCP port, or use exec",
    ),
    "HTTP probe without a primary port": (
        probed({"httpGet": {}}, "startup", template={}),
        "probes.startup.httpGet.port: is required, because the unit has no TCP port as primary port",
    ),
    "probe without a check": (
        probed({}, "liveness"),
        "probes.liveness: has 0 checks; give exactly one of httpGet, tcpSocket and exec",
    ),
    "probe with two checks": (
        probed(TCP_CHECK | {"exec": {"command": ["true"]}}),
        "probes.readiness: has 2 checks; give exactly one of httpGet, tcpSocket and exec",
    ),
    "disabled probe with a check": (
        probed(TCP_CHECK | {"disabled": True}),
        "probes.readiness.disabled: is given together with a check; remove one of them",
    ),
    "probe with an empty command": (
        probed({"exec": {"command": []}}),
        "probes.readiness.exec.command: is empty; give the command and its arguments",
    ),
    "probe with a NUL character in its command": (
        probed({"exec": {"command": ["test", "a\0b"]}}),
        "probes.readiness.exec.command[1]: contains a NUL character, which Linux does not allow; remove it",
    ),
    "NUL character in the arguments": (
        unit(template={"args": ["--name", "a\0b"]}),
        "template.args[1]: contains a NUL character, which Linux does not allow; remove it",
    ),
    "NUL character in the init command": (
        unit(template={"init": {"command": ["a\0b"]}}),
        "template.init.command[0]: contains a NUL character, which Linux does not allow; remove it",
    ),
    "long init command": (
        unit(template={"init": {"command": ["a"] * 257}}),
        "template.init.command: has 257 items; use at most 256",
    ),
    "probe of a relative path": (
        probed({"httpGet": {"path": "healthz"}}),
        "probes.readiness.httpGet.path: 'healthz' is not an HTTP path; begin with '/', ",
    ),
    "probe with another scheme": (
        probed({"httpGet": {"scheme": "http"}}),
        "probes.readiness.httpGet.scheme: 'http' is not one of HTTP, HTTPS",
    ),
    "probe with a negative delay": (
        probed(TCP_CHECK | {"initialDelaySeconds": -1}),
        "probes.readiness.initialDelaySeconds: -1 is not between 0 and 3600",
    ),
    "probe without a period": (
        probed(TCP_CHECK | {"periodSeconds": 0}),
        "probes.readiness.periodSeconds: 0 is not between 1 and 3600",
    ),
    "probe with a long timeout": (
        probed(TCP_CHECK | {"timeoutSeconds": 3601}),
        "probes.readiness.timeoutSeconds: 3601 is not between 1 and 3600",
    ),
    "probe without a threshold": (
        probed(TCP_CHECK | {"failureThreshold": 0}),
        "probes.readiness.failureThreshold: 0 is not between 1 and 10000",
    ),
    "Secret mount over the framework socket": (
        unit(
            template={"secretMounts": [{"name": "unit-a", "mountPath": "/run"}]},
            serverless={"enabled": True, "requestID": "f"},
        ),
        "template.secretMounts[0].mountPath: /run would hide the framework's socket ",
    ),
    "framework socket in shared memory": (
        unit(serverless={"enabled": True, "requestID": "f", "framework": {"socketPath": "/dev/shm/s"}}),  # noqa: S108
        "serverless.framework.socketPath: /dev/shm/s belongs to the kernel; use a path outside /proc, /sys, /dev",
    ),
    "Secret key that is a path": (
        unit(template={"envs": [{"name": "A", "valueFrom": {"secret": {"name": "unit-a", "key": ".."}}}]}),
        "template.envs[0].valueFrom.secret.key: '..' is not a key of a Secret;",
    ),
    "Secret name with two dots": (
        unit(template={"imagePullSecrets": ["unit-a..b"]}),
        "template.imagePullSecrets[0]: 'unit-a..b' is not the name of a Secret;",
    ),
    "lifetime of zero": (unit(maxDurationSeconds=0), "maxDurationSeconds: 0 is not between 1 and 315360000"),
    "negative lifetime": (unit(deleteAfterSeconds=-1), "deleteAfterSeconds: -1 is not between 1 and 315360000"),
    "lifetime of a function": (
        unit(stopUnlessExtendedSeconds=60, serverless={"enabled": True, "requestID": "f"}),
        "stopUnlessExtendedSeconds: functions and workers have no lifetime; remove this field",
    ),
    "extension that is no time": (
        unit(extendedUntil="tomorrow"),
        "extendedUntil: 'tomorrow' is not a time; write for example 2030-01-31T12:00:00Z",
    ),
    "no flavor": (unit(specName=""), "specName: is required; name the flavor, for example g1.1"),
    "no image": (unit(image=""), "image: is required; name the image to run"),
    "image with a space": (
        unit(image="python 3"),
        "image: 'python 3' is not an image name; remove whitespace and control characters",
    ),
    "memory that is not a quantity": (
        unit(memory="not-a-quantity"),
        "memory: 'not-a-quantity' is not a quantity; write for example 512Mi or 16Gi",
    ),
    "memory of zero": (unit(memory="0"), "memory: 0 is not greater than 0; write for example 512Mi or 16Gi"),
    "CPUs that are not a quantity": (
        unit(cpu="many"),
        "cpu: 'many' is not a quantity; write for example 4 or 500m",
    ),
    "no CPUs": (unit(cpu="0"), "cpu: 0 is not greater than 0; write for example 4 or 500m"),
    "parts of a thousandth of a CPU": (
        unit(cpu="100u"),
        "cpu: 100u is not a whole number of thousandths of a CPU; write for example 4 or 500m",
    ),
    "CPUs in bytes": (unit(cpu="4Gi"), "cpu: 4Gi is more than 4096 CPUs; write for example 4 or 500m"),
    "CPU limit without CPUs": (
        unit(cpuLimit="2"),
        "cpuLimit: needs cpu; set cpu to the CPUs that the pod reserves",
    ),
    "CPU limit below the CPUs": (
        unit(cpu="2", cpuLimit="1500m"),
        "cpuLimit: 1500m is less than cpu, which is 2; raise cpuLimit or lower cpu",
    ),
    "negative CPU limit": (
        unit(cpu="2", cpuLimit="-1"),
        "cpuLimit: -1 is not greater than 0; write for example 4 or 500m",
    ),
    "negative ephemeral storage": (
        unit(ephemeralStorage="-1Gi"),
        "ephemeralStorage: -1Gi is not greater than 0; write for example 512Mi or 16Gi",
    ),
    "memory in milli-bytes": (
        unit(memory="1600m"),
        "memory: 1600m is not a whole number of bytes; write for example 512Mi or 16Gi",
    ),
    "memory above 63 bits": (unit(memory="8Ei"), "memory: 8Ei is more than Kubernetes supports; use less than 8Ei"),
    "negative gpu": (unit(gpu=-1), "gpu: -1 is not between 0 and 2147483647"),
    "port out of range": (
        unit(template=ports(("a", 80), ("b", 70000))),
        "template.ports[1].port: 70000 is not between 1 and 65535",
    ),
    "duplicate port": (
        unit(template=ports(("a", 80), ("b", 80))),
        "template.ports[1].port: 80/TCP is already the port of template.ports[0]; use another port or protocol",
    ),
    "duplicate port name": (
        unit(template=ports(("a", 80), ("a", 81))),
        "template.ports[1].name: 'a' is already the name of template.ports[0]; use another name",
    ),
    "unknown protocol": (
        unit(template=ports(("a", 80, "QUIC"))),
        "template.ports[0].protocol: 'QUIC' is not one of TCP, UDP, SCTP",
    ),
    "duplicate environment variable": (
        unit(template={"envs": [{"name": "A", "value": "1"}, {"name": "A"}]}),
        "template.envs[1].name: A is already set by template.envs[0]; remove one of them",
    ),
    "environment variable name too long": (
        unit(template={"envs": [{"name": "A" * 256}]}),
        "template.envs[0].name: has 256 characters; use at most 255",
    ),
    "environment variable value too long": (
        unit(template={"envs": [{"name": "A", "value": "x" * 24577}]}),
        "template.envs[0].value: has 24577 characters; use at most 24576",
    ),
    "primary port not in the template": (
        unit(template=HTTP, access={"primaryPort": "grpc"}),
        "access.primaryPort: 'grpc' is not the name of a port in template.ports; the names there: http",
    ),
    "primary port without any port": (
        unit(access={"primaryPort": "http"}),
        "access.primaryPort: 'http' is not the name of a port in template.ports; the names there: none",
    ),
    "primary port that is not TCP": (
        unit(template=ports(("dns", 53, "UDP")), access={"primaryPort": "dns"}),
        "access.primaryPort: 'dns' is a UDP port; choose a TCP port",
    ),
    "unknown scheme": (unit(access={"scheme": "ftp"}), "access.scheme: 'ftp' is not one of http, https"),
    "relative mount path": (
        unit(storageMounts=mounts(x="cache")),
        "storageMounts[0].mountPath: 'cache' is not absolute; begin with '/'",
    ),
    "mount path with '..'": (
        unit(storageMounts=mounts(x="/a/../b")),
        "storageMounts[0].mountPath: /a/../b contains '..'; write /b",
    ),
    "mount path that is the root": (
        unit(storageMounts=mounts(x="//")),
        "storageMounts[0].mountPath: '/' would hide the whole image; use a path below '/'",
    ),
    "mount path of the kernel": (
        unit(storageMounts=mounts(x="/proc/1")),
        "storageMounts[0].mountPath: /proc/1 belongs to the kernel; use a path outside /proc, /sys, /dev",
    ),
    "mount path within another": (
        unit(storageMounts=mounts(x="/data", y="/data/cache/")),
        "storageMounts[1].mountPath: /data/cache/ overlaps /data of storageMounts[0]; use separate paths",
    ),
    "duplicate storage": (
        unit(storageMounts=mounts(x="/a") + mounts(x="/b")),
        "storageMounts[1].name: 'x' is already mounted by storageMounts[0]; mount each storage once",
    ),
    "invalid storage name": (unit(storageMounts=mounts(X="/a")), "storageMounts[0].name: 'X' is not a name; "),
    "function without requestID": (
        unit(serverless=function(requestID="")),
        "serverless.requestID: is required; choose the ID that callers name in their invocations",
    ),
    "requestID of two tokens": (
        unit(serverless=function(requestID="a.b")),
        "serverless.requestID: 'a.b' is not a requestID; use lower-case letters, digits, '-' and '_'",
    ),
    "minAvailableCount above maxWorkers": (
        unit(serverless=function(minAvailableCount=2)),
        "serverless.minAvailableCount: 2 is greater than maxWorkers, which is 1; lower minAvailableCount or raise ",
    ),
    "storage with several workers": (
        unit(serverless=function(maxWorkers=2), storageMounts=mounts(x="/a")),
        "storageMounts: a function with more than one worker cannot mount a storage;",
    ),
    "mount path that hides the socket": (
        unit(serverless=function(), storageMounts=mounts(x="/run")),
        "storageMounts[0].mountPath: /run would hide the framework's socket /run/gpu-runtime/framework.sock; ",
    ),
    "socket path too long for Linux": (
        unit(serverless=function(framework={"socketPath": "/run/" + "s" * 103})),
        "serverless.framework.socketPath: is longer than Linux allows for a socket; use at most 107 bytes",
    ),
    "relative socket path": (
        unit(serverless=function(framework={"socketPath": "f.sock"})),
        (
            "serverless.framework.socketPath: 'f.sock' is not an absolute path of a file in a directory;"
            " use for example /run/gpu-runtime/framework.sock"
        ),
    ),
    "invoke path without a slash": (
        unit(serverless=function(framework={"invokePath": "invoke"})),
        "serverless.framework.invokePath: 'invoke' is not an HTTP path; begin with '/', ",
    ),
    "relative working directory": (
        unit(template={"workingDir": "app"}),
        "template.workingDir: 'app' is not an absolute path of at most 512 printable characters; begin with '/'",
    ),
    "init without a command": (
        unit(template={"init": {}}),
        "template.init: has neither command nor args; give one of them, or omit init",
    ),
    "shared memory that is not a quantity": (
        unit(template={"sharedMemory": "much"}),
        "template.sharedMemory: 'much' is not a quantity; write for example 512Mi or 16Gi",
    ),
    "more shared memory than memory": (
        unit(memory="1Gi", template={"sharedMemory": "1025Mi"}),
        "template.sharedMemory: 1025Mi is more than the memory of the pod, which is 1Gi; lower sharedMemory",
    ),
    "negative user": (
        unit(template={"runAsUser": -1}),
        "template.runAsUser: -1 is not between 0 and 2147483647",
    ),
    "too large group": (
        unit(template={"fsGroup": 2**31}),
        "template.fsGroup: 2147483648 is not between 0 and 2147483647",
    ),
    "no termination grace period": (
        unit(template={"terminationGracePeriodSeconds": 0}),
        "template.terminationGracePeriodSeconds: 0 is not between 1 and 3600",
    ),
    "unknown pull policy": (
        unit(template={"imagePullPolicy": "Sometimes"}),
        "template.imagePullPolicy: 'Sometimes' is not one of Always, IfNotPresent, Never",
    ),
    "pull secret of the platform": (
        unit(template={"imagePullSecrets": ["nats-credentials"]}),
        "template.imagePullSecrets[0]: 'nats-credentials' does not begin with unit-; units can use only such Secrets",
    ),
    "variable from a Secret of the platform": (
        unit(template={"envs": [{"name": "A", "valueFrom": {"secret": {"name": "token", "key": "a"}}}]}),
        "template.envs[0].valueFrom.secret.name: 'token' does not begin with unit-; units can use only such Secrets",
    ),
    "variable from an impossible key": (
        unit(template={"envs": [{"name": "A", "valueFrom": {"secret": {"name": "unit-a", "key": "a/b"}}}]}),
        "template.envs[0].valueFrom.secret.key: 'a/b' is not a key of a Secret; use 1 to 253 letters, digits, '-', '_'",
    ),
    "variable with a value and a Secret": (
        unit(template={"envs": [{"name": "A", "value": "x", "valueFrom": {"secret": {"name": "unit-a", "key": "a"}}}]}),
        "template.envs[0].value: is given together with valueFrom; remove one of them",
    ),
    "mounted Secret of the platform": (
        unit(template={"secretMounts": [{"name": "token", "mountPath": "/etc/token"}]}),
        "template.secretMounts[0].name: 'token' does not begin with unit-; units can use only such Secrets",
    ),
    "Secret with a wrong name": (
        unit(template={"secretMounts": [{"name": "unit-A", "mountPath": "/etc/a"}]}),
        "template.secretMounts[0].name: 'unit-A' is not the name of a Secret; use lower-case letters, digits",
    ),
    "Secret inside a storage": (
        unit(
            storageMounts=mounts(data="/data"),
            template={"secretMounts": [{"name": "unit-a", "mountPath": "/data/a"}]},
        ),
        "template.secretMounts[0].mountPath: /data/a overlaps /data of storageMounts[0]; use separate paths",
    ),
    "Secret that hides the devices": (
        unit(template={"secretMounts": [{"name": "unit-a", "mountPath": "/dev/x"}]}),
        "template.secretMounts[0].mountPath: /dev/x belongs to the kernel; use a path outside /proc, /sys, /dev",
    ),
    "Secret that is mounted twice": (
        unit(
            template={"secretMounts": [{"name": "unit-a", "mountPath": "/a"}, {"name": "unit-a", "mountPath": "/b"}]},
        ),
        "template.secretMounts[1].name: 'unit-a' is already mounted by template.secretMounts[0]; mount each",
    ),
    "health path too long": (
        unit(serverless=function(framework={"healthPath": "/" + "x" * 1024})),
        "serverless.framework.healthPath: has 1025 characters; use at most 1024",
    ),
}


def test_root_is_rejected_only_if_the_settings_require_it() -> None:
    root = unit(template={"runAsUser": 0})
    assert unit_errors(root, UnitRole.ACTIVE) == ()
    (error,) = unit_errors(root, UnitRole.ACTIVE, policy=PodPolicy(require_non_root=True))
    assert str(error) == "template.runAsUser: 0 is root, which this platform does not allow; use another user"
    (error,) = pool_errors(pool(template={"runAsUser": 0}), policy=PodPolicy(require_non_root=True))
    assert error.path == "template.runAsUser"


def test_settings_limit_the_termination_grace_period() -> None:
    slow = unit(template={"terminationGracePeriodSeconds": 600})
    assert unit_errors(slow, UnitRole.ACTIVE) == ()
    (error,) = unit_errors(slow, UnitRole.ACTIVE, policy=PodPolicy(max_termination_grace_period_seconds=300))
    assert str(error) == "template.terminationGracePeriodSeconds: 600 is not between 1 and 300"


@pytest.mark.parametrize(("spec", "message"), UNITS.values(), ids=UNITS)
def test_invalid_active_unit_is_rejected_with_path_and_remedy(spec: GPUUnitSpec, message: str) -> None:
    (error,) = unit_errors(spec, UnitRole.ACTIVE)
    assert str(error).startswith(message)


@pytest.mark.parametrize("name", ["1 bad", "", "A=B", "1A", "..", ".", "..A", "A\n", "Ä"])
def test_invalid_environment_variable_name_is_rejected(name: str) -> None:
    (error,) = pool_errors(pool(template={"envs": [{"name": name}]}))
    assert error.path == "template.envs[0].name"


@pytest.mark.parametrize("name", ["MODEL_ID", "a.b-c", "_", ".hidden"])
def test_valid_environment_variable_name_is_accepted(name: str) -> None:
    assert pool_errors(pool(template={"envs": [{"name": name}]})) == ()


@pytest.mark.parametrize("name", ["", "HTTP", "a" * 16, "8080", "a--b", "-a", "a-", "a_b"])
def test_port_name_that_is_no_service_name_is_rejected(name: str) -> None:
    (error,) = unit_errors(unit(template=ports((name, 80))), UnitRole.ACTIVE)
    assert error.path == "template.ports[0].name"


def test_only_the_reservation_of_a_stock_unit_is_validated() -> None:
    assert unit_errors(unit(image="", template=ports(("a", 70000))), UnitRole.STOCK) == ()
    (error,) = unit_errors(unit(memory="x"), UnitRole.STOCK)
    assert error.path == "memory"
    (error,) = unit_errors(unit(storageMounts=mounts(x="/a")), UnitRole.STOCK)
    assert error.path == "storageMounts"
    (error,) = unit_errors(unit(deleteAfterSeconds=60), UnitRole.STOCK)
    assert str(error) == "deleteAfterSeconds: a stock unit has no lifetime; remove this field"


@pytest.mark.parametrize(
    "probe", [TCP_CHECK, {"tcpSocket": {}}, {"httpGet": {}}, {"exec": {"command": ["true"]}}, {"disabled": True}]
)
def test_valid_probe_is_accepted(probe: dict[str, Any]) -> None:
    assert unit_errors(probed(probe), UnitRole.ACTIVE) == ()


def test_probe_of_the_primary_port_needs_no_port() -> None:
    """It has no effect then. The API adds it to every unit, also to a unit without ports."""
    assert unit_errors(probed({"tcpSocket": {}}, template={}), UnitRole.ACTIVE) == ()


def test_all_errors_are_reported_together_with_document_paths() -> None:
    spec = unit(memory="x", gpu=-1, image="", template=ports(("a", 0)))
    paths = [error.path for error in unit_errors(spec, UnitRole.ACTIVE, path="spec")]
    assert paths == ["spec.memory", "spec.gpu", "spec.image", "spec.template.ports[0].port"]
    (error,) = unit_errors(
        unit(serverless=function(maxWorkers=2), storageMounts=mounts(x="/a")), UnitRole.ACTIVE, path="spec"
    )
    assert error.path == "spec.storageMounts"


def test_invalid_pool_and_storage_are_rejected_with_path_and_remedy() -> None:
    assert [str(error) for error in pool_errors(pool(replicas=-1))] == ["replicas: -1 is not between 0 and 2147483647"]
    assert [str(error) for error in storage_errors(storage(size=""))] == ["size: is required; write for example 20Gi"]
    assert [error.path for error in storage_errors(storage(size="lots"))] == ["size"]
    assert [error.path for error in storage_errors(storage(storageClassName="a b"))] == ["storageClassName"]


@pytest.mark.parametrize(
    ("current", "desired", "message"),
    [
        ("1Gi", "2Gi", None),
        ("1Gi", "1024Mi", None),
        ("lots", "1Gi", None),
        ("2Gi", "1Gi", "size: 1Gi is less than the current size 2Gi; a storage can only grow"),
        ("20Gi", "20G", "size: 20G is less than the current size 20Gi; a storage can only grow"),
        ("1Gi", "more", "size: 'more' is not a quantity; write for example 512Mi or 16Gi"),
    ],
)
def test_storage_size_cannot_decrease(current: str, desired: str, message: str | None) -> None:
    assert [str(error) for error in growth_errors(current, desired)] == ([message] if message else [])


@pytest.mark.parametrize("name", ["demo", "a", "a-1", "a" * 63])
def test_valid_unit_names_are_accepted(name: str) -> None:
    assert list(name_errors(name)) == []


@pytest.mark.parametrize("name", ["", "Not_A_Name", "1a", "-a", "a-", "a.b", "a" * 64, "a\n"])
def test_invalid_unit_names_are_rejected(name: str) -> None:
    (error,) = name_errors(name)
    assert error.path == "name"


def test_pool_name_limit_includes_the_child_prefix() -> None:
    assert MAX_POOL_NAME_LENGTH == 58
    (error,) = name_errors("p" * 59, max_length=MAX_POOL_NAME_LENGTH)
    assert "use at most 58" in error.message


@pytest.mark.parametrize("operation_id", ["", " a", "a\n", "a" * 257, "a\0"])
def test_an_operation_id_is_printable_and_bounded(operation_id: str) -> None:
    (error,) = operation_id_errors(operation_id)
    assert error.path == "operationID"
