"""A worker as a real pod: the user's container runs as root, the sidecar does not, and they share a unix socket."""

import asyncio
from typing import Any

import yaml
from lightkube import Client
from lightkube.resources.core_v1 import Pod, Service

from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.process.shared_settings import NatsSettings
from gpu_runtime.worker_sidecar.settings import WorkerSidecarSettings
from localcluster.node import Node
from localcluster.supervisor_client import wait_until
from tests.integration.worker_sidecar.sidecar_harness import sidecar_harness

REQUEST_ID = "fn-1"

# The function does not use gpu_runtime.framework: any HTTP server on the unix socket works.
FRAMEWORK_SOURCE = """
import http.server, os, signal, socketserver, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self):
        return "sidecar"
    def respond(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.respond(b"ok")
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(float(body.strip(b'"') or 0))
        self.respond(f"{os.getuid()} ran {body.decode()}".encode())

class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server = Server(os.environ["GPU_RUNTIME_SOCKET"], Handler)
os.chmod(os.environ["GPU_RUNTIME_SOCKET"], 0o666)
server.serve_forever()
"""


def function_manifest(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "runtime.lokiwager.io/v1alpha1",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": "runtime-instance"},
        "spec": {
            "specName": "g1.1",
            "gpu": 1,
            "image": "python:3.12",
            "template": {"command": ["python", "-c"], "args": [FRAMEWORK_SOURCE]},
            "serverless": {"enabled": True, "requestID": REQUEST_ID},
        },
    }


def harness_settings(kube: Client, function_id: str) -> WorkerSidecarSettings:
    service = kube.get(Service, "nats", namespace="messaging")
    assert service.spec
    nats = NatsSettings(urls=(f"nats://{service.spec.clusterIP}:4222",))
    return WorkerSidecarSettings(
        nats=nats, function_id=function_id, request_id=REQUEST_ID, worker="test", namespace="test"
    )


async def test_worker_serves_invocations_and_finishes_them_on_shutdown(deployed_platform: Node, kube: Client) -> None:
    path = deployed_platform.state_dir / "function.yaml"
    path.write_text(yaml.safe_dump(function_manifest("worker")))
    await asyncio.to_thread(deployed_platform.kubectl, "apply", "-f", str(path))
    condition = ("gpuunit/worker", "--namespace=runtime-instance", "--for=condition=Ready", "--timeout=120s")
    await asyncio.to_thread(deployed_platform.kubectl, "wait", *condition)
    output = f'--output=jsonpath={{.items[?(@.spec.requestID=="{REQUEST_ID}")].spec.functionID}}'
    queue = ("functionqueues", "--namespace=runtime-system", output)
    function_id = await asyncio.to_thread(deployed_platform.kubectl, "get", *queue)
    async with sidecar_harness(harness_settings(kube, function_id)) as harness:
        await harness.publish_dispatch("0", "first")
        first = await harness.wait_result("first")
        assert (first.state, first.body, first.worker) == (ResultState.SUCCEEDED, b'0 ran "0"', "worker")
        await harness.publish_dispatch("3", "last")
        await asyncio.to_thread(
            wait_until,
            lambda: any(each.invocation_id == "last" for each in harness.events),
            60,
            lambda: "the worker did not start the invocation",
        )
        await asyncio.to_thread(
            deployed_platform.kubectl, "delete", "gpuunit", "worker", "--namespace=runtime-instance", "--wait=false"
        )
        last = await harness.wait_result("last")
        assert (last.state, last.attempts) == (ResultState.SUCCEEDED, 1)
        await asyncio.to_thread(wait_until, lambda: pods(kube) == [], 60, lambda: f"remaining pods: {pods(kube)}")


def pods(kube: Client) -> list[str]:
    listed = kube.list(Pod, namespace="runtime-instance", labels={"runtime.lokiwager.io/unit": "worker"})
    return [each.metadata.name or "" for each in listed if each.metadata]
