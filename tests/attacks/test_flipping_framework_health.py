"""A framework changes its health again and again. Each change of the readiness costs writes to the API server."""

import pytest

from gpu_runtime.worker_sidecar.framework_health import ReportedReadiness

HOUR = 3600


def reported_changes(healthy_seconds: int, unhealthy_seconds: int) -> int:
    """Return how often the reported readiness changes within an hour, if the kubelet asks once a second."""
    readiness, changes, since, is_healthy = ReportedReadiness(None), 0, 0, True
    for now in range(HOUR):
        if now - since >= (healthy_seconds if is_healthy else unhealthy_seconds):
            is_healthy, since = not is_healthy, now
        before = readiness.problem is None
        after = readiness.update(None if is_healthy else "status 503", float(since), float(now)) is None
        changes += before != after
    return changes


@pytest.mark.parametrize(
    ("healthy_seconds", "unhealthy_seconds"), [(1, 1), (5, 5), (1, 9), (12, 12), (1, 15), (60, 11), (30, 100)]
)
def test_flipping_health_rarely_changes_the_readiness(healthy_seconds: int, unhealthy_seconds: int) -> None:
    assert reported_changes(healthy_seconds, unhealthy_seconds) <= 20


def test_framework_that_fails_once_is_reported_and_recovers_immediately() -> None:
    readiness = ReportedReadiness("the framework has not passed a health check yet")
    assert readiness.update(None, 1.0, 1.0) is None, "the first success is reported immediately"
    assert readiness.update("status 503", 100.0, 105.0) is None
    assert readiness.update("status 503", 100.0, 110.0) == "status 503"
    assert readiness.update(None, 111.0, 111.0) is None


def test_earlier_changes_do_not_count_after_a_stable_time() -> None:
    readiness, now = ReportedReadiness(None), 0.0
    for _ in range(20):
        now += 400
        readiness.update("status 503", now - 20, now)
        now += 400
        readiness.update(None, now, now)
    now += 700
    readiness.update(None, now - 700, now)
    assert readiness.update("status 503", now - 20, now) == "status 503"
    assert readiness.update(None, now + 1, now + 1) is None
