"""Validation of quantities, names, paths, specs and requests never raises, and normalization is idempotent."""

import re
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gpu_runtime.activator.runtime_api_client import fault_from_response as api_fault
from gpu_runtime.contract.crd.gpu_storage import GPUStorageSpec
from gpu_runtime.contract.crd.gpu_unit import (
    Access,
    Framework,
    GPUUnitSpec,
    Serverless,
    StorageMount,
)
from gpu_runtime.contract.crd.operation import OperationType
from gpu_runtime.contract.crd.probes import (
    ExecCheck,
    HTTPGetCheck,
    Probe,
    Probes,
    ReadinessProbe,
    TCPSocketCheck,
)
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.crd.template import (
    EnvVar,
    EnvVarSource,
    InitCommand,
    Port,
    SecretKey,
    SecretMount,
    Template,
)
from gpu_runtime.contract.crd.well_known import Annotation, UnitRole
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.operation_rules import attempt_of
from gpu_runtime.contract.request_hash import canonical_request, request_hash
from gpu_runtime.contract.unit_lifetime import RunTimes, stops_at
from gpu_runtime.contract.validation.mounts import is_within, mount_path_errors, normalize_path
from gpu_runtime.contract.validation.normalize import normalize_pool, normalize_storage, normalize_unit
from gpu_runtime.contract.validation.specs import growth_errors, pool_errors, storage_errors, unit_errors
from gpu_runtime.contract.validation.values import bytes_errors, name_errors
from gpu_runtime.controller_manager.workload.container_probes import container_probes
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.errors import error_from_response as kube_error
from gpu_runtime.kube.meta import KubeObject, ObjectMeta, parse_timestamp
from gpu_runtime.kube.quantity import Quantity, canonical_quantity, same_quantity
from gpu_runtime.runtime_api.dead_letters.service import start_sequence
from gpu_runtime.runtime_api.http.decoding import decode_body, decode_query
from gpu_runtime.runtime_api.http.paging import encode_cursor
from gpu_runtime.runtime_api.http.route import Body
from gpu_runtime.runtime_api.invocations.listing import start_position
from gpu_runtime.runtime_api.invocations.requests import Invoke, ListInvocations
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, SeedStock
from gpu_runtime.runtime_api.storages.requests import CreateStorage, UpdateStorage
from gpu_runtime.runtime_api.units.requests import CreateUnit, ExtendUnit, ListUnits, UpdateUnit
from tests.fuzz.fuzz_settings import call_or_rejection, fuzzed
from tests.fuzz.strategies import message_bytes, texts

QUANTITIES = st.one_of(
    st.from_regex(r"[+-]?[0-9]{0,12}\.?[0-9]{0,12}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?", fullmatch=True),
    texts(),
)
COUNTS = st.one_of(st.integers(-2, 5), st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**63), 65535, 65536]))
PATHS = st.one_of(st.text("/.a:~ \0", max_size=12), st.text("/.a", max_size=12).map("/".__add__), texts())
NAMES = st.one_of(st.from_regex(r"[a-z]([-a-z0-9]{0,62}[a-z0-9])?", fullmatch=True), texts("az-09.A", max_size=70))


def tuples_of(item: SearchStrategy[Any], max_size: int = 3) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(item, max_size=max_size).map(tuple)


SECRET_NAMES = st.builds("".join, st.tuples(st.sampled_from(["", "unit-", "unit"]), texts("az.-9")))
TEMPLATES = st.builds(
    Template,
    working_dir=PATHS,
    init=st.none() | st.builds(InitCommand, command=tuples_of(texts()), args=tuples_of(texts())),
    shared_memory=QUANTITIES,
    run_as_user=st.none() | COUNTS,
    run_as_group=st.none() | COUNTS,
    fs_group=st.none() | COUNTS,
    termination_grace_period_seconds=st.none() | COUNTS,
    image_pull_policy=st.sampled_from(["", "Always", "never"]),
    image_pull_secrets=tuples_of(SECRET_NAMES),
    secret_mounts=tuples_of(st.builds(SecretMount, name=SECRET_NAMES, mount_path=PATHS)),
    command=tuples_of(texts()),
    args=tuples_of(texts()),
    envs=tuples_of(
        st.builds(
            EnvVar,
            name=texts("ABZ._-9"),
            value=texts(),
            value_from=st.none()
            | st.builds(EnvVarSource, secret=st.builds(SecretKey, name=SECRET_NAMES, key=texts("aA._-"))),
        )
    ),
    ports=tuples_of(
        st.builds(Port, name=texts("ab-9"), port=COUNTS, protocol=st.sampled_from(["TCP", "udp", "", "ICMP"]))
    ),
)
FUNCTIONS = st.builds(
    Serverless,
    enabled=st.booleans(),
    request_id=texts("az_-9"),
    min_available_count=COUNTS,
    max_workers=COUNTS,
    idle_timeout_seconds=COUNTS,
    concurrency=COUNTS,
    framework=st.builds(Framework, socket_path=PATHS, invoke_path=PATHS, health_path=PATHS),
    worker_of=NAMES,
)
MOUNTS = tuples_of(st.builds(StorageMount, name=NAMES, mount_path=PATHS, read_only=st.booleans()))
CHECKS: dict[str, Any] = {
    "http_get": st.none()
    | st.builds(HTTPGetCheck, port=texts("ab"), path=PATHS, scheme=st.sampled_from(["HTTP", "HTTPS", "http"])),
    "tcp_socket": st.none() | st.builds(TCPSocketCheck, port=texts("ab")),
    "exec": st.none() | st.builds(ExecCheck, command=tuples_of(texts())),
    "initial_delay_seconds": COUNTS,
    "period_seconds": COUNTS,
    "timeout_seconds": COUNTS,
    "failure_threshold": COUNTS,
}
PROBES = st.builds(
    Probes,
    startup=st.none() | st.builds(Probe, **CHECKS),
    readiness=st.none() | st.builds(ReadinessProbe, **CHECKS, disabled=st.booleans()),
    liveness=st.none() | st.builds(Probe, **CHECKS),
)
UNITS = st.builds(
    GPUUnitSpec,
    cpu=QUANTITIES,
    cpu_limit=QUANTITIES,
    ephemeral_storage=QUANTITIES,
    probes=st.none() | PROBES,
    max_duration_seconds=st.none() | COUNTS,
    stop_unless_extended_seconds=st.none() | COUNTS,
    delete_after_seconds=st.none() | COUNTS,
    extended_until=st.none() | texts("0123456789-:TZ") | st.datetimes().map(str),
    spec_name=texts("aA.-_1"),
    image=texts(),
    memory=QUANTITIES,
    gpu=COUNTS,
    template=TEMPLATES,
    access=st.none() | st.builds(Access, primary_port=texts("ab"), scheme=st.sampled_from(["http", "HTTPS", "", "x"])),
    storage_mounts=MOUNTS,
    serverless=st.none() | FUNCTIONS,
    running=st.booleans(),
)
POOLS = st.builds(
    StockPoolSpec,
    spec_name=texts("aA.-_1"),
    image=texts(),
    memory=QUANTITIES,
    gpu=COUNTS,
    replicas=COUNTS,
    template=TEMPLATES,
)
STORAGES = st.builds(GPUStorageSpec, size=QUANTITIES, storage_class_name=texts())


@fuzzed(100)
@given(QUANTITIES)
@example("1" * 5000)
@example("1e100")
@example("-0")
def test_quantity_is_normalized_and_validated(text: str) -> None:
    canonical = canonical_quantity(text)
    assert canonical_quantity(canonical) == canonical
    list(bytes_errors(text, "size"))
    try:
        amount = Quantity(text)
    except ValueError:
        assert canonical == text
        return
    if (amount.value * 10**9).denominator == 1:  # Kubernetes rounds a more precise value
        assert same_quantity(text, canonical)
    assert list(growth_errors(text, text)) == list(bytes_errors(text, "size"))


@fuzzed(100)
@given(NAMES)
def test_name_is_valid_if_kubernetes_accepts_it(name: str) -> None:
    is_label = bool(re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)) and len(name) <= 63
    assert (not list(name_errors(name))) == is_label


@fuzzed(100)
@given(PATHS, PATHS)
def test_mount_path_is_normalized_and_contains_itself(path: str, other: str) -> None:
    assert normalize_path(normalize_path(path)) == normalize_path(path)
    assert is_within(path, path)
    list(mount_path_errors(path, "mountPath"))
    if is_within(path, other) and is_within(other, path):
        assert normalize_path(path) == normalize_path(other)


@fuzzed(100)
@given(UNITS, st.sampled_from(UnitRole))
def test_unit_and_its_normalized_form_validate_equally(spec: GPUUnitSpec, role: UnitRole) -> None:
    normalized = normalize_unit(spec)
    assert normalize_unit(normalized) == normalized
    errors = unit_errors(spec, role)
    assert all(str(error) for error in errors)
    assert errors or not unit_errors(normalized, role)
    one, other = canonical_request(normalized), canonical_request(normalize_unit(normalized))
    assert request_hash(OperationType.CREATE_UNIT, one) == request_hash(OperationType.CREATE_UNIT, other)
    assert msgspec.json.decode(msgspec.json.encode(spec), type=GPUUnitSpec) == spec
    if not errors:
        stops_at(spec, RunTimes("2030-01-01T00:00:00Z", "2030-01-01T00:00:01Z"))
    container_probes(spec)


@fuzzed(100)
@given(st.one_of(POOLS, STORAGES))
def test_pool_and_storage_are_validated_without_exception(spec: StockPoolSpec | GPUStorageSpec) -> None:
    if isinstance(spec, StockPoolSpec):
        assert normalize_pool(normalize_pool(spec)) == normalize_pool(spec)
        assert pool_errors(spec) or not pool_errors(normalize_pool(spec))
    else:
        assert normalize_storage(normalize_storage(spec)) == normalize_storage(spec)
        assert storage_errors(spec) or not storage_errors(normalize_storage(spec))


BODIES: dict[type[Body], dict[str, Any]] = {
    CreateUnit: {"operationID": "o", "name": "n", "specName": "g", "image": "i", "template": {"ports": []}},
    UpdateUnit: {"image": "i", "access": {"scheme": "http"}, "gpu": 1, "deleteAfterSeconds": None},
    ExtendUnit: {"until": "2030-01-31T12:00:00Z"},
    SeedStock: {"operationID": "o", "specName": "g", "memory": "1Gi", "gpu": 1, "replicas": 2},
    CreateStockPool: {"operationID": "o", "specName": "g", "replicas": 2, "template": {"envs": [{"name": "A"}]}},
    CreateStorage: {"name": "s", "size": "1Gi"},
    UpdateStorage: {"size": "2Gi"},
    Invoke: {"serverlessRequestID": "f", "payload": {"n": [1, {}]}, "headers": {"a": "b"}, "timeoutSeconds": 5},
}


REQUEST_BODIES = st.one_of([st.tuples(st.just(model), message_bytes([sample])) for model, sample in BODIES.items()])


@fuzzed(100)
@given(REQUEST_BODIES)
@example((Invoke, b'{"serverlessRequestID":"f","payload":' + b"[" * 5000 + b"]" * 5000 + b"}"))
@example((Invoke, b'{"serverlessRequestID":"f","timeoutSeconds":' + b"9" * 5000 + b"}"))
@example((CreateUnit, b"\xff"))
def test_body_is_decoded_or_invalid(sent: tuple[type[Body], bytes]) -> None:
    model, raw = sent
    body, rejection = call_or_rejection(Invalid, lambda: decode_body(raw, "application/json", model))
    assert isinstance(body, model) or (rejection and rejection.errors)


PARAMETERS = texts() | st.sampled_from(["limit", "phase", "serverless", "continue"])


@fuzzed(100)
@given(st.lists(st.tuples(PARAMETERS, texts()), max_size=4))
def test_query_is_decoded_or_invalid(pairs: list[tuple[str, str]]) -> None:
    for model in (ListUnits, ListInvocations):
        query, rejection = call_or_rejection(Invalid, partial(decode_query, pairs, model))
        assert isinstance(query, model) or (rejection and rejection.errors)


@fuzzed(100)
@given(st.text() | st.tuples(texts(), texts() | st.just("9" * 5000)).map(encode_cursor))
@example(encode_cursor(("dead-letters", "9" * 5000)))
@example(encode_cursor(("invoke", str(2**64))))
def test_continue_token_is_decoded_or_invalid(after: str) -> None:
    query = ListInvocations(serverless_request_id="f", after=after)
    for read in (lambda: start_sequence(after), lambda: start_position(query)):
        position, rejection = call_or_rejection(Invalid, read)
        assert position is not None or (rejection and rejection.errors)


@fuzzed(100)
@given(st.integers(400, 599), message_bytes([{"error": {"code": "no_stock", "message": "none"}}, {"code": 409}]))
@example(409, b'{"error":{"code":"\xff"}}')
def test_any_error_response_maps_to_a_fault(status: int, body: bytes) -> None:
    assert str(api_fault(status, body))
    assert isinstance(kube_error(status, body), KubeError)


UNUSUAL_TIMESTAMPS = (
    "2026-12-31T23:59:60Z",
    "2026-01-01T00:00:00",
    "0001-01-01T00:00:00+23:59",
    "2026-01-01t00:00:00z",
)


@fuzzed(100)
@given(texts() | st.datetimes().map(datetime.isoformat) | st.sampled_from(UNUSUAL_TIMESTAMPS), texts())
@example("2026-12-31T23:59:60Z", "9" * 5000)
def test_any_object_metadata_is_parsed_without_exception(time: str, attempt: str) -> None:
    parsed = parse_timestamp(time)
    assert parsed is None or parsed < datetime.now(UTC) or parsed >= datetime(2020, 1, 1, tzinfo=UTC)
    obj = KubeObject(metadata=ObjectMeta(annotations={Annotation.OPERATION_ATTEMPT: attempt}))
    assert attempt_of(obj) >= 0
