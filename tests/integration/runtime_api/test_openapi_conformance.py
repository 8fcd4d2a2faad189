"""The API does what its document says, whatever it is sent; and what would tell us otherwise does tell us."""

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
from tests.integration.runtime_api.sample_api import SAMPLE_TOKEN as SHELF_TOKEN
from tests.integration.runtime_api.sample_api import sample_api
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
    message: there is no room for more than ten stock units of one seeding
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: conformance}
spec: {policyName: conformance, validationActions: [Deny]}
"""
"""What is sent may well ask for thousands of pods. This cluster has no room for them, and says so."""


FUNCTIONS = """
apiVersion: runtime.lokiwager.io/v1alpha1
kind: GPUUnit
metadata: {{name: conformance-{0}, namespace: runtime-instance}}
spec: {{specName: g1.1, image: i, running: false, serverless: {{enabled: true, requestID: {0}}}}}
"""


@pytest.fixture
def functions(platform: LivePlatform, tmp_path: Path) -> Iterator[None]:
    """The functions of the examples, and somebody who answers for them; and a dead letter."""
    names = [example["serverlessRequestID"] for example in INVOKE_EXAMPLES.values()]
    manifest = tmp_path / "functions.yaml"
    manifest.write_text("---".join(map(FUNCTIONS.format, names)))
    platform.control_plane.kubectl("apply", "--server-side", f"--filename={manifest}")
    with running_in_thread(partial(other_side_at_work, account_options(platform.nats_account))):
        yield
    platform.control_plane.kubectl("delete", f"--filename={manifest}", "--wait=false", "--ignore-not-found")


async def other_side_at_work(how: ConnectionOptions, there: threading.Event, stopping: asyncio.Event) -> None:
    async with serverless_backend(how) as side, side.running_workers(), side.running_result_store():
        await side.publish_dead_letter(Stream.INVOKE, encode(invocation("double", "dead")), 1)
        there.set()
        await stopping.wait()


@contextmanager
def running_in_thread(work: Callable[[threading.Event, asyncio.Event], Awaitable[None]]) -> Iterator[None]:
    """Beside the test, which waits for another program."""
    there, stopping = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_until_complete, args=(work(there, stopping),))
    running.start()
    try:
        assert there.wait(60)
        yield
    finally:
        loop.call_soon_threadsafe(stopping.set)
        running.join(60)
        loop.close()


@pytest.fixture
def api_base_url(platform: LivePlatform, tmp_path: Path, functions: None) -> Iterator[str]:
    """A real replica, with a little stock and a few functions."""
    kubectl, replica = platform.control_plane.kubectl, platform.shared_replicas[0]
    room = tmp_path / "room.yaml"
    room.write_text(POD_LIMIT_MANIFESTS)
    kubectl("apply", "--server-side", f"--filename={room}")
    seeded = replica.request(
        "/api/v1/operator/stock-units", "POST", seed_request("g1.1", 10, "stock-for-conformance"), TOKEN
    )
    assert seeded.status == 202, seeded
    kubectl(
        *("wait", "gpuunits", "--all", "--namespace=runtime-stock", "--for=jsonpath={.status.phase}=Ready"),
        "--timeout=120s",
    )
    yield replica.url("")
    # The pools go first, and the room for their pods never grows again: Kubernetes takes its time to collect them.
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
"""What must have succeeded now and then. An API that refuses everything would keep every promise, too."""


def test_running_api_conforms_to_its_openapi_document(
    platform: LivePlatform, api_base_url: str, api_token: str, tmp_path: Path
) -> None:
    verdict = run_schemathesis(api_base_url, api_token, tmp_path)
    assert not verdict.failures, verdict.output
    assert verdict.untested_count == 0, verdict.output
    assert REQUIRED_RESPONSES - audited_responses(platform.shared_replicas[0]) == set()


def audited_responses(replica: ApiProcess) -> set[tuple[str, int]]:
    """The writes it was asked for, each with a status that it answered."""
    return {(line["route"], line["status"]) for line in replica.log_lines if line["logger"] == "gpu_runtime.audit"}


def break_response(request: web.Request, response: web.Response) -> web.Response:
    """Each operation does another thing wrong."""
    match request.method, response.status:
        case "GET", 200 if request.path == "/api/v1/health":
            response.set_status(418)
        case "GET", 200 if request.path.endswith("/shelves"):
            response.content_type = "text/plain"
        case "GET", 404:
            del response.headers["X-Request-ID"]
        case "POST", 202:
            response.body = b'{"data": {"replicas": "many"}}'
        case "DELETE", 404:
            response.set_status(500)
    return response


def test_nonconforming_api_is_detected(tmp_path: Path) -> None:
    with sample_api(break_response, careless=True) as base_url:
        verdict = run_schemathesis(base_url, SHELF_TOKEN, tmp_path, phases="examples,coverage")
    assert verdict.failures >= {
        "UndefinedStatusCode",
        "UndefinedContentType",
        "MissingHeaders",
        "JsonSchemaError",
        "AcceptedNegativeData",
        "IgnoredAuth",
        "ServerError",
    }, verdict.output
