"""Times that several processes share are derived in one module, and wrong combinations are rejected with both keys."""

from datetime import timedelta
from pathlib import Path

import pytest

from checks.settings_keys import PROCESSES
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.cli.main import main
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.timing import (
    DISPATCH_ACK_WAIT_SECONDS,
    HEARTBEAT_SECONDS,
    TIMING_RULES,
    WORKER_DEADLINE_GRACE_SECONDS,
    TimingRule,
    capacity_ttl,
    heartbeat_timeout,
    kube_attempt_timeout,
    queue_expiry_grace,
    sync_wait_limit,
    termination_grace,
    timing_errors,
)
from gpu_runtime.process.settings import InvalidSettings, numbers_by_key, parse_settings

REQUIRED = {
    "controller-manager": "images: {stock: a, placeholder: b}\n",
    "worker-sidecar": "functionID: i\nrequestID: f\nworker: w\nnamespace: n\n",
}


def test_default_times_of_a_worker() -> None:
    assert heartbeat_timeout(HEARTBEAT_SECONDS) == DISPATCH_ACK_WAIT_SECONDS == 15
    assert capacity_ttl(HEARTBEAT_SECONDS) == 12
    assert StreamTopology().dispatch_consumer("f").ack_extension_seconds == 5
    assert termination_grace(300) == 315


@pytest.mark.parametrize("interval", [0.2, 5, 20, 60])
def test_capacity_expires_after_one_lost_heartbeat_and_before_the_worker_is_silent(interval: float) -> None:
    assert 2 * interval < capacity_ttl(interval) < heartbeat_timeout(interval) == pytest.approx(3 * interval)


def test_reaper_waits_longer_than_a_worker_after_the_deadline() -> None:
    assert ReaperSettings().deadline_grace_seconds > WORKER_DEADLINE_GRACE_SECONDS
    with pytest.raises(InvalidSettings, match=r"reaping\.deadlineGraceSeconds: expected float > 0.5, got 0.5"):
        parse_settings("reaping: {deadlineGraceSeconds: 0.5}", PROCESSES["activator"])


@pytest.mark.parametrize(("ack_wait", "grace"), [(1, 30), (30, 30), (45, 45)])
def test_queued_invocation_expires_after_its_message_was_redelivered(ack_wait: float, grace: float) -> None:
    assert queue_expiry_grace(ack_wait) == timedelta(seconds=grace)


@pytest.mark.parametrize(("wait", "request_timeout", "limit"), [(25, 30, 25), (60, 30, 27)])
def test_sync_wait_ends_before_the_request_timeout(wait: float, request_timeout: float, limit: float) -> None:
    assert sync_wait_limit(wait, request_timeout) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("request_seconds", "kubernetes_seconds", "attempt"), [(30, 10, 3), (60, 10, 6), (240, 10, 10), (30, 1, 1)]
)
def test_attempt_timeout_allows_a_second_attempt(
    request_seconds: float, kubernetes_seconds: float, attempt: float
) -> None:
    assert kube_attempt_timeout(kubernetes_seconds, request_seconds) == pytest.approx(attempt)


@pytest.mark.parametrize("rule", TIMING_RULES, ids=lambda rule: f"{rule.shorter} < {rule.longer}")
def test_rule_rejects_a_shorter_time_and_names_both_keys(rule: TimingRule) -> None:
    limit = rule.factor * 10
    assert rule.violation({rule.shorter: 10, rule.longer: limit + 0.001}) is None
    assert (rule.violation({rule.shorter: 10, rule.longer: limit}) is None) is not rule.strict
    error = rule.violation({rule.shorter: 10, rule.longer: limit - 0.5})
    assert error
    assert error.startswith(f"{rule.longer} is {limit - 0.5:g} and {rule.shorter} is 10; {rule.longer} must be ")
    assert rule.violation({rule.shorter: 10}) is None
    assert rule.violation({rule.longer: 10}) is None


def test_errors_of_all_rules_are_reported() -> None:
    values = {
        "leaderElection.leaseDurationSeconds": 4.0,
        "leaderElection.renewDeadlineSeconds": 5.0,
        "leaderElection.retryPeriodSeconds": 3.0,
    }
    assert len(list(timing_errors(values))) == 2


WRONG_COMBINATIONS = {
    "late heartbeats, in the settings of all workers": (
        "controller-manager",
        "serverless: {sidecar: {heartbeatSeconds: 5.1}}",
        "serverless.nats.streams.dispatchAckWaitSeconds is 15 and serverless.sidecar.heartbeatSeconds is 5.1;",
    ),
    "a short ack wait, in the settings of all workers": (
        "controller-manager",
        "serverless: {nats: {streams: {dispatchAckWaitSeconds: 14}}}",
        "serverless.nats.streams.dispatchAckWaitSeconds is 14 and serverless.sidecar.heartbeatSeconds is 5;",
    ),
    "late heartbeats, in the settings of a worker": (
        "worker-sidecar",
        "heartbeatSeconds: 20",
        "nats.streams.dispatchAckWaitSeconds is 15 and heartbeatSeconds is 20;",
    ),
    "backoff of a worker": (
        "worker-sidecar",
        "retries: {initialBackoffSeconds: 61}",
        "retries.maxBackoffSeconds is 60 and retries.initialBackoffSeconds is 61;",
    ),
    "liveness below the ack wait": (
        "activator",
        "scaling: {workerLivenessTimeoutSeconds: 14}",
        "scaling.workerLivenessTimeoutSeconds is 14 and nats.streams.dispatchAckWaitSeconds is 15;",
    ),
    "ack wait above the grace period of a failed worker": (
        "activator",
        "nats: {streams: {dispatchAckWaitSeconds: 61}}",
        "scaling.failedWorkerGraceSeconds is 60 and nats.streams.dispatchAckWaitSeconds is 61;",
    ),
    "backoff of the autoscaler": (
        "activator",
        "scaling: {maxBackoffSeconds: 1}",
        "scaling.maxBackoffSeconds is 1 and scaling.initialBackoffSeconds is 5;",
    ),
    "a lease that allows two leaders": (
        "activator",
        "leaderElection: {leaseDurationSeconds: 10}",
        "leaderElection.leaseDurationSeconds is 10 and leaderElection.renewDeadlineSeconds is 10;",
    ),
    "a renewal that cannot be repeated": (
        "controller-manager",
        "leaderElection: {retryPeriodSeconds: 5}",
        "leaderElection.renewDeadlineSeconds is 10 and leaderElection.retryPeriodSeconds is 5;",
    ),
    "a shutdown without time for requests": (
        "runtime-api",
        "gracefulShutdownTimeoutSeconds: 5",
        "gracefulShutdownTimeoutSeconds is 5 and limits.shutdownDelaySeconds is 5;",
    ),
    "records without results": (
        "result-store",
        "retention: {maxAgeSeconds: 3600}",
        "retention.maxAgeSeconds is 3600 and nats.streams.recordRetentionSeconds is 86400;",
    ),
}


@pytest.mark.parametrize(("process", "text", "message"), WRONG_COMBINATIONS.values(), ids=WRONG_COMBINATIONS)
def test_process_with_a_wrong_combination_exits_with_status_2(
    process: str, text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(_document(process, text))
    assert main([process, "--config", str(path)]) == 2
    assert f"{path}: {message}" in capsys.readouterr().err


def test_every_rule_applies_to_a_process_and_every_process_has_a_rule() -> None:
    keys = {name: numbers_by_key(parse_settings(_document(name), model)).keys() for name, model in PROCESSES.items()}
    applying = {rule: {name for name in keys if {rule.shorter, rule.longer} <= keys[name]} for rule in TIMING_RULES}
    assert all(applying.values())
    assert set().union(*applying.values()) == set(PROCESSES)


def _document(process: str, text: str = "") -> str:
    return REQUIRED.get(process, "") + text
