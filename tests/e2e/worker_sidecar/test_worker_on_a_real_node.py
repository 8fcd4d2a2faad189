"""A worker as a real pod: the user's container is root, the sidecar is not, and they meet at a socket."""

import asyncio
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.resources.core_v1 import Pod, Service

from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.process.shared_settings import NatsSettings
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings
from localcluster import dev_platform
from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.integration.conftest import CONFIG_DIR
from tests.integration.worker_sidecar.sidecar_harness import FUNCTION_ID, sidecar_harness

# No Python helper: any program that speaks HTTP at the socket will do.
FRAMEWORK = """
import http.server, os, signal, socketserver, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self):
        return "sidecar"
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(b"well")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(float(body.strip(b'"') or 0))
        self.answer(f"{os.getuid()} did {body.decode()}".encode())

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server = Server(os.environ["GPU_RUNTIME_SOCKET"], Handler)
os.chmod(os.environ["GPU_RUNTIME_SOCKET"], 0o666)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def platform_node(node: Node) -> Node:
    dev_platform.apply_kustomizations(node, CONFIG_DIR / "nats", CONFIG_DIR / "overlays" / "local")
    node.kubectl("wait", "--for=condition=Established", "--timeout=120s", "crd", "--all")
    for namespace, workload in (("messaging", "statefulset/nats"), ("runtime-system", "deployment/controller-manager")):
        node.kubectl("rollout", "status", workload, f"--namespace={namespace}", "--timeout=120s")
    return node


def function(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "runtime.lokiwager.io/v1alpha1",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": "runtime-instance"},
        "spec": {
            "specName": "g1.1",
            "gpu": 1,
            "image": "python:3.12",
            "template": {"command": ["python", "-c"], "args": [FRAMEWORK]},
            "serverless": {"enabled": True, "requestID": FUNCTION_ID},
        },
    }


def queue(kube: Client) -> WorkerSidecarSettings:
    service = kube.get(Service, "nats", namespace="messaging")
    assert service.spec
    nats = NatsSettings(urls=(f"nats://{service.spec.clusterIP}:4222",))
    return WorkerSidecarSettings(nats=nats, request_id=FUNCTION_ID, worker="test", namespace="test")


async def test_worker_serves_invocations_and_finishes_them_on_shutdown(platform_node: Node, kube: Client) -> None:
    path = platform_node.state_dir / "function.yaml"
    path.write_text(yaml.safe_dump(function("worker")))
    async with sidecar_harness(queue(kube)) as plane:
        await asyncio.to_thread(platform_node.kubectl, "apply", "-f", str(path))
        ready = ("gpuunit/worker", "--namespace=runtime-instance", "--for=condition=Ready", "--timeout=120s")
        await asyncio.to_thread(platform_node.kubectl, "wait", *ready)
        await plane.publish_dispatch("0", "first")
        first = await plane.wait_result("first")
        assert (first.state, first.body, first.worker) == (ResultState.SUCCEEDED, b'0 did "0"', "worker")
        await plane.publish_dispatch("3", "last")
        await asyncio.to_thread(
            wait_until,
            lambda: any(each.invocation_id == "last" for each in plane.events),
            60,
            lambda: "it is not begun",
        )
        await asyncio.to_thread(
            platform_node.kubectl, "delete", "gpuunit", "worker", "--namespace=runtime-instance", "--wait=false"
        )
        last = await plane.wait_result("last")
        assert (last.state, last.attempts) == (ResultState.SUCCEEDED, 1)
        await asyncio.to_thread(wait_until, lambda: pods(kube) == [], 60, lambda: f"there are still {pods(kube)}")


def pods(kube: Client) -> list[str]:
    found = kube.list(Pod, namespace="runtime-instance", labels={"runtime.lokiwager.io/unit": "worker"})
    return [each.metadata.name or "" for each in found if each.metadata]
