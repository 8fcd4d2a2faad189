"""The API conforms to its OpenAPI document, and the check detects an API that does not."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.runtime_api.invocations.routes import INVOKE_EXAMPLES
from tests.integration.jetstream.conftest import account_options
from tests.integration.runtime_api.edge.conftest import ApiProcess
from tests.integration.runtime_api.invocations.conftest import serverless_backend
from tests.integration.runtime_api.invocations.test_live_invocation_states import invocation
from tests.integration.runtime_api.live_platform import TOKEN, LivePlatform, seed_request
from tests.integration.runtime_api.sample_api import SAMPLE_TOKEN, sample_api
from tests.integration.runtime_api.schemathesis_run import run_schemathesis

POD_LIMIT_MANIFESTS = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: conformance, namespace: default}
spec: {hard: {pods: 20}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: conformance}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [runtime.lokiwager.io], apiVersions: ["*"], operations: [CREATE], resources: [gpuunits]}
  validations:
  - expression: "!object.metadata.name.matches('^stock-[0-9a-f]+-[0-9]{2,}$')"
    message: one seeding may create at most ten stock units
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: conformance}
spec: {policyName: conformance, validationActions: [Deny]}
"""
"""schemathesis may request thousands of pods. The quota and the policy limit them."""


FUNCTIONS = """
apiVersion: runtime.lokiwager.io/v1alpha1
kind: GPUUnit
metadata: {{name: conformance-{0}, namespace: runtime-instance}}
spec: {{specName: g1.1, image: i, running: false, serverless: {{enabled: true, requestID: {0}}}}}
"""


@pytest.fixture
def functions(platform: LivePlatform, tmp_path: Path) -> Iterator[None]:
    """The functions of the examples with a backend that executes their invocations, and a dead letter."""
    names = [example["serverlessRequestID"] for example in INVOKE_EXAMPLES.values()]
    manifest = tmp_path / "functions.yaml"
    manifest.write_text("---".join(map(FUNCTIONS.format, names)))
    platform.control_plane.kubectl("apply", "--server-side", f"--filename={manifest}")
    with running_in_thread(partial(run_backend, account_options(platform.nats_account))):
        yield
    platform.control_plane.kubectl("delete", f"--filename={manifest}", "--wait=false", "--ignore-not-found")


async def run_backend(options: ConnectionOptions, ready: threading.Event, stopping: asyncio.Event) -> None:
    async with serverless_backend(options) as backend, backend.running_workers(), backend.running_result_store():
        dead = invocation("double", "dead")
        await backend.publish_dead_letter(Stream.INVOKE, encode(dead), 1, decoded=dead)
        ready.set()
        await stopping.wait()


@contextmanager
def running_in_thread(work: Callable[[threading.Event, asyncio.Event], Awaitable[None]]) -> Iterator[None]:
    """Run in a thread, because the test blocks while it waits for schemathesis."""
    ready, stopping = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(work(ready, stopping),))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(60)
        loop.close()


@pytest.fixture
def api_base_url(platform: LivePlatform, tmp_path: Path, functions: None) -> Iterator[str]:
    """The URL of a real replica with some stock and functions."""
    kubectl, replica = platform.control_plane.kubectl, platform.shared_replicas[0]
    manifests = tmp_path / "pod-limit.yaml"
    manifests.write_text(POD_LIMIT_MANIFESTS)
    kubectl("apply", "--server-side", f"--filename={manifests}")
    seeded = replica.request(
        "/api/v1/operator/stock-units", "POST", seed_request("g1.1", 10, "stock-for-conformance"), TOKEN
    )
    assert seeded.status == 202, seeded
    kubectl(
        *("wait", "gpuunits", "--all", "--namespace=runtime-stock", "--for=jsonpath={.status.phase}=Ready"),
        "--timeout=120s",
    )
    yield replica.url("")
    # Delete the pools before the policy. The quota stays: Kubernetes needs time to delete the pods of the pools.
    kubectl("delete", "stockpools", "--all", "--namespace=default", "--wait=false")
    kubectl("delete", "validatingadmissionpolicybinding", "conformance")


@pytest.fixture
def api_token() -> str:
    return TOKEN


REQUIRED_RESPONSES = {
    *(("createStockPool", 202), ("deleteStockPool", 204), ("seedStock", 202), ("seedStock", 200)),
    *(("invoke", 202), ("invoke", 200)),
    *(("createUnit", 201), ("createUnit", 200), ("updateUnit", 200), ("stopUnit", 200), ("deleteUnit", 204)),
}
"""Responses that the run must have produced. An API that rejects every request would also conform to its document."""


def test_running_api_conforms_to_its_openapi_document(
    platform: LivePlatform, api_base_url: str, api_token: str, tmp_path: Path
) -> None:
    report = run_schemathesis(api_base_url, api_token, tmp_path)
    assert not report.failures, report.output
    assert report.untested_count == 0, report.output
    assert REQUIRED_RESPONSES - audited_responses(platform.shared_replicas[0]) == set()


def audited_responses(replica: ApiProcess) -> set[tuple[str, int]]:
    """The routes and statuses of the writes in the audit log."""
    return {(line["route"], line["status"]) for line in replica.log_lines if line["logger"] == "gpu_runtime.audit"}


def break_response(request: web.Request, response: web.Response) -> web.Response:
    """Violate the document in a different way for each operation."""
    match request.method, response.status:
        case "GET", 200 if request.path == "/api/v1/health":
            response.set_status(418)
        case "GET", 200 if request.path.endswith("/widgets"):
            response.content_type = "text/plain"
        case "GET", 404:
            del response.headers["X-Request-ID"]
        case "POST", 202:
            response.body = b'{"data": {"replicas": "many"}}'
        case "DELETE", 404:
            response.set_status(500)
    return response


def test_nonconforming_api_is_detected(tmp_path: Path) -> None:
    with sample_api(break_response, skip_validation=True) as base_url:
        report = run_schemathesis(base_url, SAMPLE_TOKEN, tmp_path, phases="examples,coverage")
    assert report.failures >= {
        "UndefinedStatusCode",
        "UndefinedContentType",
        "MissingHeaders",
        "JsonSchemaError",
        "AcceptedNegativeData",
        "IgnoredAuth",
        "ServerError",
    }, report.output
