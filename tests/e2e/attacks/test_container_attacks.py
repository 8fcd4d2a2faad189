"""A user's program that runs as root in a worker, and attacks the node, the network and the sidecar of its pod."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from lightkube import Client
from lightkube.resources.core_v1 import Pod

from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.e2e.controller_manager.test_units_on_a_real_node import apply_manifest, wait_ready
from tests.e2e.worker_sidecar.test_worker_on_a_real_node import FRAMEWORK_SOURCE

NAMESPACE, NAME = "runtime-instance", "attacker"
SIDECAR_PORT = 20257

ATTACKS_SOURCE = """
import errno, json, os, pathlib, socket, struct, threading, time, urllib.error, urllib.request

def attempt(attack):
    try:
        return attack()
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))

def opened(*arguments):
    with socket.socket(*arguments):
        return "open"

def ping():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP) as icmp:
        icmp.settimeout(5)
        icmp.sendto(struct.pack("!BBHHH", 8, 0, 0, 0, 1) + b"hello", ("127.0.0.1", 0))
        return icmp.recv(64)[0]

def fill(directory):
    path = pathlib.Path(directory, "full")
    try:
        with path.open("wb") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
        return "filled"
    finally:
        size = path.stat().st_size
        path.unlink()
        results["filledBytes"] = size

def get(host, path):
    with urllib.request.urlopen(f"http://{host}:20257{path}", timeout=5) as response:
        return response.status

def bind():
    with socket.socket() as server:
        server.bind(("0.0.0.0", 20257))
        return "bound"

def attack():
    while attempt(lambda: get("127.0.0.1", "/readyz")) != 200:
        time.sleep(0.2)
    own_address = socket.gethostbyname(socket.gethostname())
    results["user"] = os.getuid()
    results["packet"] = attempt(lambda: opened(socket.AF_PACKET, socket.SOCK_RAW, 0))
    results["rawICMP"] = attempt(lambda: opened(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    results["ping"] = attempt(ping)
    results["devices"] = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    results["fill"] = attempt(lambda: fill(os.path.dirname(os.environ["GPU_RUNTIME_SOCKET"])))
    results["drain"] = [attempt(lambda: get(host, "/drain")) for host in ("127.0.0.1", own_address)]
    results["bind"] = attempt(bind)
    print(json.dumps(results), flush=True)

results = {}
threading.Thread(target=attack, daemon=True).start()
"""


@pytest.fixture(scope="module")
def attacker(deployed_platform: Node, kube: Client) -> Iterator[None]:
    spec = {
        "specName": "g1.1",
        "image": "python:3.12",
        "template": {"command": ["python", "-c"], "args": [ATTACKS_SOURCE + FRAMEWORK_SOURCE]},
        "serverless": {"enabled": True, "requestID": NAME},
    }
    metadata = {"name": NAME, "namespace": NAMESPACE}
    manifest = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": spec}
    apply_manifest(deployed_platform, manifest)
    wait_ready(deployed_platform, NAMESPACE, NAME)
    yield
    deployed_platform.kubectl("delete", "gpuunit", NAME, f"--namespace={NAMESPACE}")
    wait_until(lambda: not pods(kube), 60, lambda: "the pod of the attacker still exists")


def pods(kube: Client) -> list[Pod]:
    return list(kube.list(Pod, namespace=NAMESPACE, labels={"runtime.lokiwager.io/unit": NAME}))


@pytest.fixture(scope="module")
def results(deployed_platform: Node, attacker: None) -> dict[str, Any]:
    lines: list[str] = []

    def is_finished() -> bool:
        log = deployed_platform.kubectl("logs", f"deployment/{NAME}", "--container=main", f"--namespace={NAMESPACE}")
        lines[:] = [line for line in log.splitlines() if line.startswith('{"')]
        return bool(lines)

    wait_until(is_finished, 60, lambda: "the attacks have not finished")
    found: dict[str, Any] = json.loads(lines[0])
    assert found["user"] == 0
    return found


def test_root_cannot_open_raw_sockets(results: dict[str, Any]) -> None:
    assert (results["packet"], results["rawICMP"]) == ("EPERM", "EPERM")


def test_ping_works_without_raw_sockets(results: dict[str, Any]) -> None:
    echo_reply = 0
    assert results["ping"] == echo_reply


def test_unit_without_gpus_sees_no_gpus_of_the_node(results: dict[str, Any]) -> None:
    assert results["devices"] == "void"


def test_socket_directory_cannot_be_filled(results: dict[str, Any]) -> None:
    assert results["fill"] == "ENOSPC"
    assert results["filledBytes"] <= 1 << 20


def test_program_cannot_bind_the_port_of_the_running_sidecar(results: dict[str, Any]) -> None:
    assert results["bind"] == "EADDRINUSE"


def test_no_http_request_drains_the_worker(results: dict[str, Any], kube: Client) -> None:
    assert results["drain"] == [404, 404]
    (pod,) = pods(kube)
    assert pod.status
    address = str(pod.status.podIP)
    assert http_status(address, "/drain") == 404
    assert http_status(address, "/readyz") == 200  # a worker that drains is not ready


def http_status(address: str, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}:{SIDECAR_PORT}{path}", timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
