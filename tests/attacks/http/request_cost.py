"""Measures the CPU time that the event loop of a replica spends on one request body."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.well_known import operation_name, return_operation_id
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.messages.invocation_messages import invoke_message
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision
from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.kube.meta import ObjectMeta
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.http.decoding import decode_body
from gpu_runtime.runtime_api.http.envelope import error_response
from gpu_runtime.runtime_api.http.route import Route
from gpu_runtime.runtime_api.invocations.enqueue import prepare_enqueue
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation
from gpu_runtime.runtime_api.openapi_routes import documented_routes
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.stock_admission import admit_pool, admit_seed
from gpu_runtime.runtime_api.storages.storage_admission import admit_storage, apply_resize, storage_request_hash
from gpu_runtime.runtime_api.units.merge_patch import create_merge_patch
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, admit_worker, apply_update, extend

NAMESPACES = APINamespaceSettings()
UNIT = GPUUnit(
    metadata=ObjectMeta(name="web", namespace="runtime-instance"),
    spec=GPUUnitSpec(spec_name="g1.1", image="nginx", memory="1Gi", gpu=1, stop_unless_extended_seconds=60),
)


def _admit_invocation(body: Any) -> None:
    admitted = structs.replace(admit_invocation(body, InvocationLimits()), function_id="fid")
    invocation, record = prepare_enqueue(admitted, SystemClock().now())
    invoke_message(Subjects(), invocation, RecordAtRevision(record, 1), TicketKeyring((b"k" * 32,)))


ADMISSIONS: Mapping[str, Callable[[Any], object]] = {
    "createUnit": lambda body: canonical_request(admit_unit(body, NAMESPACES)),
    "createWorker": lambda body: canonical_request(admit_worker(body, NAMESPACES)),
    "updateUnit": lambda body: create_merge_patch(UNIT.spec, apply_update(UNIT, body)),
    "extendUnit": lambda body: extend(UNIT, body.until),
    "createStorage": lambda body: storage_request_hash(admit_storage(body, NAMESPACES)),
    "updateStorage": lambda body: apply_resize(GPUStorageSpec(size="1Gi", storage_class_name="a"), body),
    "createStockPool": lambda body: canonical_request(admit_pool(body, NAMESPACES)),
    "seedStock": lambda body: canonical_request(admit_seed(body)),
    "returnStock": lambda body: [
        operation_name(each) for each in (return_operation_id(body.unit_uid), body.operation_id)
    ],
    "invoke": _admit_invocation,
}
"""What a route does with a decoded body before it calls another process, by the name of the route."""

BODY_ROUTES = {route.name: route for route in documented_routes() if route.body is not None}

_ENVS = [{"name": f"VARIABLE_{index}", "value": "v" * 80} for index in range(250)]
_TEMPLATE = {"args": ["--flag=value"] * 100, "envs": _ENVS, "ports": [{"name": "http", "port": 8080}]}
_IDENTITY = {"operationID": "op-1", "name": "web", "specName": "g1.1", "image": "nginx"}
_RECORDS = [{"id": 100_000 + index, "score": 0.25, "text": "a short text"} for index in range(9000)]
VALID_BODIES: Mapping[str, Any] = {
    "createUnit": _IDENTITY | {"template": _TEMPLATE},
    "createWorker": _IDENTITY | {"template": _TEMPLATE, "serverless": {"workerOf": "f"}},
    "updateUnit": {"template": _TEMPLATE},
    "extendUnit": {"until": "2030-01-31T12:00:00Z"},
    "createStorage": {"name": "cache", "size": "20Gi"},
    "updateStorage": {"size": "20Gi"},
    "createStockPool": _IDENTITY | {"replicas": 1, "template": _TEMPLATE},
    "seedStock": {"operationID": "op-1", "specName": "g1.1", "replicas": 1},
    "returnStock": {"operationID": "op-1", "unitUID": "0b7a4f0e-6a64-4a0f-9a3e-0d7f1f6c2f11"},
    "invoke": {"serverlessRequestID": "f", "payload": _RECORDS},
}


def valid_body(route: Route) -> bytes:
    """Return a valid body of the maximum size of the route. If its fields are smaller, spaces follow."""
    raw = json.dumps(VALID_BODIES[route.name]).encode()
    assert len(raw) <= route.max_body_bytes
    return raw + b" " * (route.max_body_bytes - len(raw))


def handle(route: Route, raw: bytes) -> RuntimeFault | None:
    """Do what the API does with a body before it calls another process. Return the fault, if there is one."""
    assert route.body is not None
    try:
        ADMISSIONS[route.name](decode_body(raw, "application/json", route.body))
    except RuntimeFault as fault:
        error_response(fault, "request-1")
        return fault
    return None


def cpu_seconds(route: Route, raw: bytes, times: int = 1) -> float:
    """Return the CPU time of this thread for one body: the least of several measurements."""
    measured = []
    for _ in range(times):
        started = time.thread_time()
        handle(route, raw)
        measured.append(time.thread_time() - started)
    return min(measured)
