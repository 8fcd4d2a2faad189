"""Each field of the template, as a program sees it inside the container of a unit on a real node."""

import functools
import json
import os
import socket
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube import ApiError, Client
from lightkube.resources.core_v1 import Service

from localcluster.node import Node
from localcluster.supervisor_client import ProcessFailed, wait_until
from tests.e2e.controller_manager.test_units_on_a_real_node import (
    SERVER,
    apply_manifest,
    get,
    is_fully_deleted,
    unit,
    wait_ready,
)
from tests.e2e.node_api_requests import request_with_retry

NAMESPACE = "runtime-instance"
SLOW_START_SECONDS = float(os.environ.get("SLOW_START_SECONDS", "20"))
"""The time that a slow program needs to listen. With a startup probe, Kubernetes would restart it after 3 s."""

READY_ROUNDS = int(os.environ.get("READY_ROUNDS", "2"))
"""How often the test starts a unit and sends the first request."""

REPORT = """
import json, os, pathlib, signal, sys, time

def read(*paths):
    found = (pathlib.Path("/sys/fs/cgroup") / path for path in paths)
    return next((path.read_text().split() for path in found if path.exists()), [])

shm = os.statvfs("/dev/shm")
print(json.dumps({
    "cpu": read("cpu/cpu.shares", "cpu.weight"),
    "cpuLimit": read("cpu/cpu.cfs_quota_us", "cpu.max"),
    "memory": read("memory/memory.limit_in_bytes", "memory.max"),
    "sharedMemory": shm.f_blocks * shm.f_frsize,
    "workingDir": os.getcwd(),
    "user": [os.getuid(), os.getgid(), sorted(os.getgroups())],
    "env": os.environ.get("TOKEN"),
    "file": pathlib.Path("/secrets/token").read_text(),
    "init": pathlib.Path("/dev/shm/init").read_text().split(),
}), flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(3600)
"""
TEMPLATE = {
    "command": ["python", "-c"],
    "args": [REPORT],
    "envs": [{"name": "TOKEN", "valueFrom": {"secret": {"name": "unit-template", "key": "token"}}}],
    "secretMounts": [{"name": "unit-template", "mountPath": "/secrets"}],
    "workingDir": "/srv",
    "runAsUser": 12345,
    "runAsGroup": 23456,
    "fsGroup": 34567,
    "sharedMemory": "96Mi",
    "init": {"command": ["sh", "-c", 'echo "$TOKEN" $(id -u) > /dev/shm/init']},
}
RESERVATION: dict[str, Any] = {"memory": "256Mi", "cpu": "100m", "cpuLimit": "500m", "ephemeralStorage": "200Mi"}


def web_server(seconds: float = 0, ports: tuple[int, ...] = (8080,)) -> str:
    """Return a program that begins to listen on 8080 after a time, and on other ports at once."""
    others = [f"threading.Thread(target=listen, args=({port},), daemon=True).start()" for port in ports if port != 8080]
    listen = "def listen(port): http.server.test(http.server.SimpleHTTPRequestHandler, port=port, bind='0.0.0.0')"
    imports = "import http.server, signal, sys, threading, time"
    end = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))"
    return "\n".join([imports, end, listen, *others, f"time.sleep({seconds})", "listen(8080)"])


def address(kube: Client, name: str, port: int = 8080) -> str:
    spec = kube.get(Service, name, namespace=NAMESPACE).spec
    assert spec
    return f"http://{spec.clusterIP}:{port}/"


def condition_message(node: Node, name: str) -> str:
    found = get(node, "gpuunit", NAMESPACE, name) or {}
    conditions = found.get("status", {}).get("conditions", [])
    return " ".join(f"{each['reason']}: {each['message']}" for each in conditions)


def delete_unit(node: Node, kube: Client, name: str, timeout_seconds: float = 60) -> None:
    node.kubectl("delete", "gpuunit", name, f"--namespace={NAMESPACE}")
    deleted = functools.partial(is_fully_deleted, kube, NAMESPACE, name)
    wait_until(deleted, timeout_seconds, lambda: f"children of {name} still exist")


@pytest.fixture(scope="module")
def secret(deployed_platform: Node) -> Iterator[None]:
    in_namespace = f"--namespace={NAMESPACE}"
    deployed_platform.kubectl(
        "create", "secret", "generic", "unit-template", "--from-literal=token=s3cret", in_namespace
    )
    yield
    deployed_platform.kubectl("delete", "secret", "unit-template", in_namespace)


@pytest.fixture(scope="module")
def report(deployed_platform: Node, kube: Client, secret: None) -> Iterator[dict[str, Any]]:
    """What a program with all fields of the template sees."""
    node = deployed_platform
    apply_manifest(node, unit("report", NAMESPACE, image="python:3.12", template=TEMPLATE, **RESERVATION))
    wait_ready(node, NAMESPACE, "report")
    yield json.loads(node.kubectl("logs", "deployment/report", "--container=main", f"--namespace={NAMESPACE}"))
    delete_unit(node, kube, "report")


OBSERVATIONS: dict[str, Any] = {
    "sharedMemory": 96 << 20,
    "workingDir": "/srv",
    "user": [12345, 23456, [23456, 34567]],
    "env": "s3cret",
    "file": "s3cret",
    "init": ["s3cret", "12345"],
}


@pytest.mark.parametrize(("field", "expected"), OBSERVATIONS.items(), ids=OBSERVATIONS)
def test_program_sees_the_field(report: dict[str, Any], field: str, expected: Any) -> None:
    assert report[field] == expected


def test_cgroup_has_the_reservation(report: dict[str, Any]) -> None:
    assert report["memory"] == [str(256 << 20)]
    cpu, limit = report["cpu"], report["cpuLimit"]
    # cgroup v1: shares of 1,024 per CPU, and a quota of 100,000 per CPU. v2: a weight, and "quota period".
    assert (cpu, limit) in ((["102"], ["50000"]), (["4"], ["50000", "100000"]), (["17"], ["50000", "100000"]))


def test_program_that_ignores_sigterm_is_killed_after_its_grace_period(deployed_platform: Node, kube: Client) -> None:
    template = {"command": ["sh", "-c", "trap '' TERM; while :; do sleep 1; done"]}
    manifest = unit("stubborn", NAMESPACE, image="busybox:1.36", template=template)
    manifest["spec"]["template"]["terminationGracePeriodSeconds"] = 4
    apply_manifest(deployed_platform, manifest)
    wait_ready(deployed_platform, NAMESPACE, "stubborn")
    started = time.monotonic()
    delete_unit(deployed_platform, kube, "stubborn")
    assert 4 <= time.monotonic() - started < 25, "the default of 30 s applies instead"


def test_eviction_for_too_much_ephemeral_storage_is_reported(deployed_platform: Node, kube: Client) -> None:
    """The local kubelet measures the writable layer of the container."""
    template = {"command": ["sh", "-c", "trap 'exit 0' TERM; dd if=/dev/zero of=/big bs=1M count=60; sleep 600 & wait"]}
    node = deployed_platform
    apply_manifest(node, unit("hungry", NAMESPACE, image="busybox:1.36", template=template, ephemeralStorage="20Mi"))

    def reported() -> str:
        """Kubernetes replaces an evicted pod within a second. The Event of the condition stays."""
        selector = "--field-selector=involvedObject.kind=GPUUnit,involvedObject.name=hungry"
        return node.kubectl("get", "events", "-n", NAMESPACE, selector, "--output=jsonpath={.items[*].message}")

    message = "ephemeral local storage usage exceeds the total limit of containers 20Mi"
    wait_until(lambda: message in reported(), 120, reported, interval_seconds=0.2)
    delete_unit(node, kube, "hungry")


BROKEN_SECRETS: dict[str, tuple[dict[str, Any], str]] = {
    "variable": (
        {"envs": [{"name": "X", "valueFrom": {"secret": {"name": "unit-missing", "key": "k"}}}]},
        'secret "unit-missing" not found',
    ),
    "key": (
        {"envs": [{"name": "X", "valueFrom": {"secret": {"name": "unit-template", "key": "missing"}}}]},
        "couldn't find key missing in Secret runtime-instance/unit-template",
    ),
    "mount": ({"secretMounts": [{"name": "unit-missing", "mountPath": "/secrets"}]}, 'secret "unit-missing" not found'),
    "init": (
        {"init": {"command": ["sh", "-c", "echo no model >&2; exit 7"]}},
        "no model",
    ),
}


@pytest.mark.parametrize(("template", "message"), BROKEN_SECRETS.values(), ids=BROKEN_SECRETS)
def test_what_prevents_the_start_is_reported_within_30_seconds(
    deployed_platform: Node, kube: Client, secret: None, template: dict[str, Any], message: str
) -> None:
    node = deployed_platform
    command = {"command": ["sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"]}
    apply_manifest(node, unit("broken", NAMESPACE, image="busybox:1.36", template=command | template))
    wait_until(lambda: message in condition_message(node, "broken"), 30, lambda: condition_message(node, "broken"))
    delete_unit(node, kube, "broken")


FOREIGN_SECRET: dict[str, dict[str, Any]] = {
    "variable": {"envs": [{"name": "X", "valueFrom": {"secret": {"name": "nats-worker", "key": "k"}}}]},
    "mount": {"secretMounts": [{"name": "nats-worker", "mountPath": "/secrets"}]},
    "pull": {"imagePullSecrets": ["nats-worker"]},
}


@pytest.mark.parametrize("template", FOREIGN_SECRET.values(), ids=FOREIGN_SECRET)
def test_secret_without_the_prefix_is_rejected(deployed_platform: Node, template: dict[str, Any]) -> None:
    with pytest.raises(ProcessFailed, match=r"should match '\^unit-"):
        apply_manifest(deployed_platform, unit("thief", NAMESPACE, image="busybox:1.36", template=template))
    body = {"operationID": "thief", "name": "thief", "specName": "g1.1", "image": "busybox:1.36", "template": template}
    status, response = request_with_retry(deployed_platform, "POST", "/gpu-units", body)
    assert status == 400, response
    assert "does not begin with unit-" in response["error"]["message"]


@pytest.fixture
def seeded_stock(deployed_platform: Node) -> Iterator[str]:
    """The flavor of two stock units with a reservation. Its name is new, because a seeding is an operation."""
    flavor = f"template.{time.monotonic_ns()}"
    body = {"operationID": f"seed-{flavor}", "specName": flavor, "replicas": 2, "gpu": 1, **RESERVATION}
    status, response = request_with_retry(deployed_platform, "POST", "/operator/stock-units", body)
    assert status == 202, response
    selector = f"--selector=runtime.lokiwager.io/spec={flavor}"
    wait_until(lambda: _ready_stock(deployed_platform, flavor) == 2, 60, lambda: f"stock {selector} is not Ready")
    yield flavor
    for each in _stock(deployed_platform, flavor):
        deployed_platform.kubectl("delete", "gpuunit", each["metadata"]["name"], "--namespace=runtime-stock")


def _stock(node: Node, flavor: str) -> list[dict[str, Any]]:
    units = json.loads(node.kubectl("get", "gpuunits", "--namespace=runtime-stock", "--output=json"))["items"]
    return [each for each in units if each["spec"]["specName"] == flavor]


def _ready_stock(node: Node, flavor: str) -> int:
    return sum(each.get("status", {}).get("phase") == "Ready" for each in _stock(node, flavor))


def create_over_http(node: Node, name: str, flavor: str, **body: Any) -> dict[str, Any]:
    """Create a unit that is a web server, and return it."""
    request = {
        "operationID": f"{name}-{time.monotonic_ns()}",
        "name": name,
        "specName": flavor,
        "image": "python:3.12",
        "template": {"command": ["python", "-c"], "args": [SERVER], "ports": [{"name": "http", "port": 8080}]},
    } | body
    status, response = request_with_retry(node, "POST", "/gpu-units", request)
    assert status == 201, response
    return dict(response["data"])


def test_unit_keeps_the_reservation_of_the_stock(deployed_platform: Node, kube: Client, seeded_stock: str) -> None:
    node = deployed_platform
    created = create_over_http(node, "reserved", seeded_stock)
    assert {name: created[name] for name in RESERVATION} == RESERVATION
    wait_ready(node, NAMESPACE, "reserved")
    deployment = get(node, "deployment", NAMESPACE, "reserved")
    assert deployment
    resources = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]
    assert resources["limits"]["cpu"] == "500m"
    assert resources["requests"] == {
        "cpu": "100m",
        "ephemeral-storage": "200Mi",
        "memory": "256Mi",
        "nvidia.com/gpu": "1",
    }
    delete_unit(node, kube, "reserved")


def test_first_request_after_ready_succeeds(deployed_platform: Node, kube: Client, seeded_stock: str) -> None:
    """The program needs two seconds to listen. Without a probe, the unit would be Ready before."""
    node = deployed_platform
    template = {"command": ["python", "-c"], "args": [web_server(2)], "ports": [{"name": "http", "port": 8080}]}
    create_over_http(node, "prompt", seeded_stock, template=template)
    for _ in range(READY_ROUNDS):
        wait_ready(node, NAMESPACE, "prompt")
        with urllib.request.urlopen(address(kube, "prompt"), timeout=5) as response:  # noqa: S310
            assert response.status == 200
        assert request_with_retry(node, "POST", "/gpu-units/prompt/stop")[0] == 200
        wait_until(lambda: not _is_ready(node, "prompt"), 60, lambda: "the unit is still Ready")
        assert request_with_retry(node, "POST", "/gpu-units/prompt/start")[0] == 200
    delete_unit(node, kube, "prompt")


def _is_ready(node: Node, name: str) -> bool:
    return bool((get(node, "gpuunit", NAMESPACE, name) or {}).get("status", {}).get("phase") == "Ready")


def test_slow_program_is_not_restarted_and_its_other_port_answers(
    deployed_platform: Node, kube: Client, seeded_stock: str
) -> None:
    node = deployed_platform
    ports = [{"name": "http", "port": 8080}, {"name": "ssh", "port": 22}]
    program = web_server(SLOW_START_SECONDS, (22, 8080))
    create_over_http(
        node, "slow-start", seeded_stock, template={"command": ["python", "-c"], "args": [program], "ports": ports}
    )
    started = time.monotonic()
    wait_until(lambda: _answers(kube, "slow-start", 22), 60, lambda: "port 22 does not answer")
    assert not _answers(kube, "slow-start", 8080)
    assert not _is_ready(node, "slow-start")
    node.kubectl(
        *("wait", "gpuunit/slow-start", f"--namespace={NAMESPACE}", "--for=condition=Ready"),
        f"--timeout={SLOW_START_SECONDS + 60:.0f}s",
    )
    assert time.monotonic() - started > SLOW_START_SECONDS - 5
    assert _answers(kube, "slow-start", 8080)
    pods = json.loads(node.kubectl("get", "pods", f"--namespace={NAMESPACE}", "--output=json"))["items"]
    restarts = [
        status["restartCount"]
        for pod in pods
        if pod["metadata"]["name"].startswith("slow-start")
        for status in pod["status"]["containerStatuses"]
    ]
    assert restarts == [0]
    delete_unit(node, kube, "slow-start")


def _answers(kube: Client, name: str, port: int) -> bool:
    try:
        host = address(kube, name).removeprefix("http://").split(":")[0]
        with socket.create_connection((host, port), timeout=3):
            return True
    except (OSError, ApiError):  # the Service does not exist yet, or nothing listens
        return False
