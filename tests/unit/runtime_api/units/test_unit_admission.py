"""Invalid unit requests are rejected with all errors, by the field paths of the JSON request."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, GPUUnitStatus
from gpu_runtime.contract.crd.probes import DEFAULT_READINESS_PROBE, Probes, ReadinessProbe
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Invalid, LifetimeEnded
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.unit_lifetime import LIFETIME_FIELDS
from gpu_runtime.kube.meta import ObjectMeta
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, admit_worker, apply_update, extend

NAMESPACES = APINamespaceSettings(units=("runtime-instance", "batch"))
HTTP = {"ports": [{"name": "http", "port": 8080}]}
VALID_REQUEST = {
    "operationID": "unit-1",
    "name": "web",
    "namespace": "batch",
    "specName": "g1.1",
    "stockNamespace": "runtime-stock",
    "image": "python:3.12",
    "template": {"command": ["python"], "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}]},
    "access": {"primaryPort": "http", "scheme": "http"},
    "storageMounts": [{"name": "data", "mountPath": "/data"}],
    "serverless": {"enabled": True, "requestID": "f"},
}
EXISTING_SPEC = {
    "specName": "g1.1",
    "image": "python:3.12",
    "memory": "16Gi",
    "gpu": 1,
    "template": {"command": ["python"], "args": ["-V"], **HTTP},
    "access": {"primaryPort": "http"},
    "serverless": {"enabled": True, "requestID": "f"},
}


def create(**changes: Any) -> CreateUnit:
    return msgspec.convert(VALID_REQUEST | changes, CreateUnit)


def without(*fields: str) -> CreateUnit:
    return msgspec.convert({name: value for name, value in VALID_REQUEST.items() if name not in fields}, CreateUnit)


def existing(**changes: Any) -> GPUUnitSpec:
    return msgspec.convert(EXISTING_SPEC | changes, GPUUnitSpec)


def updated(spec: GPUUnitSpec, **body: Any) -> GPUUnitSpec:
    return apply_update(GPUUnit(metadata=ObjectMeta(name="web"), spec=spec), update(**body))


def ended_unit(spec: GPUUnitSpec) -> GPUUnit:
    """Return a unit that the platform has stopped, because its lifetime was over."""
    start = "2030-01-31T11:00:00Z"
    return GPUUnit(
        metadata=ObjectMeta(name="web", annotations={Annotation.ENDED_RUN: start}),
        spec=msgspec.structs.replace(spec, running=False),
        status=GPUUnitStatus(start_time=start),
    )


def update(**body: Any) -> UpdateUnit:
    return msgspec.convert(body, UpdateUnit)


def error_paths(raised: pytest.ExceptionInfo[Invalid]) -> list[str]:
    return [error.path for error in raised.value.errors]


def test_valid_unit_request_is_unchanged() -> None:
    assert admit_unit(create(), NAMESPACES) == msgspec.convert(VALID_REQUEST, RecordedUnitRequest)


def test_omitted_unit_fields_have_configured_defaults() -> None:
    request = admit_unit(without("namespace", "stockNamespace"), NAMESPACES)
    assert (request.namespace, request.stock_namespace) == ("runtime-instance", "runtime-stock")


def test_equivalent_unit_requests_are_the_same_request() -> None:
    equivalent = create(
        image=" python:3.12 ",
        stockNamespace="",
        template={"command": ["python"], "ports": [{"name": "http", "port": 8080, "protocol": "tcp"}]},
        access={"primaryPort": "http", "scheme": "HTTP"},
        storageMounts=[{"name": "data", "mountPath": "//data/", "readOnly": False}],
    )
    assert admit_unit(equivalent, NAMESPACES) == admit_unit(create(), NAMESPACES)
    assert canonical_request(admit_unit(equivalent, NAMESPACES)) == canonical_request(admit_unit(create(), NAMESPACES))


def test_normalized_unit_request_is_stable() -> None:
    once = admit_unit(without("namespace", "stockNamespace", "access"), NAMESPACES)
    again = msgspec.convert(msgspec.to_builtins(once), CreateUnit)
    assert admit_unit(again, NAMESPACES) == once


INVALID_CREATES: dict[str, tuple[dict[str, Any], str]] = {
    "no operationID": ({"operationID": ""}, "operationID: is required; choose one per operation"),
    "no name": ({"name": ""}, "name: is required"),
    "invalid name": ({"name": "Web"}, "name: 'Web' is not a name; "),
    "namespace that is not allowed": (
        {"namespace": "kube-system"},
        "namespace: 'kube-system' is not allowed for units; use runtime-instance or batch, or omit it",
    ),
    "stock namespace": (
        {"namespace": "runtime-stock"},
        "namespace: 'runtime-stock' is not allowed for units; ",
    ),
    "other stock namespace": (
        {"stockNamespace": "batch"},
        "stockNamespace: 'batch' is not the stock namespace; use runtime-stock, or omit it",
    ),
    "no flavor": ({"specName": ""}, "specName: is required; "),
    "no image": ({"image": " "}, "image: is required; "),
    "unknown primary port": (
        {"access": {"primaryPort": "grpc"}},
        "access.primaryPort: 'grpc' is not the name of a port in template.ports; the names there: http",
    ),
    "invalid scheme": ({"access": {"scheme": "ftp"}}, "access.scheme: 'ftp' is not one of http, https"),
    "port out of range": (
        {"template": {"ports": [{"name": "http", "port": 0}]}},
        "template.ports[0].port: 0 is not between 1 and 65535",
    ),
    "duplicate environment variable": (
        {"template": HTTP | {"envs": [{"name": "A"}, {"name": "A"}]}},
        "template.envs[1].name: A is already set by template.envs[0]; ",
    ),
    "relative mount path": (
        {"storageMounts": [{"name": "x", "mountPath": "cache"}]},
        "storageMounts[0].mountPath: 'cache' is not absolute; begin with '/'",
    ),
    "function without requestID": ({"serverless": {"enabled": True}}, "serverless.requestID: is required; "),
    "storage for several workers": (
        {"serverless": {"requestID": "f", "maxWorkers": 2}},
        "storageMounts: a function with more than one worker cannot mount a storage; ",
    ),
}


@pytest.mark.parametrize(("change", "message"), INVALID_CREATES.values(), ids=INVALID_CREATES)
def test_invalid_create_is_rejected_with_field_path_and_remedy(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        admit_unit(create(**change), NAMESPACES)
    assert len(raised.value.errors) == 1
    assert raised.value.message.startswith(message)


def test_all_invalid_unit_fields_are_reported_together() -> None:
    invalid = create(operationID="", name="", namespace="a", stockNamespace="b", specName="", image="")
    with pytest.raises(Invalid) as raised:
        admit_unit(invalid, NAMESPACES)
    assert error_paths(raised) == ["operationID", "name", "namespace", "stockNamespace", "specName", "image"]


VALID_UPDATES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no change": ({}, {}),
    "image": ({"image": " python:3.13 "}, {"image": "python:3.13"}),
    "template without command": ({"template": HTTP}, {"template": HTTP}),
    "default access": ({"access": {}}, {"access": None}),
    "storage mount": (
        {"storageMounts": [{"name": "data", "mountPath": "/data/"}]},
        {"storageMounts": [{"name": "data", "mountPath": "/data"}]},
    ),
    "disabled function": (
        {"serverless": {"requestID": "f"}},
        {"serverless": {"enabled": False, "requestID": "f"}},
    ),
    "repeated immutable fields": ({"specName": "g1.1", "memory": "16384Mi", "gpu": 1}, {}),
}


@pytest.mark.parametrize(("body", "changed"), VALID_UPDATES.values(), ids=VALID_UPDATES)
def test_update_changes_only_the_given_fields(body: dict[str, Any], changed: dict[str, Any]) -> None:
    assert updated(existing(), **body) == existing(**changed)


def test_update_does_not_normalize_omitted_fields() -> None:
    unnormalized = existing(memory="1024Mi", storageMounts=[{"name": "data", "mountPath": "/data/"}])
    assert updated(unnormalized, image="new") == msgspec.structs.replace(unnormalized, image="new")


INVALID_UPDATES: dict[str, tuple[dict[str, Any], str]] = {
    "other flavor": ({"specName": "g2"}, "specName: cannot be changed from g1.1; create a unit of the other flavor"),
    "more CPUs": (
        {"cpu": "8"},
        "cpu: cannot be changed from none, which the unit reserves; create another unit",
    ),
    "a CPU limit": (
        {"cpuLimit": "8"},
        "cpuLimit: cannot be changed from none, which the unit reserves; create another unit",
    ),
    "other ephemeral storage": (
        {"ephemeralStorage": "1Gi"},
        "ephemeralStorage: cannot be changed from none, which the unit reserves; create another unit",
    ),
    "more memory": (
        {"memory": "32Gi"},
        "memory: cannot be changed from 16Gi, which the unit reserves; create another unit",
    ),
    "more GPUs": ({"gpu": 2}, "gpu: cannot be changed from 1, which the unit reserves; create another unit"),
    "other requestID": (
        {"serverless": {"enabled": True, "requestID": "g"}},
        "serverless.requestID: cannot be changed from 'f', because its queue may contain invocations; send 'f'",
    ),
    "lowered lifetime": (
        {"deleteAfterSeconds": 3600, "serverless": {"requestID": "f"}},
        "deleteAfterSeconds: cannot be lowered from 7200 to 3600; stop or delete the unit instead",
    ),
    "omitted requestID": (
        {"serverless": {"enabled": False}},
        "serverless.requestID: cannot be changed from 'f', ",
    ),
    "no image": ({"image": ""}, "image: is required; "),
    "template without the primary port": (
        {"template": {}},
        "access.primaryPort: 'http' is not the name of a port in template.ports; the names there: none",
    ),
    "mount over the framework socket": (
        {"storageMounts": [{"name": "x", "mountPath": "/run"}]},
        "storageMounts[0].mountPath: /run would hide the framework's socket ",
    ),
}


LIVING = existing(deleteAfterSeconds=7200, serverless=None)


def test_lifetime_can_be_set_raised_and_removed() -> None:
    assert updated(LIVING, maxDurationSeconds=60).max_duration_seconds == 60
    assert updated(LIVING, deleteAfterSeconds=7201).delete_after_seconds == 7201
    assert updated(LIVING, deleteAfterSeconds=None).delete_after_seconds is None


def test_lifetime_of_a_stopped_run_cannot_change() -> None:
    with pytest.raises(LifetimeEnded):
        apply_update(ended_unit(LIVING), update(maxDurationSeconds=60))
    assert apply_update(ended_unit(LIVING), update(image="new")).image == "new"
    # The deletion has not begun, so it can be postponed.
    assert apply_update(ended_unit(LIVING), update(deleteAfterSeconds=None)).delete_after_seconds is None


@pytest.mark.parametrize("field", LIFETIME_FIELDS.values())
def test_lifetime_of_a_function_is_rejected(field: str) -> None:
    with pytest.raises(Invalid) as raised:
        admit_unit(create(**{field: 60}), NAMESPACES)
    assert error_paths(raised) == [field]


UNTIL = datetime(2030, 1, 31, 12, tzinfo=UTC)


def extendable(**changes: Any) -> GPUUnit:
    return GPUUnit(spec=existing(serverless=None, stopUnlessExtendedSeconds=600, **changes))


def test_extension_is_stored_and_never_shortened() -> None:
    extended = extend(extendable(), UNTIL)
    assert extended.extended_until == "2030-01-31T12:00:00Z"
    unit = GPUUnit(spec=extended)
    assert extend(unit, UNTIL - timedelta(hours=1)) == extended
    assert extend(unit, UNTIL + timedelta(hours=1)).extended_until == "2030-01-31T13:00:00Z"


def test_extension_is_rounded_up_to_a_second() -> None:
    assert extend(extendable(), UNTIL + timedelta(milliseconds=1)).extended_until == "2030-01-31T12:00:01Z"
    last = datetime(9999, 12, 31, 23, 59, 59, 900_000, tzinfo=UTC)
    assert extend(extendable(), last).extended_until == "9999-12-31T23:59:59Z"
    assert extend(extendable(), datetime(999, 1, 1, tzinfo=UTC)).extended_until == "0999-01-01T00:00:00Z"


def test_extension_that_is_no_time_in_utc_is_rejected() -> None:
    with pytest.raises(Invalid, match="until: is not a time between the years 1 and 9999"):
        extend(extendable(), datetime.fromisoformat("9999-12-31T23:59:59-01:00"))


def test_extension_needs_a_unit_that_stops_unless_it_is_extended() -> None:
    with pytest.raises(Invalid, match="until: the unit has no stopUnlessExtendedSeconds"):
        extend(GPUUnit(spec=LIVING), UNTIL)
    with pytest.raises(LifetimeEnded):
        extend(ended_unit(extendable().spec), UNTIL)


PROBE = {"tcpSocket": {"port": "http"}}
TCP_PROBE = msgspec.convert(PROBE, ReadinessProbe)


def admitted_probes(**changes: Any) -> Probes | None:
    request = {name: value for name, value in VALID_REQUEST.items() if name != "serverless"} | changes
    return admit_unit(msgspec.convert(request, CreateUnit), NAMESPACES).unit_spec().probes


def test_readiness_of_the_primary_port_is_added_if_the_caller_gives_none() -> None:
    assert admitted_probes() == Probes(readiness=DEFAULT_READINESS_PROBE)
    liveness = admitted_probes(probes={"liveness": PROBE})
    assert liveness is not None
    assert (liveness.readiness, liveness.startup) == (DEFAULT_READINESS_PROBE, None)
    assert admitted_probes(probes={"readiness": PROBE}) == Probes(readiness=TCP_PROBE)
    disabled = {"readiness": {"disabled": True}}
    assert admitted_probes(probes=disabled) == Probes(readiness=ReadinessProbe(disabled=True))


@pytest.mark.parametrize("check", ["tcpSocket", "httpGet"])
@pytest.mark.parametrize("kind", ["startup", "readiness", "liveness"])
def test_recorded_request_keeps_a_check_without_fields(kind: str, check: str) -> None:
    """Another replica resumes the operation from the recorded text. The hash must distinguish the checks."""
    admitted = admit_unit(create(probes={kind: {check: {}}}), NAMESPACES)
    assert msgspec.json.decode(canonical_request(admitted), type=RecordedUnitRequest) == admitted
    assert canonical_request(admitted) != canonical_request(admit_unit(create(), NAMESPACES))


def test_probe_of_the_api_is_not_part_of_the_recorded_request() -> None:
    assert admit_unit(without("serverless"), NAMESPACES).probes is None


def test_unit_that_becomes_a_function_loses_the_probe_of_the_api() -> None:
    plain = existing(serverless=None, probes={"readiness": msgspec.to_builtins(DEFAULT_READINESS_PROBE)})
    function = updated(plain, serverless={"enabled": True, "requestID": "f"})
    assert function.probes == Probes()
    own = existing(serverless=None, probes={"readiness": PROBE})
    assert updated(own, serverless={"enabled": True, "requestID": "f"}).probes == own.probes


def test_function_gets_no_probe() -> None:
    assert admit_unit(create(), NAMESPACES).unit_spec().probes is None
    assert admit_unit(create(probes={"liveness": PROBE}), NAMESPACES).unit_spec().probes == msgspec.convert(
        {"liveness": PROBE}, Probes
    )


def test_update_of_the_template_keeps_the_probes() -> None:
    ssh = {"template": {"ports": [{"name": "ssh", "port": 22}]}, "access": {"primaryPort": "ssh"}}
    added = existing(serverless=None, probes={"readiness": msgspec.to_builtins(DEFAULT_READINESS_PROBE)})
    assert updated(added, **ssh).probes == added.probes
    with pytest.raises(Invalid, match=r"probes.readiness.tcpSocket.port: 'http' is not the name of a port"):
        updated(existing(serverless=None, probes={"readiness": PROBE}), **ssh)


@pytest.mark.parametrize(("body", "message"), INVALID_UPDATES.values(), ids=INVALID_UPDATES)
def test_invalid_update_is_rejected_with_field_path_and_remedy(body: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as raised:
        updated(existing(deleteAfterSeconds=7200) if "deleteAfterSeconds" in body else existing(), **body)
    assert len(raised.value.errors) == 1
    assert raised.value.message.startswith(message)


def test_plain_unit_can_become_a_function() -> None:
    plain = msgspec.structs.replace(existing(), serverless=None)
    assert updated(plain, serverless={"enabled": True, "requestID": "f"}) == existing()


@pytest.mark.parametrize("field", [each for each in UpdateUnit.__struct_fields__ if each not in LIFETIME_FIELDS])
def test_update_with_null_is_rejected(field: str) -> None:
    name = next(each.encode_name for each in msgspec.structs.fields(UpdateUnit) if each.name == field)
    with pytest.raises(msgspec.ValidationError, match=rf"got `null` - at `\$.{name}`"):
        update(**{name: None})


def test_stock_namespace_is_not_allowed_for_units() -> None:
    with pytest.raises(ValueError, match="units must not name runtime-stock"):
        APINamespaceSettings(units=("runtime-stock",))


def test_worker_must_name_its_function() -> None:
    with pytest.raises(Invalid, match=r"serverless\.workerOf: is missing; name the unit of the function"):
        admit_worker(create(storageMounts=[]), NAMESPACES)
    worker = create(storageMounts=[], serverless={"enabled": True, "requestID": "f", "workerOf": "f"})
    assert admit_worker(worker, NAMESPACES).serverless == worker.serverless
