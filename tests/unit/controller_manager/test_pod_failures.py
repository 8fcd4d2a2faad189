"""Failure messages of pods that do not start."""

from typing import Any

import pytest

from gpu_runtime.controller_manager.workload.pod_failures import last_line, pod_failure, startup_failure
from tests.unit.controller_manager.controller_objects import container, deployment, pod

CRASHED = {"exitCode": 3, "reason": "Error", "message": "Traceback\n\nValueError: no weights \n\n"}
PULLING = container({"waiting": {"reason": "ErrImagePull", "message": "no such host"}})


def failure_of_pod(**status: Any) -> str | None:
    return pod_failure(pod(**status))


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, None),
        ({"containerStatuses": [container({"running": {}})]}, None),
        ({"containerStatuses": [container({"waiting": {"reason": "ContainerCreating"}})]}, None),
        ({"containerStatuses": [container({"terminated": {"exitCode": 0}})]}, None),
        ({"containerStatuses": [PULLING]}, "image python cannot be pulled: no such host"),
        (
            {"containerStatuses": [container({"waiting": {"reason": "InvalidImageName"}})]},
            "image python cannot be pulled: InvalidImageName",
        ),
        (
            {"containerStatuses": [container({"waiting": {"reason": "CreateContainerConfigError", "message": "m"}})]},
            "container main cannot be created: m",
        ),
        (
            {"containerStatuses": [container({"terminated": CRASHED})]},
            "container main exited with code 3: ValueError: no weights",
        ),
        (
            {
                "containerStatuses": [
                    container(
                        {"waiting": {"reason": "CrashLoopBackOff"}},
                        restartCount=4,
                        lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    )
                ]
            },
            "container main exited with code 137, OOMKilled (restarted 4 times)",
        ),
        (
            {"containerStatuses": [container({"waiting": {"reason": "CrashLoopBackOff"}})]},
            "container main crashes repeatedly: read its logs",
        ),
        (
            {
                "initContainerStatuses": [container({"terminated": CRASHED}, name="first")],
                "containerStatuses": [PULLING],
            },
            "container first exited with code 3: ValueError: no weights",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/4"}]},
            "the scheduler found no node for the pod: 0/4",
        ),
        ({"phase": "Failed", "reason": "Evicted"}, "pod web-1 failed: Evicted"),
        ({"phase": "Failed"}, "pod web-1 failed: Kubernetes reported no reason"),
    ],
)
def test_pod_startup_failure_message(status: dict[str, Any], message: str | None) -> None:
    assert failure_of_pod(**status) == message


def condition(kind: str, reason: str, message: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


QUOTA = condition("ReplicaFailure", "FailedCreate", "exceeded quota")
LATE = condition("Progressing", "ProgressDeadlineExceeded", "timed out", "False")


@pytest.mark.parametrize(
    ("conditions", "pods", "message"),
    [
        ((), (), None),
        ((QUOTA,), (), "the API server rejects the pods: exceeded quota"),
        ((QUOTA | {"status": "False"},), (), None),
        ((LATE,), (), "timed out"),
        ((LATE, QUOTA), (), "the API server rejects the pods: exceeded quota"),
        ((LATE,), (pod(containerStatuses=[PULLING]),), "image python cannot be pulled: no such host"),
        ((), (pod(containerStatuses=[PULLING], deleted="2026-01-01T00:00:00Z"),), None),
        ((QUOTA,), (pod(phase="Failed", reason="Evicted"),), "the API server rejects the pods: exceeded quota"),
        ((), (pod(phase="Succeeded"),), None),
    ],
)
def test_most_specific_startup_failure_is_reported(conditions: tuple[Any, ...], pods: Any, message: str | None) -> None:
    assert startup_failure(deployment(conditions=conditions), pods) == message


def test_failure_of_the_newest_pod_is_reported() -> None:
    old = pod("old", "2026-01-01T00:00:00Z", containerStatuses=[PULLING])
    new = pod("new", "2026-01-02T00:00:00Z", containerStatuses=[container({"terminated": CRASHED})])
    assert startup_failure(None, [old, new]) == "container main exited with code 3: ValueError: no weights"


def test_failures_of_an_earlier_generation_are_ignored() -> None:
    assert startup_failure(deployment(generation=2, conditions=(QUOTA,)), [pod(containerStatuses=[PULLING])]) is None


@pytest.mark.parametrize(
    ("message", "line"),
    [("", ""), ("\n \n", ""), ("one", "one"), ("one\n two \n\n", "two"), ("x" * 1000, "x" * 512)],
)
def test_last_non_empty_line_of_a_termination_message(message: str, line: str) -> None:
    assert last_line(message) == line
