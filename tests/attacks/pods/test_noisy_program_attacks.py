"""Attacks of a user's program on the texts and on the number of writes that it causes."""

from datetime import UTC, datetime

from gpu_runtime.contract.crd.conditions import READY_CONDITION, ReadyReason, UnitPhase, find_condition
from gpu_runtime.controller_manager.workload.pod_failures import pod_failure
from gpu_runtime.controller_manager.workload.status_rate_limit import StatusRateLimit
from gpu_runtime.controller_manager.workload.status_writer import with_ready_condition
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness
from tests.unit.controller_manager.controller_objects import container, pod

ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe"


def test_crash_message_cannot_control_the_terminal_of_an_operator() -> None:
    crashed = {"terminated": {"exitCode": 1, "reason": "Error", "message": f"first line\n{ESCAPES}"}}
    failure = pod_failure(pod(containerStatuses=[container(crashed)]))
    assert failure
    readiness = WorkloadReadiness(UnitPhase.FAILED, ReadyReason.POD_STARTUP_FAILED, failure)
    conditions = with_ready_condition((), readiness, 1, datetime.now(UTC).isoformat())
    ready = find_condition(conditions, READY_CONDITION)
    assert ready
    assert ready.message.isprintable()
    assert "\\x1b[2J" in ready.message


def test_unit_that_changes_its_readiness_all_the_time_causes_few_status_writes() -> None:
    limit, writes = StatusRateLimit(), 0
    for second in range(600):
        writes += limit.take("flipping", float(second)) == 0
    assert writes <= 130
    assert limit.take("other", 600.0) == 0
