"""Readiness of units and pools, and the status that reports it."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase
from gpu_runtime.contract.unit_lifetime import RunTimes
from gpu_runtime.controller_manager.gpu_unit import status as unit_status
from gpu_runtime.controller_manager.stock_pool import status as pool_status
from gpu_runtime.controller_manager.workload.status_writer import status_patch, with_ready_condition
from gpu_runtime.controller_manager.workload.sync_children import requeue_outcome
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness
from gpu_runtime.kube.controller import Done, RequeueAfter
from tests.unit.controller_manager.controller_objects import (
    PORTS,
    container,
    deployment,
    observed_pool,
    observed_unit,
    pod,
    pool,
    running_deployment,
    unit,
)

PULLING = pod(containerStatuses=[container({"waiting": {"reason": "ErrImagePull"}})])
READY_POD = pod(conditions=[{"type": "Ready", "status": "True"}])
NOW = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("spec", "fields", "phase", "reason"),
    [
        ({}, {}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running_deployment()}, "Ready", "UnitReady"),
        ({}, {"deployment": running_deployment(generation=2)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running_deployment(replicas=1, updatedReplicas=0)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running_deployment(replicas=2)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": deployment(), "pods": (PULLING,)}, "Failed", "PodStartupFailed"),
        ({}, {"deployment": deployment(generation=2), "pods": (PULLING,)}, "Progressing", "UnitProgressing"),
        ({}, {"deployment": running_deployment(), "pods": (PULLING,)}, "Ready", "UnitReady"),
        ({}, {"deployment": running_deployment(), "pod_cache_error": "x"}, "Ready", "UnitReady"),
        ({}, {"deployment": deployment(), "pod_cache_error": "x"}, "Progressing", "PodStatusSyncFailed"),
        ({"running": False}, {}, "Empty", "ScaledToZero"),
        ({"running": False}, {"deployment": deployment()}, "Empty", "ScaledToZero"),
        ({"running": False}, {"deployment": deployment(generation=2)}, "Progressing", "UnitProgressing"),
        ({"running": False}, {"deployment": deployment(replicas=1)}, "Progressing", "UnitProgressing"),
        ({"running": False}, {"deployment": deployment(), "pods": (READY_POD,)}, "Progressing", "UnitProgressing"),
    ],
)
def test_readiness_of_a_unit(spec: Any, fields: Any, phase: str, reason: str) -> None:
    result = unit_status.readiness(observed_unit(unit(**spec), **fields))
    assert (result.phase.value, result.reason.value) == (phase, reason)


@pytest.mark.parametrize(
    ("replicas", "fields", "phase", "reason"),
    [
        (2, {}, "Progressing", "DeploymentProgressing"),
        (2, {"deployment": running_deployment(2)}, "Ready", "DeploymentReady"),
        (2, {"deployment": running_deployment(3)}, "Progressing", "DeploymentProgressing"),
        (2, {"deployment": running_deployment(2, generation=2)}, "Progressing", "DeploymentProgressing"),
        (2, {"deployment": running_deployment(1), "pods": (READY_POD, PULLING)}, "Failed", "PodStartupFailed"),
        (2, {"deployment": running_deployment(1), "pod_cache_error": "x"}, "Progressing", "PodStatusSyncFailed"),
        (0, {}, "Empty", "ScaledToZero"),
        (0, {"deployment": running_deployment(0)}, "Empty", "ScaledToZero"),
        (0, {"deployment": running_deployment(1)}, "Progressing", "DeploymentProgressing"),
        (0, {"deployment": running_deployment(0), "pods": (READY_POD,)}, "Progressing", "DeploymentProgressing"),
    ],
)
def test_readiness_of_a_pool(replicas: int, fields: Any, phase: str, reason: str) -> None:
    result = pool_status.readiness(observed_pool(pool(replicas=replicas), **fields))
    assert (result.phase.value, result.reason.value) == (phase, reason)


def test_status_of_an_active_unit_has_its_access_url() -> None:
    found = observed_unit(unit(template={"ports": PORTS}, access={"scheme": "https"}), deployment=running_deployment())
    status = unit_status.status_of(found, unit_status.readiness(found), NOW, RunTimes(), is_built=True)
    assert status.access_url == "https://web.runtime-instance.svc.cluster.local:80"
    assert (status.service_name, status.ready_replicas, status.observed_generation) == ("web", 1, 1)


@pytest.mark.parametrize("found", [unit(), unit("runtime-stock", template={"ports": PORTS})])
def test_stock_and_units_without_ports_have_no_address(found: Any) -> None:
    observed = observed_unit(found)
    status = unit_status.status_of(observed, unit_status.readiness(observed), NOW, RunTimes(), is_built=True)
    assert (status.access_url, status.service_name) == (None, None)


FUNCTION = {"enabled": True, "requestID": "f"}
OLD_POD = pod("old", created="2026-01-01T00:00:00Z")
NEW_POD = pod("new", created="2026-01-01T00:00:01Z")
ENDED_POD = pod("ended", created="2026-01-01T00:00:02Z", phase="Failed")
TERMINATING_POD = pod("terminating", created="2026-01-01T00:00:03Z", deleted="2026-01-01T00:00:04Z")


@pytest.mark.parametrize(
    ("pods", "uid"),
    [
        ((), None),
        ((OLD_POD,), "uid-of-old"),
        ((NEW_POD, OLD_POD), "uid-of-new"),
        ((TERMINATING_POD, OLD_POD), "uid-of-old"),
        ((TERMINATING_POD,), "uid-of-terminating"),
        ((ENDED_POD, OLD_POD), "uid-of-old"),
        ((ENDED_POD,), None),
    ],
    ids=["none", "one", "two", "replaced", "terminating", "evicted and replaced", "evicted"],
)
def test_status_of_a_worker_has_the_uid_of_its_pod(pods: Any, uid: str | None) -> None:
    found = observed_unit(unit(serverless=FUNCTION), deployment=running_deployment(), pods=pods)
    status = unit_status.status_of(found, unit_status.readiness(found), NOW, RunTimes(), is_built=True)
    assert status.pod_uid == uid


def test_status_of_a_unit_without_function_has_no_pod_uid() -> None:
    """The pod of such a unit sends no events, and the status would be written once more for each unit."""
    found = observed_unit(unit(), deployment=running_deployment(), pods=(OLD_POD,))
    assert unit_status.status_of(found, unit_status.readiness(found), NOW, RunTimes(), is_built=True).pod_uid is None


def test_pool_status_counts_replicas() -> None:
    found = observed_pool(pool(replicas=3, template={"ports": PORTS}), deployment=running_deployment(2))
    status = pool_status.status_of(found, pool_status.readiness(found), NOW, is_built=True)
    assert (status.available, status.allocated, status.service_name) == (2, 1, "pool-warm")


def test_equal_status_produces_no_patch() -> None:
    found = observed_unit(unit(), deployment=running_deployment())
    first = unit_status.status_of(found, unit_status.readiness(found), NOW, RunTimes(), is_built=True)
    written = observed_unit(msgspec.structs.replace(found.unit, status=first), deployment=running_deployment())
    again = unit_status.status_of(
        written, unit_status.readiness(written), "2027-01-01T00:00:00Z", RunTimes(), is_built=True
    )
    assert status_patch(first, again) == {}


def test_status_patch_removes_obsolete_fields() -> None:
    with_port, without = observed_unit(unit(template={"ports": PORTS})), observed_unit(unit())
    result = unit_status.readiness(without)
    before, after = (
        unit_status.status_of(with_port, result, NOW, RunTimes(), is_built=True),
        unit_status.status_of(without, result, NOW, RunTimes(), is_built=True),
    )
    assert status_patch(before, after) == {"serviceName": None, "accessURL": None}


def test_condition_message_is_truncated_to_the_api_limit() -> None:
    result = WorkloadReadiness(UnitPhase.FAILED, ReadyReason.INVALID_SPEC, "ä" * 100_000)
    (condition,) = with_ready_condition((), result, 1, NOW)
    assert len(condition.message) == 4096
    assert condition.message.endswith("ä…")


@pytest.mark.parametrize(
    ("reason", "phase", "outcome"),
    [
        (ReadyReason.UNIT_READY, UnitPhase.READY, Done()),
        (ReadyReason.INVALID_SPEC, UnitPhase.FAILED, Done()),
        (ReadyReason.STORAGE_NOT_READY, UnitPhase.PROGRESSING, Done()),
        (ReadyReason.NAME_TAKEN, UnitPhase.PROGRESSING, RequeueAfter(1.0)),
        (ReadyReason.NAME_TAKEN, UnitPhase.FAILED, RequeueAfter(15.0)),
        (ReadyReason.DEPLOYMENT_SYNC_FAILED, UnitPhase.FAILED, RequeueAfter(15.0)),
        (ReadyReason.SERVICE_SYNC_FAILED, UnitPhase.FAILED, RequeueAfter(15.0)),
        (ReadyReason.POD_STATUS_SYNC_FAILED, UnitPhase.PROGRESSING, RequeueAfter(15.0)),
    ],
)
def test_reasons_without_events_are_requeued(reason: ReadyReason, phase: UnitPhase, outcome: Any) -> None:
    assert requeue_outcome(WorkloadReadiness(phase, reason, "")) == outcome
