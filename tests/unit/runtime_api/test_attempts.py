"""How long one attempt at Kubernetes may take, while a caller waits."""

import pytest

from gpu_runtime.process.shared_settings import Kubernetes
from gpu_runtime.runtime_api.main import longest_attempt
from gpu_runtime.runtime_api.settings import Limits, RuntimeAPISettings


@pytest.mark.parametrize(
    ("request_seconds", "kubernetes_seconds", "attempt"), [(30, 10, 3), (60, 10, 6), (240, 10, 10), (30, 1, 1)]
)
def test_an_attempt_is_given_up_in_time_for_another_one(
    request_seconds: float, kubernetes_seconds: float, attempt: float
) -> None:
    settings = RuntimeAPISettings(
        limits=Limits(request_seconds=request_seconds),
        kubernetes=Kubernetes(request_timeout_seconds=kubernetes_seconds),
    )
    assert longest_attempt(settings) == pytest.approx(attempt)
