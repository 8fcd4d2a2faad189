"""The CRD models, derived names and conditions."""

import msgspec
import pytest

from gpu_runtime.contract.crd import DEFINITIONS, well_known
from gpu_runtime.contract.crd.conditions import (
    READY_CONDITION,
    ReadyReason,
    find_condition,
    ready_condition,
    set_condition,
)
from gpu_runtime.contract.crd.gpu_unit import Access, GPUUnit, GPUUnitSpec, GPUUnitStatus
from gpu_runtime.contract.crd.operation import Operation, OperationState
from gpu_runtime.contract.crd.template import Port, Template
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.kube.quantity import canonical_quantity


def test_acronyms_keep_their_case_on_the_wire() -> None:
    status = GPUUnitStatus(access_url="http://demo", service_name="demo")
    assert msgspec.json.decode(msgspec.json.encode(status)) == {"accessURL": "http://demo", "serviceName": "demo"}
    text = b'{"spec":{"specName":"g1","serverless":{"requestID":"f"}}}'
    unit = msgspec.json.decode(text, type=GPUUnit)
    assert unit.spec.serverless
    assert unit.spec.serverless.request_id == "f"


def test_object_with_unknown_fields_and_values_is_decoded() -> None:
    """One object of a newer version, with an unknown phase, protocol or field, must not break the cache of its kind."""
    text = b'{"spec":{"specName":"","gpu":-1,"new":1},"status":{"phase":"Hibernating"}}'
    assert msgspec.json.decode(text, type=GPUUnit).status.phase == "Hibernating"


def test_an_operation_without_status_is_accepted_and_unfinished() -> None:
    text = (
        b'{"spec":{"operationID":"a","type":"SeedStock","requestHash":"","target":{"kind":"GPUUnit","namespace":"n"}}}'
    )
    state = OperationState(msgspec.json.decode(text, type=Operation).status.state)
    assert state is OperationState.ACCEPTED
    assert [each for each in OperationState if each.finished] == [OperationState.SUCCEEDED, OperationState.FAILED]


def test_namespace_decides_the_role() -> None:
    assert well_known.role_of("runtime-stock") is UnitRole.STOCK
    assert well_known.role_of("runtime-instance") is UnitRole.ACTIVE
    assert well_known.role_of("default") is UnitRole.ACTIVE
    assert well_known.role_of("warm", stock_namespace="warm") is UnitRole.STOCK


def test_every_owned_object_can_be_selected() -> None:
    selector = well_known.MANAGED_BY_SELECTOR.split("=")
    for labels in (
        well_known.unit_labels("demo", "g1.1", UnitRole.ACTIVE),
        well_known.pool_labels("demo", "g1.1"),
        well_known.storage_labels("demo"),
    ):
        assert labels[selector[0]] == selector[1]


def test_derived_names_are_valid_for_any_operation_id() -> None:
    for operation_id in ("unit-demo-001", "Ä" * 256, "a/b c"):
        derived = (
            well_known.operation_name(operation_id),
            well_known.generated_pool_name(operation_id),
            well_known.stock_unit_name(operation_id, 99_999),
        )
        assert all(len(name) <= 58 and name.isascii() for name in derived)
    assert well_known.operation_name("a") != well_known.operation_name("b")
    assert well_known.operation_name("unit-demo-001") == "op-765acc10fccd34575d64905f4c63313ecd689792"


PORTS = (Port(name="http", port=8080), Port(name="grpc", port=9000))


@pytest.mark.parametrize(
    ("access", "ports", "primary"),
    [
        (None, PORTS, 8080),
        (Access(), PORTS, 8080),
        (Access(primary_port="grpc"), PORTS, 9000),
        (Access(primary_port="none"), PORTS, None),
        (None, (), None),
    ],
)
def test_the_access_url_points_to_the_named_port_or_the_first(
    access: Access | None, ports: tuple[Port, ...], primary: int | None
) -> None:
    port = GPUUnitSpec(spec_name="g1.1", access=access, template=Template(ports=ports)).primary_port()
    assert (port.port if port else None) == primary


def test_last_transition_time_changes_only_with_the_status() -> None:
    first = set_condition((), ready_condition(False, ReadyReason.UNIT_PROGRESSING, "starting", 1), "10:00")
    same = set_condition(first, ready_condition(False, ReadyReason.POD_STARTUP_FAILED, "no such image", 1), "10:01")
    changed = set_condition(same, ready_condition(True, ReadyReason.UNIT_READY, "", 2), "10:02")
    times = [
        condition.last_transition_time
        for each in (first, same, changed)
        if (condition := find_condition(each, READY_CONDITION))
    ]
    assert times == ["10:00", "10:00", "10:02"]
    assert len(changed) == 1
    assert changed[0].reason == "UnitReady"


def test_ready_reason_contains_all_reasons_of_the_series() -> None:
    series = {
        "DeploymentProgressing",
        "DeploymentReady",
        "ScaledToZero",
        "InvalidSpec",
        "PodStartupFailed",
        "PodStatusSyncFailed",
        "ServiceSyncFailed",
        "DeploymentSyncFailed",
    }
    assert series <= {reason.value for reason in ReadyReason}


def test_kinds_and_short_names_are_unique() -> None:
    short = [name for definition in DEFINITIONS for name in definition.short_names]
    assert len(short) == len(set(short))
    assert len({definition.resource.plural for definition in DEFINITIONS}) == len(DEFINITIONS)


@pytest.mark.parametrize(
    ("quantity", "canonical"),
    [
        ("1024Mi", "1Gi"),
        ("16Gi", "16Gi"),
        ("0.5Gi", "512Mi"),
        ("1.5Ki", "1536"),
        ("1000Mi", "1000Mi"),
        ("1000", "1k"),
        ("1e3", "1k"),
        ("1E3", "1k"),
        ("2E", "2E"),
        ("0.1", "100m"),
        ("+1", "1"),
        ("0Gi", "0"),
        ("", ""),
        ("1 Gi", "1 Gi"),
        ("1gi", "1gi"),
        ("1e", "1e"),
        ("lots", "lots"),
    ],
)
def test_quantity_has_one_canonical_form(quantity: str, canonical: str) -> None:
    assert canonical_quantity(quantity) == canonical
