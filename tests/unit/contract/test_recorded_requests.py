"""Formats that outlive a process stay readable: recorded requests, request hashes, and names derived from hashes.

`UPDATE_GOLDEN=1` writes the golden files. A changed file means that operations of earlier versions cannot be resumed or
replayed. The commit that changes one says why.
"""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import Access, Framework, Serverless, StorageMount
from gpu_runtime.contract.crd.operation import Operation, OperationSpec, OperationTarget, OperationType, SourceStock
from gpu_runtime.contract.crd.template import EnvVar, Port, Template
from gpu_runtime.contract.crd.well_known import generated_pool_name, operation_name, stock_unit_name
from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.recorded_requests import (
    OPERATION_TYPES,
    RecordedPoolRequest,
    RecordedRequest,
    RecordedSeedRequest,
    RecordedStorageRequest,
    RecordedUnitRequest,
    recorded_request,
)
from gpu_runtime.contract.request_hash import canonical_request, request_hash

GOLDEN = Path(__file__).parent / "golden"
TEMPLATE = Template(
    command=("python", "-m"),
    args=("serve", ""),
    envs=(EnvVar(name="LEVEL", value="info"),),
    ports=(Port(name="http", port=8080), Port(name="dns", port=53, protocol="UDP")),
)
SERVERLESS = Serverless(
    enabled=True,
    request_id="embed",
    min_available_count=1,
    max_workers=4,
    idle_timeout_seconds=60,
    concurrency=2,
    framework=Framework(socket_path="/run/f.sock", invoke_path="/call", health_path="/live"),
    worker_of="embed",
)
RESERVATION: dict[str, Any] = {"memory": "16Gi", "gpu": 1, "cpu": "4", "cpu_limit": "8", "ephemeral_storage": "20Gi"}
REQUESTS: dict[str, RecordedRequest] = {
    "create-unit": RecordedUnitRequest(
        operation_id="unit-1",
        name="web",
        namespace="batch",
        spec_name="g1.1",
        stock_namespace="runtime-stock",
        image="python:3.12",
        template=TEMPLATE,
        access=Access(primary_port="http", scheme="https"),
        storage_mounts=(StorageMount(name="data", mount_path="/data", read_only=True),),
        serverless=SERVERLESS,
    ),
    "create-unit-without-options": RecordedUnitRequest(
        operation_id="unit-2", name="web", namespace="batch", spec_name="g1.1", image="python:3.12"
    ),
    "seed-stock": RecordedSeedRequest(operation_id="seed-1", spec_name="g1.1", replicas=3, **RESERVATION),
    "create-stock-pool": RecordedPoolRequest(
        operation_id="pool-1",
        name="warm",
        namespace="default",
        spec_name="g1.1",
        image="python:3.12",
        **RESERVATION,
        replicas=2,
        template=TEMPLATE,
    ),
}
STORAGE = RecordedStorageRequest(name="data", namespace="batch", size="21474836480", storage_class_name="fast")


def check_golden(name: str, current: Any) -> Any:
    """Compare the value with the golden file and return the content of the file."""
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(json.dumps(current, indent=2, sort_keys=True) + "\n")
    golden = json.loads(path.read_text())
    assert current == golden
    return golden


def operation_of(request: RecordedRequest, text: str) -> Operation:
    target = OperationTarget(kind="GPUUnit", namespace="batch", name="web")
    spec = OperationSpec(
        operation_id="one", type=OPERATION_TYPES[type(request)], request_hash="", request=text, target=target
    )
    return Operation(spec=spec)


@pytest.mark.parametrize(("name", "request_"), REQUESTS.items(), ids=REQUESTS)
def test_recorded_request_and_its_hash_are_those_of_earlier_versions(name: str, request_: RecordedRequest) -> None:
    text = canonical_request(request_)
    hash_ = request_hash(OPERATION_TYPES[type(request_)], text)
    golden = check_golden(name, {"request": json.loads(text), "requestHash": hash_})
    stored = msgspec.json.encode(golden["request"]).decode()
    assert recorded_request(operation_of(request_, stored), type(request_)) == request_


def test_every_operation_type_has_a_golden_request() -> None:
    assert {OPERATION_TYPES[type(each)] for each in REQUESTS.values()} == set(OperationType)


def test_request_of_a_storage_is_that_of_earlier_versions() -> None:
    check_golden("create-storage", {"request": json.loads(canonical_request(STORAGE))})


def test_derived_names_are_those_of_earlier_versions() -> None:
    ids = ("unit-1", "an ID with spaces / and ü", "x" * 256)
    check_golden(
        "derived-names",
        {
            id_: {
                "operation": operation_name(id_),
                "pool": generated_pool_name(id_),
                "stockUnits": [stock_unit_name(id_, index) for index in (0, 999)],
            }
            for id_ in ids
        },
    )


@pytest.mark.parametrize("text", ["", "not JSON", '{"replicas":3}', "[" * 5000])
def test_undecodable_request_is_unavailable(text: str) -> None:
    with pytest.raises(Unavailable, match="the recorded request of operation one cannot be decoded"):
        recorded_request(operation_of(REQUESTS["seed-stock"], text), RecordedSeedRequest)


def test_unit_keeps_the_reservation_of_its_stock() -> None:
    request = REQUESTS["create-unit"]
    assert isinstance(request, RecordedUnitRequest)
    stock = SourceStock(namespace="runtime-stock", name="stock-1", uid="u1", **RESERVATION)
    spec = request.unit_spec(stock)
    assert {name: getattr(spec, name) for name in RESERVATION} == RESERVATION
