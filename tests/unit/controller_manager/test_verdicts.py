"""What is thought of a unit and a pool, from what was seen, and how that becomes a status."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.conditions import Reason, UnitPhase
from gpu_runtime.controller_manager.gpu_unit import status as of_unit
from gpu_runtime.controller_manager.stock_pool import status as of_pool
from gpu_runtime.controller_manager.workload.status_writer import condition, difference, same
from gpu_runtime.controller_manager.workload.sync_children import next_look
from gpu_runtime.controller_manager.workload.workload_readiness import Verdict
from gpu_runtime.kube.controller import RecheckIn, Settled
from tests.unit.controller_manager.objects import (
    PORTS,
    container,
    deployment,
    pod,
    pool,
    running,
    seen,
    seen_pool,
    unit,
)

PULLING = pod(containerStatuses=[container({"waiting": {"reason": "ErrImagePull"}})])
READY_POD = pod(conditions=[{"type": "Ready", "status": "True"}])
NOW = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("spec", "more", "phase", "reason"),
    [
        ({}, {}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running()}, "Ready", "UnitReady"),
        ({}, {"deployment": running(generation=2)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running(replicas=1, updatedReplicas=0)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running(replicas=2)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": deployment(), "pods": (PULLING,)}, "Failed", "PodStartupFailed"),
        ({}, {"deployment": deployment(generation=2), "pods": (PULLING,)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running(), "pods": (PULLING,)}, "Ready", "UnitReady"),
        ({}, {"deployment": running(), "pods_trouble": "x"}, "Ready", "UnitReady"),
        ({}, {"deployment": deployment(), "pods_trouble": "x"}, "Progressing", "PodStatusSyncFailed"),
        ({"running": False}, {}, "Empty", "ScaledToZero"),
        ({"running": False}, {"deployment": deployment()}, "Empty", "ScaledToZero"),
        ({"running": False}, {"deployment": deployment(generation=2)}, "Progressing", "UnitProgressing"),
        ({"running": False}, {"deployment": deployment(replicas=1)}, "Progressing", "UnitProgressing"),
        ({"running": False}, {"deployment": deployment(), "pods": (READY_POD,)}, "Progressing", "UnitProgressing"),
    ],
)
def test_the_verdict_on_a_unit(spec: Any, more: Any, phase: str, reason: str) -> None:
    thought = of_unit.verdict(seen(unit(**spec), **more))
    assert (thought.phase.value, thought.reason.value) == (phase, reason)


@pytest.mark.parametrize(
    ("replicas", "more", "phase", "reason"),
    [
        (2, {}, "Progressing", "DeploymentProgressing"),
        (2, {"deployment": running(2)}, "Ready", "DeploymentReady"),
        (2, {"deployment": running(3)}, "Progressing", "DeploymentProgressing"),
        (2, {"deployment": running(2, generation=2)}, "Progressing", "DeploymentProgressing"),
        (2, {"deployment": running(1), "pods": (READY_POD, PULLING)}, "Failed", "PodStartupFailed"),
        (2, {"deployment": running(1), "pods_trouble": "x"}, "Progressing", "PodStatusSyncFailed"),
        (0, {}, "Empty", "ScaledToZero"),
        (0, {"deployment": running(0)}, "Empty", "ScaledToZero"),
        (0, {"deployment": running(1)}, "Progressing", "DeploymentProgressing"),
        (0, {"deployment": running(0), "pods": (READY_POD,)}, "Progressing", "DeploymentProgressing"),
    ],
)
def test_the_verdict_on_a_pool(replicas: int, more: Any, phase: str, reason: str) -> None:
    thought = of_pool.verdict(seen_pool(pool(replicas=replicas), **more))
    assert (thought.phase.value, thought.reason.value) == (phase, reason)


def test_the_status_of_an_active_unit_says_where_it_answers() -> None:
    found = seen(unit(template={"ports": PORTS}, access={"scheme": "https"}), deployment=running())
    status = of_unit.status_of(found, of_unit.verdict(found), NOW)
    assert status.access_url == "https://web.runtime-instance.svc.cluster.local:80"
    assert (status.service_name, status.ready_replicas, status.observed_generation) == ("web", 1, 1)


@pytest.mark.parametrize("found", [unit(), unit("runtime-stock", template={"ports": PORTS})])
def test_stock_and_units_without_ports_have_no_address(found: Any) -> None:
    observed = seen(found)
    status = of_unit.status_of(observed, of_unit.verdict(observed), NOW)
    assert (status.access_url, status.service_name) == (None, None)


def test_the_status_of_a_pool_counts() -> None:
    found = seen_pool(pool(replicas=3, template={"ports": PORTS}), deployment=running(2))
    status = of_pool.status_of(found, of_pool.verdict(found), NOW)
    assert (status.available, status.allocated, status.service_name) == (2, 1, "pool-warm")


def test_a_status_that_says_the_same_is_the_same_whenever_it_was_written() -> None:
    found = seen(unit(), deployment=running())
    first = of_unit.status_of(found, of_unit.verdict(found), NOW)
    told = seen(msgspec.structs.replace(found.unit, status=first), deployment=running())
    again = of_unit.status_of(told, of_unit.verdict(told), "2027-01-01T00:00:00Z")
    assert same(first, again)
    assert difference(first, again) == {}


def test_what_is_no_longer_said_is_taken_away() -> None:
    with_port, without = seen(unit(template={"ports": PORTS})), seen(unit())
    thought = of_unit.verdict(without)
    before, after = of_unit.status_of(with_port, thought, NOW), of_unit.status_of(without, thought, NOW)
    assert difference(before, after) == {"serviceName": None, "accessURL": None}


def test_a_message_is_never_longer_than_the_api_server_takes() -> None:
    thought = Verdict(UnitPhase.FAILED, Reason.INVALID_SPEC, "ä" * 100_000)
    (told,) = condition((), thought, 1, NOW)
    assert len(told.message) == 4096
    assert told.message.endswith("ä…")


@pytest.mark.parametrize(
    ("reason", "phase", "outcome"),
    [
        (Reason.UNIT_READY, UnitPhase.READY, Settled()),
        (Reason.INVALID_SPEC, UnitPhase.FAILED, Settled()),
        (Reason.STORAGE_NOT_READY, UnitPhase.PROGRESSING, Settled()),
        (Reason.NAME_TAKEN, UnitPhase.PROGRESSING, RecheckIn(1.0)),
        (Reason.NAME_TAKEN, UnitPhase.FAILED, RecheckIn(15.0)),
        (Reason.DEPLOYMENT_SYNC_FAILED, UnitPhase.FAILED, RecheckIn(15.0)),
        (Reason.SERVICE_SYNC_FAILED, UnitPhase.FAILED, RecheckIn(15.0)),
        (Reason.POD_STATUS_SYNC_FAILED, UnitPhase.PROGRESSING, RecheckIn(15.0)),
        (Reason.STOCK_RELEASING, UnitPhase.PROGRESSING, RecheckIn(15.0)),
    ],
)
def test_what_nobody_tells_is_looked_at_again(reason: Reason, phase: UnitPhase, outcome: Any) -> None:
    assert next_look(Verdict(phase, reason, "")) == outcome
